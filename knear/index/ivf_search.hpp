// knear/index/ivf_search.hpp -- a search of inverted lists: which lists each query probes, when it
// has probed enough, and of which queries the lists' radii prove that nothing nearer is elsewhere.
#pragma once
#include <span>

#include "knear/index/index.hpp"
#include "knear/index/index_state.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// As Index::search() and Index::range_search(). segments: those of the state, in its order.
Neighbors search_inverted_lists(const State& state, Metric metric,
                                std::span<const SearchSegment> segments, AnyMatrixView queries,
                                std::int64_t k, const SearchOptions& options, KnnReport* report);
RangeNeighbors range_search_inverted_lists(const State& state, Metric metric,
                                           std::span<const SearchSegment> segments,
                                           AnyMatrixView queries, double radius,
                                           const SearchOptions& options, KnnReport* report);

}  // namespace knear::detail
