// knear/scan/methods/filtered_lists.hpp -- what a filter leaves of the inverted lists that some
// queries probe.
//
//   FilteredLists filtered(lists, job.allowed, probes, threads);
//   filtered.followed(7)          // the few rows that are left of list 7, to be measured
//   filtered.scanned()            // the probes of lists of which many are left
//   filtered.slots()              // which rows of these panels may pass (TileArgs::allowed)
//
// Laid out once for all queries: a look at the filter for each row of the lists that are probed, no
// other. A list of which nothing is left is in neither form, and costs nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/scan/packing/packed_lists.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

class FilteredLists {
 public:
  // probes: as ScoredLists takes them. What is given has to stay.
  FilteredLists(const PackedLists& lists, const AllowedRows& allowed, MatrixView<Id> probes,
                int threads);

  // Up to one row in so many is few: measuring it takes about as long as scoring so many.
  static constexpr std::int64_t few_left = 20;

  // About what share of the rows of lists that are probed is left, by a sample of them.
  static double share_left(const PackedLists& lists, const AllowedRows& allowed,
                           MatrixView<Id> probes);

  // The rows that are left of a list that is probed, if they are few; none of others.
  std::span<const std::uint32_t> followed(Id list) const {
    const std::int64_t left = left_[list];
    const auto [from, to] = lists_.panels(list);
    if (left > most_followed(to - from)) return {};
    return {rows_.get() + most_followed(from), static_cast<std::size_t>(left)};
  }
  bool any_followed() const { return any_followed_; }
  // The probes of all other lists of which something is left, in the same order.
  MatrixView<Id> scanned() const { return scanned_.view(); }
  const std::uint32_t* slots() const { return slots_.get(); }

 private:
  // Rows of so many panels that are followed at most.
  static constexpr std::int64_t most_followed(std::int64_t panels) {
    return panels * panel_rows / few_left;
  }

  // Fills slots_, left_ and, where they are few, rows_ of a list.
  void lay_out(const AllowedRows& allowed, Id list);

  const PackedLists& lists_;
  std::unique_ptr<std::uint32_t[]> slots_;  // [panels], of lists that are probed
  std::unique_ptr<std::uint32_t[]> rows_;   // [most_followed(panels)], list after list
  std::vector<std::int32_t> left_;          // [lists]: rows left; -1: not probed
  Matrix<Id> scanned_;
  bool any_followed_ = false;
};

}  // namespace knear::detail
