// knear/knn/search/partial_reduce_search.hpp -- the k nearest rows by the method partial-reduce.
#pragma once
#include "knear/knn/report.hpp"
#include "knear/knn/search/device_engine.hpp"
#include "knear/knn/search/search_request.hpp"

namespace knear::detail {

// As nearest_on() (nearest_search.hpp), by this method.
ExactNeighbors partial_reduce_on(DeviceEngine* device, const SearchRequest& request,
                                 KnnReport* report);

}  // namespace knear::detail
