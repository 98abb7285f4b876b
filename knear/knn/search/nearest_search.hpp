// knear/knn/search/nearest_search.hpp -- the k nearest rows by the method that the request names.
#pragma once
#include "knear/knn/report.hpp"
#include "knear/knn/search/device_engine.hpp"
#include "knear/knn/search/search_request.hpp"

namespace knear::detail {

// As nearest_in_segments() and search_segments() (knn/segment_search.hpp), with a device, or on the
// processor alone if that is nullptr.
ExactNeighbors nearest_on(DeviceEngine* device, const SearchRequest& request, KnnReport* report);
Neighbors search_on(DeviceEngine* device, const SearchRequest& request, KnnReport* report);

// The public form of what nearest_on() found; uses the lists up.
Neighbors rounded_answer(const ExactNeighbors& all, const SearchRequest& request);

}  // namespace knear::detail
