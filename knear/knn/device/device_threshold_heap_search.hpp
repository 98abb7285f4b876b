// knear/knn/device/device_threshold_heap_search.hpp -- the method threshold-heap across devices: a
// GPU prunes and compresses (scan/device/threshold_heap_by_tiles.hpp), the processor sorts.
//
// The rows on the device are those of an exact search there, and are kept with them. The processor
// searches the sample, and does everything for queries that the device has no memory for
// (fallback_queries); k has no limit. Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/threshold_heap_search.hpp"
#include "knear/scan/device/threshold_heap_by_tiles.hpp"

namespace knear::detail {

template <class Queue>
class DeviceThresholdHeap final : public ThresholdHeap<DeviceSearch<Queue>> {
  using Base = ThresholdHeap<DeviceSearch<Queue>>;
  using typename DeviceSearch<Queue>::Representation;
  using Base::allowed_rows_, Base::batch_, Base::heap_, Base::k_, Base::options_, Base::queries_,
      Base::stats_, Base::threads_;

 public:
  // queue: one, or what makes one (DeviceSearch).
  template <class From>
  DeviceThresholdHeap(From queue, std::span<const SearchSegment> segments, AnyMatrixView queries,
                      std::int64_t k, const KnnOptions& options, Reuse reuse)
      : Base(std::move(queue), segments, queries, k, options, reuse, std::int64_t{0}) {
    // So many that every thread has some to sort.
    if (options.method.query_batch == 0)
      batch_ = std::clamp<std::int64_t>((queries.rows() + threads_ - 1) / threads_, 1, batch_);
    // Each thread has a batch of a group. Copies arrive in what tiles of the processor would take;
    // codes of queries are beside that.
    const std::int64_t coded = this->host_bytes(1) - this->host_bytes(0);
    this->fit_memory((threshold_heap_bytes(allowed_rows_, k_) + coded) * threads_);
  }

 protected:
  void search_rows(const BaseRows& rows, std::int64_t begin, ExactNeighbors& out) override {
    const std::vector<double> upper_bounds = this->upper_bounds();
    std::vector<std::int64_t> todo = this->all_queries();
    ScanJob job = this->job_for(queries_, rows, out.columns());
    job.query_range = this->found_, job.pending = this->most_pending();
    job.upper_bounds = upper_bounds.data();
    job.allowed = this->allowed_rows(rows, begin);
    if (options_.metric != Metric::l2) this->answer_zero_queries(todo, job.allowed, out);
    // Where the device has no memory for the rows, or for a few queries, the processor has.
    if (const auto form = this->form_there(rows, begin))
      todo = search_across(*form, job, todo, out);
    this->note_fallback(todo);
    if (!todo.empty()) this->search_on_processor(rows, begin, upper_bounds, std::move(todo), out);
  }

 private:
  // A guess: enough rows that a launch is short beside what it does.
  static constexpr std::int64_t usual_tile_rows = 16384;
  // Without a limit, of the processor's memory for compressed rows; and queries coded at once.
  static constexpr std::int64_t usual_bytes = std::int64_t{1} << 30, most_together = 64 << 10;

  // Returns what the device has no memory for.
  std::vector<std::int64_t> search_across(Representation& form, const ScanJob& job,
                                          const std::vector<std::int64_t>& todo,
                                          ExactNeighbors& out) {
    std::lock_guard lock(form.mutex);
    DeviceTileSizes sizes = sizes_for(this->room_on(form));
    std::vector<std::int64_t> left = scan_threshold_heap_on(
        *form.queue, *form.scan, job, sizes, batch_, todo, out, stats_, heap_, options_.progress);
    const std::int64_t answered = std::ssize(todo) - std::ssize(left);
    this->note_scored(form.coding, answered, (answered + sizes.group - 1) / sizes.group);
    this->note_on_device(form, answered);
    return left;
  }

  DeviceTileSizes sizes_for(std::size_t free_bytes) const {
    DeviceTileSizes sizes{};
    std::int64_t tile_rows = usual_tile_rows;
    if (options_.memory > 0) {
      // As many at once as threads of the processor would take, and what arrives of a tile in the
      // memory of theirs.
      sizes.together = sizes.group = batch_ * threads_;
      tile_rows = 2048;
    } else {
      const std::int64_t each = threshold_heap_bytes(allowed_rows_, k_);
      const std::int64_t wanted = std::max(batch_, usual_bytes / each);
      sizes.group =
          (std::min(wanted, queries_.rows()) + block_queries - 1) / block_queries * block_queries;
      sizes.together = std::max<std::int64_t>(1, most_together / sizes.group) * sizes.group;
    }
    const std::int64_t at_once = std::clamp<std::int64_t>(queries_.rows(), 1, sizes.group);
    const auto half = static_cast<std::int64_t>(free_bytes / 2);
    sizes.tile_rows = std::clamp(half / (at_once * DeviceTileSizes::bytes_for_pair),
                                 std::int64_t{128}, tile_rows);
    sizes.pairs = DeviceTileSizes::usual_pairs(at_once, sizes.tile_rows);
    return sizes;
  }
};

}  // namespace knear::detail
