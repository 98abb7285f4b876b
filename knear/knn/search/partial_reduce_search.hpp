// knear/knn/search/partial_reduce_search.hpp -- partial-reduce with an exact search by another
// device for it.
//
// The processor keeps the best few rows of each bin while it scans
// (scan/methods/partial_reduce_scan.hpp). A device finds the k nearest of each part and some more
// instead, exactly; taken in order, a row of whose bin enough were taken is passed over, until
// there are k. That is the processor's answer, to the bit. Queries of which the list was too short
// for that are left to the processor.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "knear/knn/search/search.hpp"

namespace knear::detail {

// Makes the exact search of some parts. What it is given has to stay.
using ExactMaker = std::function<std::unique_ptr<Search>(std::span<const SearchSegment> segments,
                                                         AnyMatrixView queries, std::int64_t k,
                                                         const KnnOptions& options, Reuse reuse)>;

// As partial_reduce_segments(); `exact`: the search of options.device, or nothing for the
// processor.
Neighbors partial_reduce_by(const ExactMaker& exact, std::span<const SearchSegment> segments,
                            AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                            Reuse reuse, KnnReport* report);

// How many rows more than the k nearest are asked of a device. A promise of recall leaves less than
// k / 1000 rows of a query to be passed over on average; so very few queries have more than this.
inline constexpr std::int64_t rows_to_pass_over(std::int64_t k) { return 8 + k / 64; }

}  // namespace knear::detail
