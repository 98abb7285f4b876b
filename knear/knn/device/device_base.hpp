// knear/knn/device/device_base.hpp -- searches of vectors that are in the memory of a device
// already.
//
// What DeviceSearch does with rows of the processor, with those of somebody else: nothing of the
// base is copied, but for a sample of some thousand rows that says where they lie. Queries come to
// the processor, which codes them, and the k nearest go back; for a self-join the rows are the
// queries. What lies within a radius stays with the processor, which has sorted it. Queue:
// cuda::Queue, or the emulated one of the tests.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/search.hpp"

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

  // Where an answer goes: [queries x k] each, in device memory.
  struct Destination {
    Id* ids;
    float* distances;
  };

  // The k nearest as knn() has them, or as self_join() does, with the rows for queries. One search
  // at a time.
  Neighbors search(SearchKind kind, const DeviceRowData<Queue>& queries, std::int64_t k,
                   const KnnOptions& options, Reuse reuse, KnnReport* report) {
    const AnyMatrix asked = download_rows(queue_, queries, 0, queries.count);
    const SearchSegment segment{&prepared_, {}, options.filter};
    const SearchRequest request(kind, {&segment, 1}, asked, k, options, reuse);
    DeviceSearch<Queue> device(queue_);
    return search_on(&device, request, report);
  }
  // Sends an answer to the device, where it is when this returns.
  void send(const Neighbors& found, Destination to) {
    const auto count = static_cast<std::size_t>(found.ids.rows() * found.ids.cols());
    const StreamSyncGuard waits_at_exit{queue_};
    queue_.upload(to.ids, found.ids.data(), count);
    queue_.upload(to.distances, found.distances.data(), count);
    queue_.wait();
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
  Queue queue_;
  DeviceRowData<Queue> rows_;
  PreparedRows prepared_;
};

}  // namespace knear::detail
