// knear/knn/faster_device.hpp -- where a search runs whose options leave that to knear.
//
//   KnnOptions options{.device = "auto"};
//   const SearchRequest request = placed_request(kind, segment, queries, k, options, reuse);
//   request.options.device   // "cpu" or "cuda"
#pragma once
#include <cstdint>

#include "knear/knn/search/search_request.hpp"

namespace knear::detail {

// The request; device "auto" is the first GPU where an exact search is predicted to be faster there
// (faster_place() of cost/device_plan.hpp; rows that are searched again are taken to be there
// already), and the processor for all else: where there is no GPU, for approximate methods, and
// with options that a GPU does not have. Throws as SearchRequest().
SearchRequest placed_request(SearchKind kind, const SearchSegment& segment, AnyMatrixView queries,
                             std::int64_t k, const KnnOptions& options, Reuse reuse);

}  // namespace knear::detail
