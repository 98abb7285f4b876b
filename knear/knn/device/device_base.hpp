// knear/knn/device/device_base.hpp -- searches of vectors that are in the memory of a device
// already.
//
// What DeviceSearch does with rows of the processor, with those of somebody else: nothing of the
// base is copied, but for a sample of some thousand rows that says where they lie. Queries are used
// in place, and the k nearest stay (device_query_search.hpp); for a self-join the rows are the
// queries. What cannot be answered so comes to the processor, and the answers go back: queries of
// zeros and those whose lists were full, or all where memory is limited, or few rows are allowed.
// For a radius queries come to the processor, and what lies within it stays there, sorted. Queue:
// cuda::Queue, or the emulated one of the tests.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/knn/device/device_query_search.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/nearest_search.hpp"
#include "knear/knn/search/range_search.hpp"

namespace knear::detail {

template <class Queue>
class DeviceBase {
 public:
  // rows: in device memory; they must stay unchanged while this lives. Throws InvalidArgument for a
  // NaN or an infinity, naming the row.
  DeviceBase(Queue queue, DeviceRowData<Queue> rows, Metric metric)
      : queue_(std::move(queue)),
        rows_(std::move(rows)),
        // Only its shape is looked at (PreparedRows::OnDevice).
        prepared_(AnyMatrixView(rows_.type, rows_.data(), rows_.count, rows_.dim, rows_.dim),
                  metric, value_range_of_rows(queue_, rows_, metric, "base")) {
    const std::int64_t sample = CodingSpace::sample_size(rows_.count, rows_.dim);
    const AnyMatrix sampled =
        sample > 0 ? sample_rows(queue_, rows_, sample) : AnyMatrix(rows_.type, 0, rows_.dim);
    prepared_.on_device = {rows_.data(), CodingSpace::choose(sampled.view(), metric, active_isa()),
                           [this](std::int64_t begin, std::int64_t count) {
                             return download_rows(queue_, rows_, begin, count);
                           }};
  }
  DeviceBase(const DeviceBase&) = delete;
  DeviceBase& operator=(const DeviceBase&) = delete;

  // Writes the k nearest as knn() has them, or as self_join() does, with the rows for queries. Done
  // when it returns. One search at a time.
  void search(SearchKind kind, const DeviceRowData<Queue>& queries, std::int64_t k,
              const KnnOptions& options, Reuse reuse, AnswerOnDevice to, KnnReport* report) {
    const Stopwatch time;
    const SearchSegment segment{&prepared_, {}, options.filter};
    DeviceQuerySearch<Queue> there([this] { return queue_; });
    const SearchRequest request(
        kind, {&segment, 1},
        AnyMatrixView(queries.type, queries.data(), queries.count, queries.dim, queries.dim),
        kind == SearchKind::self_join ? prepared_.found : there.range_of(queries, options.metric),
        k, options, reuse);
    const auto all_on_host = [&](KnnReport* told) {
      send_answers(queue_,
                   here(kind, download_rows(queue_, queries, 0, queries.count).view(), k, options,
                        reuse, told),
                   {}, to);
    };
    if (request.limited() || request.k == 0) return all_on_host(report);  // 0: nothing but padding
    const std::vector<std::int64_t> left = there.nearest(request, queries, to, report);
    const auto set_call_of_all = [&] {
      if (report) set_call(*report, rows_.count, rows_.dim, time);
    };
    if (left.empty()) return set_call_of_all();
    if (std::ssize(left) == queries.count) return all_on_host(report);
    // As queries among all rows, of which they are some in a self-join.
    KnnReport again;
    const bool self = kind == SearchKind::self_join;
    Neighbors found = here(SearchKind::nearest, download_some(queue_, queries, left).view(),
                           k + self, options, reuse, &again);
    if (self) found = others_of(found, left, k);
    send_answers(queue_, found, left, to);
    if (report) add_search_of_the_left(*report, std::ssize(left), again);
    set_call_of_all();
  }

  // All rows within a radius as range_search() has them, in the processor's memory: how many they
  // are is known only then.
  RangeNeighbors range_search(const DeviceRowData<Queue>& queries, double radius,
                              const KnnOptions& options, Reuse reuse, KnnReport* report) {
    const AnyMatrix asked = download_rows(queue_, queries, 0, queries.count);
    const SearchSegment segment{&prepared_, {}, options.filter};
    const SearchRequest request(SearchKind::range, {&segment, 1}, asked, usual_k, options, reuse);
    DeviceSearch<Queue> device(queue_);
    return range_search_on(&device, request, radius, report);
  }

  Metric metric() const { return prepared_.metric; }

 private:
  Neighbors here(SearchKind kind, AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                 Reuse reuse, KnnReport* report) {
    const SearchSegment segment{&prepared_, {}, options.filter};
    const SearchRequest request(kind, {&segment, 1}, queries, k, options, reuse);
    DeviceSearch<Queue> device(queue_);
    return search_on(&device, request, report);
  }
  // Of the k + 1 nearest to rows the k that are others.
  static Neighbors others_of(const Neighbors& found, std::span<const std::int64_t> rows,
                             std::int64_t k) {
    Neighbors out{Matrix<Id>(found.ids.rows(), k), Matrix<float>(found.ids.rows(), k)};
    for (std::int64_t i = 0; i < found.ids.rows(); ++i)
      for (std::int64_t j = 0, to = 0; to < k; ++j) {
        if (found.ids.row(i)[j] == rows[i]) continue;
        out.ids.row(i)[to] = found.ids.row(i)[j];
        out.distances.row(i)[to++] = found.distances.row(i)[j];
      }
    return out;
  }
  Queue queue_;
  DeviceRowData<Queue> rows_;
  PreparedRows prepared_;
};

}  // namespace knear::detail
