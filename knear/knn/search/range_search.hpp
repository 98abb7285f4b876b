// knear/knn/search/range_search.hpp -- all rows within a radius, over the segments of a base.
#pragma once
#include "knear/knn/report.hpp"
#include "knear/knn/search/device_engine.hpp"
#include "knear/knn/search/search_request.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

// As within_segments() and range_search_segments() (knn/segment_search.hpp), with a device, or on
// the processor alone if that is nullptr.
RangeLists within_on(DeviceEngine* device, const SearchRequest& request, double radius,
                     KnnReport* report);
RangeNeighbors range_search_on(DeviceEngine* device, const SearchRequest& request, double radius,
                               KnnReport* report);

// What was found, sorted by key and id, in the form of a public answer; uses the lists up.
RangeNeighbors sorted_neighbors(RangeLists& lists, Metric metric, int threads);

}  // namespace knear::detail
