// bench/gpu/list_checks.hpp -- compares searches of inverted lists on a device with the
// processor's, bit for bit.
#pragma once
#include <functional>
#include <string>

#include "bench/gpu/case_share.hpp"
#include "bench/gpu/report.hpp"
#include "knear/index/index.hpp"

namespace knear::bench {

// Index::search(), or a function that stands in for it.
using IndexSearch = std::function<Neighbors(const Index& index, AnyMatrixView queries,
                                            std::int64_t k, const SearchOptions&, KnnReport*)>;

// Checks all metrics and element types, few and many queries and probes, recall and certificates,
// filters, removed rows, rows added after others, k beyond what lists hold, and lists in chunks;
// also that it was the device that answered. Runs its share of the cases. `search` is given
// options.device = `device`.
void check_lists(const IndexSearch& search, const std::string& device, const CaseShare& share,
                 Report& report);

}  // namespace knear::bench
