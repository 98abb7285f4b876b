// knear/core/row_filter.hpp -- the rows of a base to which a search is limited.
//
//   const auto filter = RowFilter::of_ids(ids, base.rows());    // any order, copies are fine
//   knn(queries, base, 10, {.filter = filter});
//
// Keeps one bit and, of each row that is allowed, its number in 4 bytes. Copies share it.
#pragma once
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
  // These rows of a base of `rows` rows, at most 2^31. Throws InvalidArgument for an id that is
  // none of them, with its place in the list.
  static RowFilter of_ids(std::span<const Id> ids, std::int64_t rows);
  // Row i if bit i % 8 of byte i / 8 is set. Throws ShapeMismatch unless there are
  // ceil(rows / 8) bytes; what is set beyond the last row does not count.
  static RowFilter of_bits(std::span<const std::uint8_t> bits, std::int64_t rows);

  bool everything() const { return !data_; }
  // Of the base that it was made for, and how many of these are allowed. Require !everything().
  std::int64_t rows() const { return data_->rows; }
  std::int64_t count() const { return static_cast<std::int64_t>(data_->allowed.size()); }
  bool allows(std::int64_t row) const {
    return data_->bits[static_cast<std::size_t>(row >> 6)] >> (row & 63) & 1;
  }
  // Those of rows begin, ..., end - 1 that are allowed, ascending.
  std::span<const std::uint32_t> allowed(std::int64_t begin, std::int64_t end) const;

  std::int64_t bytes() const;

 private:
  struct Data {
    std::int64_t rows = 0;
    std::vector<std::uint64_t> bits;
    std::vector<std::uint32_t> allowed;  // ascending
  };
  static RowFilter of(Data data);

  std::shared_ptr<const Data> data_;
};

}  // namespace knear
