// knear/core/row_filter.hpp -- the rows of a base to which a search is limited.
//
//   const auto filter = RowFilter::of_ids(ids, base.rows());    // any order, copies are fine
//   knn(queries, base, 10, {.filter = filter});
//
// Keeps one bit per row; copies share the bits.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/neighbors.hpp"

namespace knear {

class RowFilter {
 public:
  // Every row of any base.
  RowFilter() = default;
  // Allows these rows of a base of `rows` rows, at most 2^31. Throws InvalidArgument for an id that
  // is not one of its rows, with its place in the list.
  static RowFilter of_ids(std::span<const Id> ids, std::int64_t rows);
  // Allows row i if bit i % 8 of byte i / 8 is set. Throws ShapeMismatch unless there are ceil(rows
  // / 8) bytes; bits beyond the last row are ignored.
  static RowFilter of_bits(std::span<const std::uint8_t> bits, std::int64_t rows);

  bool everything() const { return !data_; }
  // The rows of the base that the filter was made for, and how many of them are allowed. Both
  // require !everything().
  std::int64_t rows() const { return data_->rows; }
  std::int64_t count() const { return data_->count; }
  bool allows(std::int64_t row) const { return data_->bits[row >> 6] >> (row & 63) & 1; }
  // The same of any number; false for one that is no row of the base. Without a branch that depends
  // on it.
  bool holds(std::int64_t id) const {
    const std::int64_t last = data_->rows - 1;
    if (last < 0) return false;
    return allows(std::clamp<std::int64_t>(id, 0, last)) & (id >= 0) & (id <= last);
  }
  // The bits of rows row, ..., row + 63, from the lowest on; 0 beyond the last row.
  std::uint64_t bits_from(std::int64_t row) const {
    const auto& bits = data_->bits;
    const std::size_t at = row >> 6;
    const int shift = static_cast<int>(row & 63);
    const std::uint64_t low = at < bits.size() ? bits[at] >> shift : 0;
    return shift > 0 && at + 1 < bits.size() ? low | bits[at + 1] << (64 - shift) : low;
  }
  // How many of rows begin, ..., end - 1 are allowed, counted 64 in a step; and which, ascending,
  // counted from `begin`.
  std::int64_t count(std::int64_t begin, std::int64_t end) const;
  std::vector<std::uint32_t> allowed(std::int64_t begin, std::int64_t end) const;

  std::int64_t bytes() const;

 private:
  struct Data {
    std::int64_t rows = 0;
    std::vector<std::uint64_t> bits;  // none beyond the last row
    std::int64_t count = 0;
  };
  static RowFilter of(Data data);
  // Calls f(word, number of its first row) for the words of rows begin, ..., end - 1 that have bits
  // set.
  template <class F>
  void for_each_word(std::int64_t begin, std::int64_t end, F f) const;

  std::shared_ptr<const Data> data_;
};

}  // namespace knear
