// tests/knn/device/on_device.hpp -- the searches of knn() and range_search() on a device of the
// tests.
#pragma once
#include <span>

#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/nearest_search.hpp"
#include "knear/knn/search/range_search.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::test {

// As detail::search_segments(), by the method of the options.
template <class Queue>
Neighbors search_on_device(const Queue& queue, std::span<const detail::SearchSegment> segments,
                           AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                           detail::Reuse reuse, KnnReport* report = nullptr,
                           detail::SearchKind kind = detail::SearchKind::nearest) {
  detail::DeviceSearch<Queue> device(queue);
  const detail::SearchRequest request(kind, segments, queries, k, options, reuse);
  return detail::search_on(&device, request, report);
}

// As detail::range_search_segments().
template <class Queue>
RangeNeighbors range_search_on_device(const Queue& queue,
                                      std::span<const detail::SearchSegment> segments,
                                      AnyMatrixView queries, double radius,
                                      const KnnOptions& options, detail::Reuse reuse,
                                      KnnReport* report = nullptr) {
  detail::DeviceSearch<Queue> device(queue);
  const detail::SearchRequest request(detail::SearchKind::range, segments, queries, detail::usual_k,
                                      options, reuse);
  return detail::range_search_on(&device, request, radius, report);
}

}  // namespace knear::test
