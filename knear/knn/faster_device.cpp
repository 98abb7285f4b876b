#include "knear/knn/faster_device.hpp"

#include "knear/core/error.hpp"
#include "knear/cost/device_plan.hpp"
#include "knear/scan/device_choice.hpp"

namespace knear::detail {
namespace {

bool is_faster_on(const DevicePeaks& gpu, const SearchRequest& request,
                  const SearchSegment& segment) {
  const KnnOptions& options = request.options;
  const ValueRange &base = segment.rows->found, &asked = request.query_range;
  const auto fits = [](const ValueRange& range) {
    return range.integer && (range.low >= 0 || range.high <= 127);
  };
  const AnyMatrixView queries = request.queries;
  return faster_place({.rows = request.rows,
                       .dim = queries.cols(),
                       .queries = queries.rows(),
                       .k = request.k_asked,
                       .bytes_per_element = static_cast<double>(size_of(segment.rows->base.type())),
                       .whole = !traits_of(options.metric).unit_rows && fits(base) && fits(asked) &&
                                queries.cols() <= most_device_integer_dim,
                       .resident = request.reuses(),
                       .allowed = request.allowed_rows,
                       .memory = static_cast<double>(options.memory),
                       .self_join = request.kind == SearchKind::self_join},
                      gpu, request.peaks)
      .device_is_faster;
}

}  // namespace

SearchRequest placed_request(SearchKind kind, const SearchSegment& segment, AnyMatrixView queries,
                             std::int64_t k, const KnnOptions& options, Reuse reuse) {
  if (options.device != "auto")
    return SearchRequest(kind, {&segment, 1}, queries, k, options, reuse);
  KnnOptions placed = options;
  placed.device = "cpu";
  SearchRequest here(kind, {&segment, 1}, queries, k, placed, reuse);
  const Gpus* const gpus = present_gpus();
  const Method method = options.method.kind;
  const bool exact = method == Method::exact ||
                     (method == Method::automatic && options.method.recall.value_or(1) == 1);
  if (!gpus || gpus->count() == 0 || !exact || here.allowed_rows == 0 || queries.rows() == 0 ||
      k == 0)
    return here;
  try {
    if (!is_faster_on(peaks_of(gpus->traits(0)), here, segment)) return here;
    placed.device = "cuda";
    return SearchRequest(kind, {&segment, 1}, queries, here.query_range, k, placed, reuse);
  } catch (const InvalidArgument&) {  // what the processor has and a GPU has not
    return here;
  }
}

}  // namespace knear::detail
