// knear/scan/methods/nearest_row_scan.hpp -- the nearest row of a base for each query: an argmin,
// with neither lists nor a selection.
//
//   std::vector<std::uint32_t> row(n);
//   std::vector<double> key(n);
//   scan_nearest_row(packed, job, false, row, key, stats, progress);  // now row and key are known
//   scan_nearest_row(other, job, true, row, key, stats, progress);    // row says where to start
//
// The assignment step of k-means: the row that was nearest before is measured first, and only rows
// that may be nearer than it pass the kernel. Of most queries that is the only one.
#pragma once
#include <cstdint>
#include <span>

#include "knear/core/progress.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// rows, keys [job.queries]: the nearest row of job.base for each query, ties to the smaller number,
// and its key (distance/reference.hpp). With `start` rows hold one of the base for each query to
// begin with, the closer the faster; the answer is the same. Requires job.k == 1, no filter, and
// certified codes whose copies were packed each by itself.
void scan_nearest_row(const PackedBase& packed, const ScanJob& job, bool start,
                      std::span<std::uint32_t> rows, std::span<double> keys, ScanStats& stats,
                      const Progress& progress);

}  // namespace knear::detail
