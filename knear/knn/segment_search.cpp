#include "knear/knn/segment_search.hpp"

#include <utility>

#include "knear/knn/device/device_grid.hpp"
#include "knear/knn/device/open_device.hpp"
#include "knear/knn/faster_device.hpp"
#include "knear/knn/search/nearest_search.hpp"
#include "knear/knn/search/range_search.hpp"
#include "knear/knn/search/search.hpp"

namespace knear::detail {

ExactNeighbors nearest_in_segments(const SearchRequest& request, KnnReport* report) {
  if (const Devices devices = present_devices_of(request.options.device); devices.several())
    return nearest_on_several(devices, request, {}, report);
  return nearest_on(open_device(request.options).get(), request, report);
}

RangeLists within_segments(const SearchRequest& request, double radius, KnnReport* report) {
  if (const Devices devices = present_devices_of(request.options.device); devices.several())
    return within_on_several(devices, request, radius, report);
  return within_on(open_device(request.options).get(), request, radius, report);
}

Neighbors search_segments(const SearchRequest& request, KnnReport* report) {
  const Stopwatch time;
  Neighbors out = rounded_answer(nearest_in_segments(request, report), request);
  if (report) set_call(*report, request.rows, request.queries.cols(), time);
  return out;
}

Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                    const std::function<void(double seconds)>& expecting, KnnReport* report) {
  check_answer(base.rows(), k);
  check_dim("base", base.cols());
  if (options.method.partial_reduce.aggregate)
    check_padding(base.rows(), k, base.rows(), options.memory);
  PreparedRows rows(base, options.metric,
                    find_value_range(base, options.metric, "base", options.threads));
  check_filter(options.filter, base.rows());
  const SearchSegment segment{.rows = &rows, .filter = options.filter};
  SearchRequest request =
      placed_request(SearchKind::self_join, segment, base, k, options, Reuse::none);
  request.expecting = expecting;
  return search_segments(request, report);
}

RangeNeighbors range_search_segments(const SearchRequest& request, double radius,
                                     KnnReport* report) {
  const Stopwatch time;
  RangeLists lists = within_segments(request, radius, report);
  RangeNeighbors out = sorted_neighbors(lists, request.options.metric, request.threads);
  if (report) set_call(*report, request.rows, request.queries.cols(), time);
  return out;
}

void search_more(SearchRequest request, ExactNeighbors& found, KnnReport* report) {
  const Stopwatch time;
  request.merge_with(found.columns());
  if (const Devices devices = present_devices_of(request.options.device); devices.several()) {
    found = nearest_on_several(devices, request, std::move(found), report);
  } else {
    const auto device = open_device(request.options);
    Search search(request, device.get());
    search.run_from(found);
    if (report) *report = search.report();
  }
  if (report) set_call(*report, request.rows, request.queries.cols(), time);
}

namespace {

// A search of rows for some of their own, as one that prepares them asks.
template <class F>
auto with_own_rows(PreparedRows& rows, int threads, const Progress& progress, F f) {
  const AnyMatrix queries = rows.base.sample(std::min<std::int64_t>(rows.base.rows(), 384));
  const KnnOptions options{.metric = rows.metric, .threads = threads, .progress = progress};
  const SearchSegment segment{.rows = &rows};
  const SearchRequest request(SearchKind::nearest, {&segment, 1}, queries.view(), usual_k, options,
                              Reuse::expected);
  Search search(request);
  return f(search);
}

}  // namespace

std::optional<FirstPass> prepare(PreparedRows& rows, int threads, const Progress& progress) {
  if (rows.base.rows() < least_packed_rows) return {};
  return with_own_rows(rows, threads, progress, [](Search& search) { return search.prepare(); });
}

bool optimize(PreparedRows& rows, int threads, const Progress& progress) {
  if (rows.base.rows() < least_packed_rows) return false;
  return with_own_rows(rows, threads, progress, [](Search& search) { return search.optimize(); });
}

}  // namespace knear::detail
