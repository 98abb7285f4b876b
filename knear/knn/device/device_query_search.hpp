// knear/knn/device/device_query_search.hpp -- searches of rows that stay on a device, for queries
// that are in its memory: they are used in place, and the answers stay there.
//
//   DeviceQuerySearch<Queue> search([] { return Queue(0); });
//   auto left = search.nearest(request, queries, {ids, distances}, report);   // [queries x k] each
//
// What crosses the bus is 8 bytes for each query and segment of the rows, whose lists may have been
// full; what a filter or removed rows take, a bit a row; and some numbers that do not grow. Queries
// of zeros, to which by ip and cosine all rows are equally near, and those whose lists were full
// are left to the caller.
//
// Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "knear/knn/device/device_search.hpp"
#include "knear/scan/device/answer_launches.hpp"

namespace knear::detail {

// Where an answer goes: [queries x k] each, in device memory.
struct AnswerOnDevice {
  Id* ids;
  float* distances;
};

// Calls f(place, number, count) for numbers that follow one another; ascending.
template <class F>
void each_run(std::span<const std::int64_t> numbers, F f) {
  for (std::size_t from = 0, end; from < numbers.size(); from = end) {
    for (end = from + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    f(static_cast<std::int64_t>(from), numbers[from], static_cast<std::int64_t>(end - from));
  }
}
// These of the rows, ascending, in the memory of the processor.
template <class Queue>
AnyMatrix download_some(Queue& queue, const DeviceRowData<Queue>& rows,
                        std::span<const std::int64_t> which) {
  AnyMatrix out(rows.type, std::ssize(which), rows.dim);
  const StreamSyncGuard waits_at_exit{queue};
  each_run(which, [&](std::int64_t place, std::int64_t row, std::int64_t count) {
    const std::int64_t bytes = rows.dim * size_of(rows.type);
    queue.download(static_cast<unsigned char*>(out.row(place)),
                   static_cast<const unsigned char*>(rows.data()) + row * bytes, count * bytes);
  });
  queue.wait();
  return out;
}
// Sends answers [queries x k] of these queries, ascending, of all where none are named; they are
// there when this returns.
template <class Queue>
void send_answers(Queue& queue, const Neighbors& found, std::span<const std::int64_t> which,
                  AnswerOnDevice to) {
  const std::int64_t k = found.ids.cols();
  const StreamSyncGuard waits_at_exit{queue};
  const auto send = [&](std::int64_t place, std::int64_t query, std::int64_t count) {
    const std::size_t places = count * k;
    queue.upload(to.ids + query * k, found.ids.row(place), places);
    queue.upload(to.distances + query * k, found.distances.row(place), places);
  };
  if (which.empty())
    send(0, 0, found.ids.rows());
  else
    each_run(which, send);
  queue.wait();
}
// Adds to the report of a search what that of the queries says that it left.
inline void add_search_of_the_left(KnnReport& report, std::int64_t left, const KnnReport& again) {
  report.scan.repeated_queries += left;
  report.scan.fallback_queries += again.scan.fallback_queries;
  report.device.bytes = std::max(report.device.bytes, again.device.bytes);
  report.memory_bytes = std::max(report.memory_bytes, again.memory_bytes);
  report.prepare_seconds += again.prepare_seconds;
}

template <class Queue>
class DeviceQuerySearch {
  template <class T>
  using Array = typename Queue::template Array<T>;

 public:
  explicit DeviceQuerySearch(std::function<Queue()> open)
      : open_(std::move(open)), queue_(open_()), device_(open_) {}

  // The range of queries, as find_value_range() has it. Throws InvalidArgument likewise.
  ValueRange range_of(const DeviceRowData<Queue>& queries, Metric metric) {
    return value_range_of_rows(queue_, queries, metric, "queries");
  }

  // Writes the answer of nearest_in_segments(request), rounded, for all queries but those that it
  // returns, ascending. The request has their shape; of a self-join, whose queries are the rows of
  // its one segment, they are left out of their own answers. It is there when this returns.
  std::vector<std::int64_t> nearest(const SearchRequest& request,
                                    const DeviceRowData<Queue>& queries, AnswerOnDevice to,
                                    KnnReport* report) {
    SearchPosition at(request, &device_);
    ReportBuilder builder;
    builder.learns = false;
    std::vector<std::int64_t> left;
    try {
      left = search(at, builder, queries, to);
    } catch (const MemoryBudgetError&) {
      left = at.all_queries();
    }
    if (report) {
      *report = builder.report(at);
      set_promise(*report, request, all_exact(request.queries.rows()));
    }
    return left;
  }

 private:
  // Keys and ids of all queries.
  struct Answers {
    Array<double> keys;
    Array<Id> ids;
  };

  std::vector<std::int64_t> search(SearchPosition& at, ReportBuilder& report,
                                   const DeviceRowData<Queue>& queries, AnswerOnDevice to) {
    const SearchRequest& request = at.request;
    const std::int64_t count = queries.count, columns = request.k;
    if (count == 0) return {};
    std::vector<char> is_left = zero_queries(queries, request.options.metric);
    const std::size_t places = count * columns;
    Answers now, next;
    auto bounds = queue_.template allocate<double>(count);
    std::int64_t had = 0;
    for (const SearchRequest::Segment& segment : request.segments) {
      at.enter(segment, 0, segment.given.rows->base.rows());
      ++at.chunks;
      next.keys = queue_.template allocate<double>(places);
      next.ids = queue_.template allocate<Id>(places);
      const RowIds ids = at.ids();
      const std::shared_ptr<IdsOnDevice> table = ids.ids ? ids_on_device(at, ids) : nullptr;
      queue_.wait();  // its memory is used by the work of another queue
      const std::int64_t k = std::min(columns, at.count);
      const std::vector<std::int64_t> others = device_.nearest_on_device(
          at, report, queries, k, had == columns ? bounds.data() : nullptr,
          [&](const RowsOnDevice<Queue>& rows, const auto& found) {
            AnswerMerge merge = {};
            if (had > 0) {
              merge.had_keys = now.keys.data(), merge.had_ids = now.ids.data();
              merge.had = columns;
            }
            merge.keys = found.keys, merge.rows = found.rows, merge.order = found.order;
            merge.lost = found.lost;
            merge.first = found.first, merge.count = found.count, merge.k = found.k;
            if (table) merge.ids = table->ids.data();
            merge.first_id = ids.first;
            merge.out_keys = next.keys.data(), merge.out_ids = next.ids.data();
            merge.bounds = bounds.data(), merge.columns = columns;
            launch_merge_answers(*rows.queue, merge);
          });
      for (const std::int64_t q : others) is_left[q] = 1;
      if (std::ssize(others) == count) break;
      std::swap(now, next);
      had = std::min(columns, had + k);
    }
    std::vector<std::int64_t> left;
    for (std::int64_t q = 0; q < count; ++q)
      if (is_left[q]) left.push_back(q);
    if (std::ssize(left) < count) {
      const bool negated = larger_is_nearer(request.options.metric);
      if (request.kind == SearchKind::self_join)
        launch_round_others(queue_, now.keys.data(), now.ids.data(), columns, count,
                            request.k_asked - 1, negated, to.ids, to.distances);
      else
        launch_round_answers(queue_, now.keys.data(), now.ids.data(), columns, count,
                             request.k_asked, negated, to.ids, to.distances);
      queue_.wait();
    }
    return left;
  }

  // 1 for queries of zeros, where these are left.
  std::vector<char> zero_queries(const DeviceRowData<Queue>& queries, Metric metric) {
    std::vector<char> out(queries.count);
    if (traits_of(metric).squared) return out;
    auto flags = queue_.template allocate<unsigned char>(out.size());
    auto zeros = queue_.template allocate<int>(1);
    queue_.fill_bytes(zeros.data(), 0, 1);
    launch_find_zero_rows(queue_, queries.data(), queries.type, queries.count, queries.dim,
                          flags.data(), zeros.data());
    int found = 0;
    const StreamSyncGuard arrived{queue_};
    queue_.download(&found, zeros.data(), 1);
    queue_.wait();
    if (found == 0) return out;
    queue_.download(reinterpret_cast<unsigned char*>(out.data()), flags.data(), out.size());
    queue_.wait();
    return out;
  }

  // Ids of the rows of a segment that do not count up; they stay as the rows do.
  struct IdsOnDevice {
    std::shared_ptr<Queue> queue;
    Array<Id> ids;
  };
  std::shared_ptr<IdsOnDevice> ids_on_device(const SearchPosition& at, const RowIds& ids) {
    const std::string name = fmt::format("{} ids", parse_device(at.request.options.device).index);
    return std::static_pointer_cast<IdsOnDevice>(at.prepared().device_copies.form(name, [&] {
      auto out = std::make_shared<IdsOnDevice>();
      out->queue = std::make_shared<Queue>(open_());
      const std::size_t rows = at.base().rows();
      out->ids = out->queue->template allocate<Id>(rows);
      const StreamSyncGuard sent{*out->queue};
      out->queue->upload(out->ids.data(), ids.ids, rows);
      out->queue->wait();
      return out;
    }));
  }

  const std::function<Queue()> open_;
  Queue queue_;
  DeviceSearch<Queue> device_;
};

}  // namespace knear::detail
