// bench/gpu/exact_checks.hpp -- compares knn() and range_search() on a device with the processor,
// bit for bit.
#pragma once
#include <functional>
#include <string>

#include "bench/gpu/case_share.hpp"
#include "bench/gpu/report.hpp"
#include "knear/knn/knn.hpp"

namespace knear::bench {

// knn(), or a function that stands in for it.
using ExactSearch = std::function<Neighbors(AnyMatrixView queries, AnyMatrixView base,
                                            std::int64_t k, const KnnOptions&, KnnReport*)>;
// self_join(), or a function that stands in for it.
using SelfJoin =
    std::function<Neighbors(AnyMatrixView base, std::int64_t k, const KnnOptions&, KnnReport*)>;
// range_search(), or a function that stands in for it.
using RangeSearch = std::function<RangeNeighbors(AnyMatrixView queries, AnyMatrixView base,
                                                 double radius, const KnnOptions&, KnnReport*)>;

// Checks all metrics and element types, k up to and beyond what kernels hold, filters, sizes around
// those of warps, panels and blocks, long rows, data that fill the lists, a base in chunks, and
// real vectors if `data` is a folder that has some (scripts/gpu_check --pack); also that it was the
// device that answered. Runs its share of the cases. `search` is given options.device = `device`.
// `there`: both matrices are in the memory of the device, where a search is exact, and where the
// processor answers for filters that allow very few rows. A DeviceError ends the checks: after one
// everything on a GPU fails.
void check_exact(const ExactSearch& search, const std::string& device, const std::string& data,
                 const CaseShare& share, bool there, Report& report);
// Checks self-joins as well: rows that are copies of others, more neighbours than rows.
void check_self_join(const SelfJoin& self_join, const std::string& device, const CaseShare& share,
                     Report& report);
// Checks range searches as well: radii that hold one row, some and all, and one that is the
// distance of a row.
void check_range(const RangeSearch& search, const std::string& device, const CaseShare& share,
                 bool there, Report& report);

}  // namespace knear::bench
