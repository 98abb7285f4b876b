// knear/scan/scan.hpp -- the one scan: score, test against a threshold, keep candidates, rescore.
//
// For each tile of the base and each group of queries the kernel (scan/kernels/tile_kernels.hpp)
// hands back the few pairs that passed the test. Each becomes an interval that certainly holds its
// g; the k-th best lower end is the threshold G of its query, and whatever has its upper end below
// G is dropped. What is left at the end is measured in float64, best first, until the next interval
// lies beyond the k-th. Exact integers need no interval and no rescoring.
//
// For many neighbours the k-th best of what was seen is a poor threshold for long: the tiles are
// samples of the base, so of the first t of T tiles the best k t / T and a few are hoped to hold
// all of the k that lie there, and the worst of these is the threshold. In the end the k-th key
// shows whether that was right; a query for which it was not is scanned again without hope.
//
// Work is divided by queries, each thread going over the whole base; when there are too few
// queries for that, by tiles too, and the parts' candidates are put together before rescoring.
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

// The most queries that one thread takes at a time, so that their buffers stay within megabytes.
std::int64_t queries_in_block(std::int64_t k);

// The share of the rows that a first pass may leave to be measured before the next pass of the
// ladder, one of wider codes or after fp32 the direct one, costs less.
double worthwhile_survivors(Format format, std::int64_t dim, const MachinePeaks& peaks);

// Fills rows `which` of `out` (shapes [queries x k]); returns the queries given up, whose rows are
// untouched. Requires k >= 1, equal columns, finite elements; ids are rows of job.base. Rows whose
// key exceeds the query's bar may be missing.
std::vector<std::int64_t> scan(const PackedBase& packed, const ScanJob& job,
                               const std::vector<std::int64_t>& which, ExactNeighbors& out,
                               ScanStats& stats, const Progress& progress);

// The same by measuring every pair in float64, of all rows of job.base or of a `subset` of them
// (ascending) if that is not empty: for very few queries or a k near the size of the
// base, where preparing codes would not pay.
void scan_directly(const ScanJob& job, std::span<const std::uint32_t> subset,
                   const std::vector<std::int64_t>& which, ExactNeighbors& out, ScanStats& stats,
                   const Progress& progress);

}  // namespace knear::detail
