// knear/scan/packing/base_rows.hpp -- the rows of a base by number, wherever they lie.
//
//   BaseRows rows = matrix;                       // row i is row i
//   BaseRows rows(matrix, order);                 // row i is row order[i] of the matrix
//   BaseRows rows(panels, slots);                 // row i is what was packed into slots[i]
//   BaseRows rows(joined);                        // those of several bases, one after another
//
// The scan breaks ties by row number. An index whose ids do not ascend with its rows gives the
// order; one that keeps whole numbers only as panels has no matrix at all. This is a view: the rows
// must outlive it.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "knear/core/checked_blocks.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::detail {

class JoinedRows;
class PackedBase;

// The ids of the rows of a base: ids[row], or first + row if there is no list.
struct RowIds {
  Id first = 0;
  const Id* ids = nullptr;

  Id operator()(std::int64_t row) const { return ids ? ids[row] : first + row; }
  // The ids of the rows from `begin` on.
  RowIds from(std::int64_t begin) const { return {first + begin, ids ? ids + begin : nullptr}; }
};

class BaseRows {
 public:
  BaseRows() = default;
  BaseRows(AnyMatrixView matrix)  // implicit: the usual case
      : type_(matrix.type()), matrix_(matrix), rows_(matrix.rows()), cols_(matrix.cols()) {}
  template <class T>
  BaseRows(MatrixView<T> matrix) : BaseRows(AnyMatrixView(matrix)) {}
  // guard: checks the pages of a mapped matrix before they are used; nullptr for other matrices.
  BaseRows(AnyMatrixView matrix, const CheckedBlocks* guard) : BaseRows(matrix) { guard_ = guard; }
  BaseRows(AnyMatrixView matrix, std::span<const std::uint32_t> order,
           const CheckedBlocks* guard = nullptr)
      : type_(matrix.type()),
        matrix_(matrix),
        guard_(guard),
        places_(order.data()),
        rows_(static_cast<std::int64_t>(order.size())),
        cols_(matrix.cols()) {}
  // Requires panels.is_integer. The type is u8, or i8 if there are negative numbers.
  BaseRows(const PackedBase& panels, std::span<const std::uint32_t> slots);
  explicit BaseRows(const JoinedRows& rows);

  ElementType type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t row_bytes() const { return cols_ * size_of(type_); }

  // Row i, contiguous, as cols() elements of type(). A row that is not stored like that is written
  // to `scratch` [scratch_bytes()].
  const void* row(std::int64_t i, std::byte* scratch) const {
    if (panels_ || joined_) return row_elsewhere(i, scratch);
    const void* found = matrix_.row(places_ ? std::int64_t{places_[i]} : i);
    if (guard_) guard_->touch(found, row_bytes());
    return found;
  }
  // Row `first`, if it and those that follow it lie stride_bytes() apart in memory; else nullptr.
  const void* in_a_row(std::int64_t first, std::int64_t count) const {
    if (panels_ || joined_ || places_) return nullptr;
    if (guard_)
      for (std::int64_t i = first; i < first + count; ++i)
        guard_->touch(matrix_.row(i), row_bytes());
    return matrix_.row(first);
  }
  std::int64_t stride_bytes() const { return matrix_.stride() * size_of(type_); }
  std::size_t scratch_bytes() const {
    return panels_ ? static_cast<std::size_t>((cols_ + 3) / 4 * 4) : joined_scratch_bytes_;
  }
  // Row i as a matrix of one row.
  AnyMatrixView row_view(std::int64_t i, std::byte* scratch) const {
    return {type_, row(i, scratch), 1, cols_, cols_};
  }
  // Prefetches the first `bytes` of a row that will be needed soon.
  void prefetch(std::int64_t i, std::int64_t bytes) const {
    if (panels_) return;  // a row lies in as many places as it has steps
    if (joined_) return prefetch_joined(i, bytes);
    const char* p = static_cast<const char*>(matrix_.row(places_ ? std::int64_t{places_[i]} : i));
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(p + b);
  }
  // By what number row i is found, and put in order among others as near: its own, or where bases
  // are joined its id.
  Id number(std::int64_t i) const { return joined_ ? id_of_joined(i) : i; }
  // Rows begin, ..., end - 1. Not of joined bases.
  BaseRows part(std::int64_t begin, std::int64_t end) const;
  // Copies of `count` rows, evenly spaced. Requires count <= rows().
  AnyMatrix sample(std::int64_t count) const;

 private:
  const void* row_elsewhere(std::int64_t i, std::byte* scratch) const;
  const void* unpack(std::int64_t i, std::byte* scratch) const;
  void prefetch_joined(std::int64_t i, std::int64_t bytes) const;
  Id id_of_joined(std::int64_t i) const;

  ElementType type_ = ElementType::f32;
  AnyMatrixView matrix_;
  const CheckedBlocks* guard_ = nullptr;
  const PackedBase* panels_ = nullptr;
  const JoinedRows* joined_ = nullptr;
  const std::uint32_t* places_ = nullptr;  // rows of the matrix or slots of the panels
  std::int64_t rows_ = 0, cols_ = 0;
  std::size_t joined_scratch_bytes_ = 0;
};

// Bases that are searched as one: their rows are numbered one base after another, in the order in
// which the bases were added, while ids may go to and fro between them.
class JoinedRows {
 public:
  struct Part {
    BaseRows rows;
    RowIds ids;
    std::int64_t first;  // the number of its row 0
  };

  // Requires the type and the columns of those before.
  void add(const BaseRows& rows, const RowIds& ids) {
    firsts_.push_back(this->rows()), parts_.push_back({rows, ids, firsts_.back()});
  }

  std::int64_t rows() const {
    return parts_.empty() ? 0 : parts_.back().first + parts_.back().rows.rows();
  }
  std::span<const Part> parts() const { return parts_; }
  const Part& part_of(std::int64_t row) const {
    // Of a few, without a branch that could be foretold by nothing.
    if (firsts_.size() > 16) return *(part_after(row) - 1);
    std::size_t before = 0;
    for (const std::int64_t first : firsts_) before += first <= row;
    return parts_[before - 1];
  }

 private:
  std::vector<Part>::const_iterator part_after(std::int64_t row) const;

  std::vector<Part> parts_;
  std::vector<std::int64_t> firsts_;  // of each part
};

}  // namespace knear::detail
