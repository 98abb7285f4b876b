// knear/scan/packing/coded_lists.hpp -- codes by inverted list, as a scan reads them.
//
//   CodedLists lists = CodedLists::of(list_of, codes.view(), scalars);
//   const auto [begin, end] = lists.rows_of(7);        // the rows of list 7
//
// Rows are numbered list by list. Those of a list lie in groups of 64: the first byte of each code,
// then the second one, and so on; the last group has as many rows as are left and no padding. A GPU
// takes them as they are.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/checked_blocks.hpp"
#include "knear/core/matrix.hpp"

namespace knear::detail {

class CodedLists {
 public:
  // What is read beyond the last code and the last scalar.
  static constexpr std::size_t code_padding = 64, scalar_padding = 64;

  CodedLists() = default;
  // list_of [n], ascending; codes [n x width] and scalars [n or none] in the same order.
  static CodedLists of(std::span<const std::uint32_t> list_of, MatrixView<std::uint8_t> codes,
                       std::span<const float> scalars);
  // Rows counted out beforehand, and filled in by put().
  CodedLists(std::span<const std::uint32_t> list_of, std::int64_t width, bool with_scalars);
  void put(std::int64_t row, const std::uint8_t* code, float scalar);
  // Once all are there.
  void finish();
  // From a file: lists that have rows, ascending, and where the rows of each begin, [lists + 1].
  // Requires that these fit together, and that codes and scalars have their padding.
  // guard: checks codes before they are used; nullptr: they are known to be right.
  CodedLists(std::vector<std::uint32_t> lists, std::vector<std::int64_t> begin, std::int64_t width,
             AlignedArray<std::uint8_t> codes, AlignedArray<float> scalars,
             std::shared_ptr<const CheckedBlocks> guard);

  std::int64_t rows() const { return begin_.back(); }
  std::int64_t width() const { return width_; }  // bytes of a code
  bool has_scalars() const { return scalars_.size() > 0; }
  // The largest magnitude.
  float largest_scalar() const { return largest_scalar_; }

  // The lists that have rows, ascending, and where those of each begin [that many + 1].
  const std::vector<std::uint32_t>& lists() const { return lists_; }
  const std::vector<std::int64_t>& begin() const { return begin_; }
  // Rows [first, second) of a list.
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t list) const;
  std::int64_t list_at(std::int64_t row) const;
  // The list of each row [rows].
  std::vector<std::uint32_t> list_of() const;

  // The codes of some rows of a list, the first of which is the first of its group. Throws
  // CorruptFile, as do the others below.
  const std::uint8_t* groups(std::int64_t row, std::int64_t rows) const {
    const std::uint8_t* const found = codes_.data() + row * width_;
    if (guard_) guard_->touch(found, rows * width_);
    return found;
  }
  const float* scalars() const { return scalars_.data(); }  // [rows]
  // Where the code of a row begins, whose list begins and ends so, and how far apart its bytes lie.
  struct Place {
    const std::uint8_t* code;
    std::int64_t stride;
  };
  Place place(std::int64_t row, std::int64_t list_begin, std::int64_t list_end) const {
    const std::int64_t first = row - (row - list_begin) % 64,
                       stride = list_end - first < 64 ? list_end - first : 64;
    return {groups(first, stride) + (row - first), stride};
  }
  // The same of any row.
  Place place(std::int64_t row) const;

  // All of them are checked.
  const AlignedArray<std::uint8_t>& codes() const {
    if (guard_) guard_->touch_all(1);
    return codes_;
  }
  const AlignedArray<float>& all_scalars() const { return scalars_; }
  std::int64_t bytes() const;

 private:
  void set_lists(std::span<const std::uint32_t> list_of);

  std::int64_t width_ = 0;
  std::vector<std::uint32_t> lists_;
  std::vector<std::int64_t> begin_ = {0};
  AlignedArray<std::uint8_t> codes_;
  AlignedArray<float> scalars_;
  float largest_scalar_ = 0;
  std::shared_ptr<const CheckedBlocks> guard_;
};

}  // namespace knear::detail
