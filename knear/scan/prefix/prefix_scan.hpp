// knear/scan/prefix/prefix_scan.hpp -- the scan in two stages, by a prefix (prefix_base.hpp).
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/prefix/prefix_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// The `count` clusters of each of `which` of the prefixes of queries [n x columns] that are the
// nearest by their centroids, for ip with the mean of their row terms: writes rows of `out`.
void nearest_clusters(const PrefixBase& base, const ScanJob& job, const Matrix<float>& prefixes,
                      const std::vector<std::int64_t>& which, std::int64_t count,
                      ExactNeighbors& out);

// As scan(), by way of the prefix; job.base must be the rows that `base` was made of. Queries that
// the prefix serves badly are given up, whatever job.may_give_up says.
std::vector<std::int64_t> scan_with_prefix(const PrefixBase& base, const ScanJob& job,
                                           const std::vector<std::int64_t>& which,
                                           ExactNeighbors& out, ScanStats& stats,
                                           const Progress& progress);

}  // namespace knear::detail
