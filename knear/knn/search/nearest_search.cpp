#include "knear/knn/search/nearest_search.hpp"

#include <optional>

#include "knear/knn/search/partial_reduce_search.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/knn/search/threshold_heap_search.hpp"

namespace knear::detail {

ExactNeighbors nearest_on(DeviceEngine* device, const SearchRequest& request, KnnReport* report) {
  const MethodOptions& method = request.options.method;
  if (method.kind == Method::threshold_heap) return threshold_heap_on(device, request, report);
  // An exact answer keeps every promise of recall, and a GPU finds nothing faster than that.
  if (method.kind == Method::partial_reduce ||
      (method.kind == Method::automatic && method.recall.value_or(1) < 1 && !device &&
       request.kind == SearchKind::nearest && traits_of(request.options.metric).by_products))
    return partial_reduce_on(device, request, report);
  return Search(request, device).run(report);
}

Neighbors search_on(DeviceEngine* device, const SearchRequest& request, KnnReport* report) {
  const Stopwatch time;
  Neighbors out = rounded_answer(nearest_on(device, request, report), request);
  if (report) set_call(*report, request.rows, request.queries.cols(), time);
  return out;
}

Neighbors rounded_answer(const ExactNeighbors& all, const SearchRequest& request) {
  const bool self = request.kind == SearchKind::self_join;
  const std::int64_t columns =
      request.options.method.partial_reduce.aggregate ? request.k_asked - self : all.columns();
  return rounded(all, request.options.metric, request.queries.rows(), columns, request.threads,
                 self ? std::optional<Id>(0) : std::nullopt);
}

}  // namespace knear::detail
