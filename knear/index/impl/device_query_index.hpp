// knear/index/impl/device_query_index.hpp -- searches of an index for queries in the memory of a
// device, where the answers go too.
//
//   search_on_device<Queue>(impl, queue, open, queries, k, options, {ids, distances}, report);
//
// The rows of a flat index stay on the device as they do for other searches there, and the queries
// are used in place (knn/device/device_query_search.hpp). What cannot be answered so, queries or
// other kinds of index, comes to the processor's memory, is searched for as Index::search() does,
// and the answers go back. Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "knear/index/impl/index_impl.hpp"
#include "knear/knn/device/device_query_search.hpp"

namespace knear::detail {

// Whether queries of a device are used in place: vectors that are kept as they came, all of which
// are compared, by one GPU without a limit of memory.
inline bool takes_device_queries(const State& state, const IndexShape& shape,
                                 const SearchOptions& options) {
  const SearchMethod& method = options.method;
  const bool exact = method.kind == Method::exact ||
                     (method.kind == Method::automatic && method.partial_reduce.aggregate);
  return !shape.is_probed() && !shape.has_graph() && !state.transform && exact &&
         options.memory <= 0 && !parse_devices(options.device).several();
}

// As Index::search(). queue: of the device on which queries, ids and distances [queries x k] are,
// and which options.device names; open: makes others. Done when it returns.
template <class Queue>
void search_on_device(const IndexImpl& index, Queue& queue, const std::function<Queue()>& open,
                      const DeviceRowData<Queue>& queries, std::int64_t k,
                      const SearchOptions& options, AnswerOnDevice to, KnnReport* report) {
  const Stopwatch time;
  check_answer(queries.count, k);
  index.check_columns(
      "queries", AnyMatrixView(queries.type, nullptr, queries.count, queries.dim, queries.dim));
  const auto state = index.state();
  index.check_trained(*state, "searching");
  check_padding(queries.count, k, state->size, options.memory);
  // Answers of these queries by way of the processor's memory; all if none are named.
  const auto answer_on_host = [&](std::span<const std::int64_t> which, KnnReport* told) {
    const AnyMatrix here = which.empty() ? download_rows(queue, queries, 0, queries.count)
                                         : download_some(queue, queries, which);
    const ExactNeighbors near = index.nearest(*state, here.view(), k, options, told);
    send_answers(
        queue, rounded(near, index.shape.metric, here.rows(), k, resolve_threads(options.threads)),
        which, to);
  };
  const auto set_call = [&] {
    if (report) index.set_call_of(*report, *state, time);
  };
  if (!options.method.partial_reduce.aggregate)
    throw InvalidArgument("aggregate is off, but queries are in the memory of a GPU");
  if (!takes_device_queries(*state, index.shape, options)) {
    answer_on_host({}, report);
    return set_call();
  }

  const IdFilter filter = quick_filter(state->size, state->next_id, options.filter);
  const std::vector<SearchSegment> segments = search_segments_of(*state, filter);
  const Metric metric = index.shape.metric;
  DeviceQuerySearch<Queue> search(open);
  const SearchRequest request(
      SearchKind::nearest, segments,
      AnyMatrixView(queries.type, queries.data(), queries.count, queries.dim, queries.dim),
      search.range_of(queries, metric), k, options_of_scan(options, metric), Reuse::expected);
  if (request.k == 0) {  // nothing but padding
    answer_on_host({}, report);
    return set_call();
  }
  const std::vector<std::int64_t> left = search.nearest(request, queries, to, report);
  if (!left.empty()) {
    KnnReport again;
    answer_on_host(left, report ? &again : nullptr);
    if (report) add_search_of_the_left(*report, std::ssize(left), again);
  }
  set_call();
}

}  // namespace knear::detail
