// knear/scan/packing/duplicates.hpp -- rows that occur more than once, so that the scan scores them
// once.
//
// No bound can separate equal rows: with thousands of copies of one vector, all of them would
// survive for every query near it. Packed once, a copy costs one push when its first row is
// measured. Finding copies costs hashing a sample, and all rows only if the sample has some; a few
// copies that the sample missed do no harm.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "knear/scan/packing/base_rows.hpp"

namespace knear::detail {

// Reads rows of a base so that rows with the same numbers have the same bytes: zeros lose their
// sign. The base must outlive it. One thread's.
class ComparableRows {
 public:
  explicit ComparableRows(const BaseRows& base)
      : base_(base), scratch_(base.scratch_bytes()), copy_(base.row_bytes()) {}

  std::size_t bytes() const { return copy_.size(); }
  // Returns the bytes of row i, which are valid until the next call.
  const void* row(std::int64_t i);

 private:
  const BaseRows& base_;
  std::vector<std::byte> scratch_, copy_;
};

class Duplicates {
 public:
  Duplicates() = default;  // none
  // Finds them among all rows, or the `subset` of them (ascending) if it is not empty. Rows are
  // equal if their numbers are; -0 equals 0, as no key tells them apart. Requires base.rows() <
  // 2^32.
  static Duplicates find(const BaseRows& base, std::span<const std::uint32_t> subset, int threads);

  // Restores the four lists below, as they were saved; none of them is empty. `base_rows` is the
  // number of rows of the base. Throws CorruptFile if no base can have these lists.
  static Duplicates from_lists(std::vector<std::uint32_t> rows, std::vector<std::uint32_t> firsts,
                               std::vector<std::uint32_t> begin, std::vector<std::uint32_t> others,
                               std::int64_t base_rows);

  bool any() const { return !rows_.empty(); }
  // The first of each set of equal rows, ascending; only if any().
  const std::vector<std::uint32_t>& distinct() const { return rows_; }
  // The other rows equal to `first`, ascending.
  std::span<const std::uint32_t> others(std::uint32_t first) const;

  const std::vector<std::uint32_t>& firsts() const { return firsts_; }
  const std::vector<std::uint32_t>& begins() const { return begin_; }
  const std::vector<std::uint32_t>& all_others() const { return others_; }

  std::int64_t bytes() const {
    return 4 * static_cast<std::int64_t>(rows_.size() + firsts_.size() + begin_.size() +
                                         others_.size());
  }

 private:
  std::vector<std::uint32_t> rows_;    // [distinct]
  std::vector<std::uint32_t> firsts_;  // the distinct rows that have copies, ascending
  std::vector<std::uint32_t> begin_;   // [firsts + 1] into others_
  std::vector<std::uint32_t> others_;
};

}  // namespace knear::detail
