// knear/knn/device/device_range_search.hpp -- all rows within a radius by a GPU: it prunes and
// measures (scan/device/range_by_tiles.hpp), the processor keeps and sorts.
//
// The rows on the device are those of an exact search there, and are kept with them. Lists there
// have room for every row of a tile, so only what the device has no memory for is answered by the
// processor (fallback_queries). Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/range_search.hpp"
#include "knear/scan/device/range_by_tiles.hpp"

namespace knear::detail {

template <class Queue>
class DeviceRangeSearch final : public RangeSearch<DeviceSearch<Queue>> {
  using Base = RangeSearch<DeviceSearch<Queue>>;
  using typename DeviceSearch<Queue>::Representation;
  using Base::count_, Base::options_, Base::queries_, Base::stats_, Base::subset_, Base::threads_;

 public:
  // queue: one, or what makes one (DeviceSearch).
  template <class From>
  DeviceRangeSearch(From queue, std::span<const SearchSegment> segments, AnyMatrixView queries,
                    const KnnOptions& options, Reuse reuse)
      : Base(std::move(queue), segments, queries, usual_k, options, reuse, std::int64_t{0}) {
    if (options.memory > 0) this->more_bytes_ += 2 * most_pairs() * pair_bytes;
  }

 protected:
  void range_of_rows(const BaseRows& rows, std::int64_t begin, double limit,
                     RangeSink& sink) override {
    std::vector<std::int64_t> todo = this->all_queries();
    if (const auto allowed = this->allowed_there(rows, begin))
      if (const auto form = this->form_there(rows, begin))
        todo = range_on_device(*form, rows, limit, *allowed, todo, sink);
    this->note_fallback(todo);
    if (todo.empty()) return;
    if (this->prepared().on_device) {
      this->each_copy(rows, begin, todo,
                      [&](SearchSegment segment, AnyMatrixView queries, const KnnOptions& options) {
                        segment.ids = sink.ids().from(segment.ids.first);
                        RangeSearch<Search> search(std::span(&segment, 1), queries, usual_k,
                                                   options, Reuse::none);
                        search.find(limit, sink.lists(), todo);
                        this->note_search(search);
                      });
    } else {
      const AnyMatrix some = this->queries_of(todo);
      RangeSink theirs(sink, todo);
      this->range_on_processor(rows, begin, limit, some.view(), theirs);
    }
  }

 private:
  // Guesses: rows enough that a launch is short beside what it does, queries as many as an exact
  // search with lists of its own would take, copies that are short beside the tile.
  static constexpr std::int64_t usual_tile_rows = 16384, usual_group = 2048,
                                usual_pairs = 256 << 10, most_together = 64 << 10;
  static constexpr auto pair_bytes = static_cast<std::int64_t>(sizeof(PrunedPair));

  // That are copied at once, to each of two buffers: an eighth of the memory for both.
  std::int64_t most_pairs() const {
    if (options_.memory <= 0) return usual_pairs;
    return std::clamp<std::int64_t>(options_.memory / 16 / pair_bytes, 1, usual_pairs);
  }

  // Returns what the device has no memory for.
  std::vector<std::int64_t> range_on_device(Representation& form, const BaseRows& rows,
                                            double limit, const AllowedRows& allowed,
                                            const std::vector<std::int64_t>& todo,
                                            RangeSink& sink) {
    std::lock_guard lock(form.mutex);
    const std::vector<double> upper_bounds(static_cast<std::size_t>(queries_.rows()), limit);
    ScanJob job = this->job_for(queries_, rows, this->k_);
    job.query_range = this->found_;
    job.upper_bounds = upper_bounds.data(), job.allowed = allowed;
    DeviceTileSizes sizes = sizes_for(this->room_on(form));
    ScanStats these;
    std::vector<std::int64_t> left = scan_range_on(*form.queue, *form.scan, job, limit, sizes, todo,
                                                   subset_, sink, these, options_.progress);
    stats_.add(these);
    stats_.buffer_bytes =
        std::max(stats_.buffer_bytes,
                 these.buffer_bytes + this->host_bytes(std::min(sizes.together, queries_.rows())));
    const std::int64_t answered = std::ssize(todo) - std::ssize(left);
    this->note_scored(form.coding, answered, (answered + sizes.group - 1) / sizes.group);
    this->note_on_device(form, answered);
    return left;
  }

  DeviceTileSizes sizes_for(std::size_t free_bytes) const {
    DeviceTileSizes sizes{};
    sizes.group = this->fitting_batch(std::min(usual_group, whole_blocks(queries_.rows())));
    // With a limit the codes of queries are within it.
    sizes.together = options_.memory > 0 ? sizes.group : most_together / sizes.group * sizes.group;
    const std::int64_t at_once = std::clamp<std::int64_t>(queries_.rows(), 1, sizes.group);
    const auto half = static_cast<std::int64_t>(free_bytes / 2);
    sizes.tile_rows = std::clamp(half / (at_once * DeviceTileSizes::bytes_for_pair),
                                 std::int64_t{128}, usual_tile_rows);
    sizes.pairs = std::min(most_pairs(), DeviceTileSizes::usual_pairs(at_once, sizes.tile_rows));
    return sizes;
  }
  static std::int64_t whole_blocks(std::int64_t queries) {
    return (queries + block_queries - 1) / block_queries * block_queries;
  }
};

}  // namespace knear::detail
