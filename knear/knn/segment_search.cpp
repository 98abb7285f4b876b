// The ways into a search for the k nearest, and the checks of k and radius. Each makes a Search,
// which does the rest (knn/search/search.hpp); range_search_segments is beside its own kind, in
// range_search.cpp.
#include "knear/knn/segment_search.hpp"

#include <cmath>

#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/search.hpp"

namespace knear::detail {

void check_k(std::int64_t k) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  if (k > max_k) throw InvalidArgument("k must be at most {}, but is {}", max_k, k);
}

void check_radius(double radius) {
  if (!std::isfinite(radius))
    throw InvalidArgument("radius must be a finite number, but is {}", radius);
}

Neighbors search_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                          std::int64_t k, const KnnOptions& options, Reuse reuse,
                          KnnReport* report) {
  check_method(options);
  const Method method = options.method.kind;
  const bool exact = method == Method::exact || method == Method::automatic;
  // An exact answer keeps every promise of recall, and a GPU finds nothing faster than that.
  if (exact && parse_device(options.device).cuda)
    return make_search(segments, queries, k, options, reuse)->run(report);
  if (options.method.kind == Method::threshold_heap)
    return threshold_heap_segments(segments, queries, k, options, reuse, report);
  if (options.method.kind == Method::partial_reduce || options.method.recall < 1)
    return partial_reduce_segments(segments, queries, k, options, reuse, report);
  return make_search(segments, queries, k, options, reuse)->run(report);
}

void check_method(const KnnOptions& options) {
  if (!(options.method.recall > 0 && options.method.recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", options.method.recall);
  const auto refuse = [&](std::string_view name, std::int64_t value, Method method) {
    if (value < 0) throw InvalidArgument("{} must be at least 0, but is {}", name, value);
    if (value > 0 && options.method.kind != method)
      throw InvalidArgument("{} is {}, but method is {}, not {}", name, value,
                            name_of(options.method.kind), name_of(method));
  };
  refuse("samples", options.method.samples, Method::threshold_heap);
  refuse("query_batch", options.method.query_batch, Method::threshold_heap);
  refuse("logical_rows", options.method.logical_rows, Method::partial_reduce);
  if (!options.method.aggregate && options.method.kind != Method::partial_reduce)
    throw InvalidArgument("aggregate is off, but method is {}, not partial-reduce",
                          name_of(options.method.kind));
  if (options.method.recall < 1 &&
      (options.method.kind == Method::exact || options.method.kind == Method::threshold_heap))
    throw InvalidArgument("method is {}, which finds everything, but recall is {}",
                          name_of(options.method.kind), options.method.recall);
}

void check_exact(const KnnOptions& options, std::string_view search) {
  check_method(options);
  if (options.method.kind != Method::automatic && options.method.kind != Method::exact)
    throw InvalidArgument("method is {}, but {} has only auto and exact",
                          name_of(options.method.kind), search);
}

Neighbors self_join_segment(const SearchSegment& segment, AnyMatrixView rows, std::int64_t k,
                            const KnnOptions& options, Reuse reuse, KnnReport* report) {
  check_exact(options, "a self-join");
  return make_search({&segment, 1}, rows, k + 1, options, reuse)->run_self(report);
}

void search_more(std::span<const SearchSegment> segments, AnyMatrixView queries, std::int64_t k,
                 const KnnOptions& options, ExactNeighbors& found, KnnReport* report) {
  check_exact(options, "a base that is read in blocks");
  make_search(segments, queries, k, options, Reuse::none, found.keys.cols())
      ->run_from(found, report);
}

std::optional<FirstPass> prepare(PreparedRows& rows, int threads, const Progress& progress) {
  const std::int64_t n = rows.base.rows();
  if (n < least_packed_rows) return {};
  const AnyMatrix queries = rows.base.sample(std::min<std::int64_t>(n, 384));
  const KnnOptions options{.metric = rows.metric, .threads = threads, .progress = progress};
  const SearchSegment segment{.rows = &rows};
  return Search({&segment, 1}, queries.view(), usual_k, options, Reuse::expected).prepare();
}

}  // namespace knear::detail
