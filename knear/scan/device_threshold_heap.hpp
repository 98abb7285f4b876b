// knear/scan/device_threshold_heap.hpp -- the TH-heap across devices: distances, thresholds and
// compression on a GPU, heaps on the processor, both at work at once.
//
//   auto left = scan_threshold_heap_on(queue, scan, job, sizes, which, out, stats, heap, progress);
//
// As Matsumoto and Yiu (2015), section III, have it. The rows and the kernel that scores them are
// those of the exact search (device_scan.hpp); here thresholds stand from the beginning, and what
// passes them is compressed there (device_compress.hpp) and copied. While the processor compresses
// and sorts what came of one tile, the device is at the next, also where that is of other queries.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/scan/device_compress.hpp"
#include "knear/scan/device_scan.hpp"
#include "knear/scan/threshold_heap.hpp"

namespace knear::detail {

// How the work is cut. Queries are coded `together`, a whole number of groups; the device goes over
// the base for a `group`, whole blocks of queries or all of those together; `batch` as in
// scan_threshold_heap. A tile has so many rows at most; up to `pairs` of a tile are copied at once.
struct DeviceHeapSizes {
  std::int64_t together, group, batch, tile_rows, pairs;

  // The usual number of pairs: twice what a sample of 8 k rows lets pass.
  static std::int64_t usual_pairs(std::int64_t group, std::int64_t tile_rows) {
    return std::max<std::int64_t>(1, group * tile_rows / 4);
  }
  // Of device memory that these take for each query of a group and row of a tile.
  static constexpr std::int64_t bytes_for_pair =
      static_cast<std::int64_t>(sizeof(Entry) + sizeof(PrunedPair) / 4);

  std::int64_t tile_panels(std::int64_t panels) const {
    return std::clamp<std::int64_t>(tile_rows / panel_rows, 1, panels);
  }
};

// The tiles of all groups, those of a group one after another; pairs by query, whose number is its
// place in queries(). Lists have room for every row of a tile, so none is lost; of more pairs than
// are copied at once the others are fetched while the processor waits.
template <class Queue>
class DeviceTiles final : public PrunedTiles {
  template <class T>
  using Array = typename Queue::template Array<T>;

 public:
  // job.bars are the thresholds. Throws MemoryBudgetError where the device has no room.
  DeviceTiles(Queue& queue, DeviceScan<Queue>& scan, const ScanJob& job,
              const DeviceHeapSizes& sizes, std::span<const std::int64_t> which)
      : queue_(queue),
        base_(scan.base()),
        coded_(device_queries(scan.packed(), job.queries, which, job.query_survey, job.threads)),
        group_(std::min(sizes.group, coded_.count)),
        panels_(sizes.tile_panels(base_.panels)),
        settled_{queue} {
    thresholds_ =
        scan.thresholds_for(coded_, {job.bars, static_cast<std::size_t>(job.queries.rows())});
    if (!job.allowed.all()) scan.limit(limited_, job.allowed);
    base_.allowed = limited_.bits.data();
    const std::int64_t rows = panels_ * panel_rows;
    const auto group = static_cast<std::size_t>(group_);
    const auto pairs =
        static_cast<std::size_t>(std::clamp<std::int64_t>(sizes.pairs, 1, group_ * rows));
    queries_ = scan.upload_queries(coded_, thresholds_);
    entries_ = queue_.template allocate<Entry>(group * static_cast<std::size_t>(rows));
    counts_ = queue_.template allocate<int>(group);
    kept_ = queue_.template allocate<int>(group);
    pairs_ = queue_.template allocate<PrunedPair>(pairs);
    total_ = queue_.template allocate<std::int64_t>(1);
    for (Buffer& buffer : buffers_) {
      buffer.pairs = queue_.template allocate_host<PrunedPair>(pairs);
      buffer.total = queue_.template allocate_host<std::int64_t>(1);
    }
  }

  // In the order of their numbers.
  const std::vector<std::int64_t>& queries() const { return coded_.order; }
  std::int64_t group() const { return group_; }
  // Of the processor's memory: what copies arrive in.
  std::int64_t bytes() const {
    std::size_t pairs = 0;
    for (const Buffer& buffer : buffers_) pairs += buffer.pairs.size() + buffer.more.capacity();
    return static_cast<std::int64_t>(pairs * sizeof(PrunedPair));
  }

  std::int64_t tiles() const override {
    return (coded_.count + group_ - 1) / group_ * tiles_of_group();
  }
  void start(std::int64_t tile, int number) override {
    const Tile now = at(tile);
    Buffer& buffer = buffers_[number];
    queue_.fill_bytes(counts_.data(), 0, static_cast<std::size_t>(now.queries.count));
    launch_scan(queue_, base_, now.queries, lists(), now.begin, now.end);
    launch_compress(queue_, base_, now.queries, lists(), pairs(), now.first_query);
    queue_.download(buffer.total.data(), total_.data(), 1);
    // As many as there were last: panels are gone over in an order of chance, so tiles are alike.
    buffer.tile = tile, buffer.copied = std::min(last_total_, pairs().room);
    queue_.download(buffer.pairs.data(), pairs_.data(), static_cast<std::size_t>(buffer.copied));
  }
  // Nothing else may have been started since.
  std::span<const PrunedPair> wait(int number) override {
    Buffer& buffer = buffers_[number];
    queue_.wait();
    const std::int64_t total = last_total_ = *buffer.total.data(), room = pairs().room;
    if (total > room) return fetch_by_parts(buffer, total);
    if (total > buffer.copied) {
      queue_.download(buffer.pairs.data() + buffer.copied, pairs_.data() + buffer.copied,
                      static_cast<std::size_t>(total - buffer.copied));
      queue_.wait();
    }
    return {buffer.pairs.data(), static_cast<std::size_t>(total)};
  }

 private:
  struct Buffer {
    typename Queue::template HostArray<PrunedPair> pairs;
    typename Queue::template HostArray<std::int64_t> total;
    std::vector<PrunedPair> more;  // a tile with more than those have room for
    std::int64_t tile = 0, copied = 0;
  };
  struct Tile {
    DeviceQueryView queries;
    std::int64_t first_query, begin, end;  // panels of the order
  };

  std::int64_t tiles_of_group() const { return (base_.panels + panels_ - 1) / panels_; }
  Tile at(std::int64_t tile) {
    const std::int64_t first = tile / tiles_of_group() * group_;
    const std::int64_t begin = tile % tiles_of_group() * panels_;
    return {queries_.view(first, std::min(group_, coded_.count - first)), first, begin,
            std::min(base_.panels, begin + panels_)};
  }
  DeviceLists lists() {
    return {entries_.data(), nullptr, counts_.data(), nullptr,
            static_cast<int>(panels_ * panel_rows)};
  }
  DevicePairs pairs() {
    return {pairs_.data(), kept_.data(), total_.data(), static_cast<std::int64_t>(pairs_.size())};
  }

  std::span<const PrunedPair> fetch_by_parts(Buffer& buffer, std::int64_t total) {
    const Tile now = at(buffer.tile);
    const std::int64_t room = pairs().room;
    buffer.more.resize(static_cast<std::size_t>(total));
    for (std::int64_t begin = 0; begin < total; begin += room) {
      if (begin > 0)
        launch_compress_more(queue_, base_, now.queries, lists(), pairs(), now.first_query, begin);
      queue_.download(buffer.more.data() + begin, pairs_.data(),
                      static_cast<std::size_t>(std::min(room, total - begin)));
    }
    queue_.wait();
    return buffer.more;
  }

  Queue& queue_;
  DeviceBaseView base_;
  const DeviceQueries coded_;
  const std::int64_t group_, panels_;  // panels of a tile
  std::vector<double> thresholds_;     // by place
  typename DeviceScan<Queue>::Limited limited_;
  typename DeviceScan<Queue>::Queries queries_;
  Array<Entry> entries_;
  Array<int> counts_, kept_;
  Array<PrunedPair> pairs_;
  Array<std::int64_t> total_;
  Buffer buffers_[2];
  std::int64_t last_total_ = 0;
  const Settled<Queue> settled_;
};

// Fills rows `which` of `out` as scan_threshold_heap() does; returns the queries for which the
// device has no memory, whose rows are untouched. job.base: the rows that were packed; sizes: made
// smaller where the device has no memory for them. Throws Cancelled.
template <class Queue>
std::vector<std::int64_t> scan_threshold_heap_on(Queue& queue, DeviceScan<Queue>& scan,
                                                 const ScanJob& job, DeviceHeapSizes& sizes,
                                                 const std::vector<std::int64_t>& which,
                                                 ExactLists& out, ScanStats& stats,
                                                 ThresholdHeapStats& heap,
                                                 const Progress& progress) {
  std::vector<std::int64_t> left;
  const std::int64_t count = std::ssize(which), panels = scan.base().panels;
  const std::int64_t tile_panels = sizes.tile_panels(panels);
  Reporter reporter(progress, "search", count * ((panels + tile_panels - 1) / tile_panels));
  for (std::int64_t first = 0, taken; first < count; first += taken) {
    taken = std::min(sizes.together, count - first);
    const auto some =
        std::span(which).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(taken));
    std::optional<DeviceTiles<Queue>> tiles;
    try {
      tiles.emplace(queue, scan, job, sizes, some);
    } catch (const MemoryBudgetError&) {
      if (taken <= block_queries) {
        left.assign(which.begin() + first, which.end());
        break;
      }
      // With fewer at a time, from here on.
      sizes.together = sizes.group = std::max<std::int64_t>(block_queries, taken / 2);
      sizes.pairs = DeviceHeapSizes::usual_pairs(sizes.group, sizes.tile_rows);
      taken = 0;
      continue;
    }
    ScanStats these;
    sort_pruned_tiles(*tiles, tiles->group(), job, scan.packed().rows, sizes.batch,
                      tiles->queries(), out, these, heap, reporter);
    stats.add(these);
    stats.buffer_bytes = std::max(stats.buffer_bytes, these.buffer_bytes + tiles->bytes());
  }
  return left;
}

}  // namespace knear::detail
