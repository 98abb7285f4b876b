// knear/scan/scan.hpp -- the one scan: score, test against a threshold, keep candidates, rescore.
//
// For each tile of the base and each group of queries the kernel (kernels/tile_kernels.hpp) hands
// back the few pairs that passed the threshold test. Each becomes an interval that certainly holds
// its g; the k-th best lower end is the threshold G of its query, and whatever has its upper end
// below G is dropped. What is left at the end is measured in float64, best first, until the next
// interval lies beyond the k-th. Whole numbers need no interval and no measuring.
//
// Thresholds for many neighbours are estimated (threshold_estimates.hpp). Work is divided by
// queries, each thread going over the whole base; where there are too few queries for that, by
// splits of the base too, whose candidates are put together before they are measured
// (nearest_state.hpp). The driver, and how to write another kind of scan, is scan_driver.hpp.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// Fills rows `which` of `out` (shapes [queries x k]); returns the queries given up, whose rows are
// untouched. Requires k >= 1, equal columns, finite elements; ids are rows of job.base. Rows whose
// key exceeds the query's upper bound may be missing.
std::vector<std::int64_t> scan(const PackedBase& packed, const ScanJob& job,
                               const std::vector<std::int64_t>& which, ExactNeighbors& out,
                               ScanStats& stats, const Progress& progress);

// Gives the same answer by measuring every pair in float64, of all rows of job.base or of a
// `subset` of them (ascending) if that is not empty: for very few queries or a k near the size of
// the base, where preparing codes would not pay.
void scan_directly(const ScanJob& job, std::span<const std::uint32_t> subset,
                   const std::vector<std::int64_t>& which, ExactNeighbors& out, ScanStats& stats,
                   const Progress& progress);

}  // namespace knear::detail
