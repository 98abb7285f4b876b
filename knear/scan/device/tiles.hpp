// knear/scan/device/tiles.hpp -- the pairs that pass given thresholds, from a GPU: one tile of a
// base after another, while the processor works on the last one.
//
//   DeviceTiles<Queue> tiles(queue, scan, job, Keys::ends, sizes, which);
//   tiles.start(0, 0);
//   for (std::int64_t tile = 0; tile < tiles.tiles(); ++tile) {
//     const auto pairs = tiles.wait(tile % 2);
//     if (tile + 1 < tiles.tiles()) tiles.start(tile + 1, (tile + 1) % 2);
//     ...
//   }
//
// The rows and the kernel that scores them are those of the exact search (device_scan.hpp); here
// thresholds are known from the beginning, and the pairs that pass are compressed on the device,
// measured if asked for (compress.hpp), and copied. The TH-heap (threshold_heap_by_tiles.hpp) and
// range searches (range_by_tiles.hpp) use it.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/scan/device/compress.hpp"
#include "knear/scan/device/device_scan.hpp"
#include "knear/scan/methods/threshold_heap_scan.hpp"

namespace knear::detail {

// The sizes of the steps. Queries are coded `together`, a whole number of groups; the device scans
// the base for a `group`, whole blocks of queries or all of those together. A tile has at most
// `tile_rows` rows; up to `pairs` of a tile are copied at once.
struct DeviceTileSizes {
  std::int64_t together, group, tile_rows, pairs;

  // The usual number of pairs: twice what a sample of 8 k rows lets pass.
  static std::int64_t usual_pairs(std::int64_t group, std::int64_t tile_rows) {
    return std::max<std::int64_t>(1, group * tile_rows / 4);
  }
  // Bytes of device memory for each query of a group and row of a tile.
  static constexpr std::int64_t bytes_for_pair =
      static_cast<std::int64_t>(sizeof(Entry) + sizeof(PrunedPair) / 4);

  std::int64_t tile_panels(std::int64_t panels) const {
    return std::clamp<std::int64_t>(tile_rows / panel_rows, 1, panels);
  }
};

// The keys that pairs are to have: two ends, or the exact key of the reference.
enum class Keys : std::uint8_t { ends, exact };

// The tiles of all groups, those of a group one after another; pairs by query, whose number is its
// place in queries(). Lists have room for every row of a tile, so none is lost; pairs beyond those
// copied at once are fetched while the processor waits.
template <class Queue>
class DeviceTiles final : public PrunedTiles {
  template <class T>
  using Array = typename Queue::template Array<T>;

 public:
  // job.upper_bounds are the thresholds. With exact keys all pairs are returned that pass the test
  // of the codes, so a key may be above its bound. Throws MemoryBudgetError where the device has no
  // room.
  DeviceTiles(Queue& queue, DeviceScan<Queue>& scan, const ScanJob& job, Keys keys,
              const DeviceTileSizes& sizes, std::span<const std::int64_t> which)
      : queue_(queue),
        scan_(scan),
        base_(scan.base()),
        coded_(device_queries(scan.packed(), job.queries, which, job.query_range, job.threads)),
        measured_(keys == Keys::exact && !base_.integer),
        group_(std::min(sizes.group, coded_.count)),
        panels_(sizes.tile_panels(base_.panels)),
        waits_at_exit_{queue} {
    thresholds_ = scan.thresholds_for(
        coded_, {job.upper_bounds, static_cast<std::size_t>(job.queries.rows())});
    if (!job.allowed.all()) scan.limit(limited_, job.allowed);
    base_.allowed = limited_.bits.data();
    const std::int64_t rows = panels_ * panel_rows;
    const std::size_t group = group_;
    const std::size_t pairs = std::clamp<std::int64_t>(sizes.pairs, 1, group_ * rows);
    queries_ = scan.upload_queries(coded_, thresholds_);
    if (measured_) scan.upload_vectors(vectors_, job.queries, coded_.order);
    entries_ = queue_.template allocate<Entry>(group * static_cast<std::size_t>(rows));
    counts_ = queue_.template allocate<int>(group);
    kept_ = queue_.template allocate<int>(group);
    pairs_ = queue_.template allocate<PrunedPair>(pairs);
    queue_.fill_bytes(pairs_.data(), 0, pairs);  // start() copies more than there may be
    total_ = queue_.template allocate<std::int64_t>(1);
    for (Buffer& buffer : buffers_) {
      buffer.pairs = queue_.template allocate_host<PrunedPair>(pairs);
      buffer.total = queue_.template allocate_host<std::int64_t>(1);
    }
  }

  // The queries in the order of the numbers that pairs give.
  const std::vector<std::int64_t>& queries() const { return coded_.order; }
  std::int64_t group() const { return group_; }
  // The number of queries of a tile.
  std::int64_t queries_of(std::int64_t tile) { return at(tile).queries.count; }
  // Whether pairs were measured in float64; whole numbers need not be.
  bool measured() const { return measured_; }
  // Bytes of the processor's memory into which pairs are copied.
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
    queue_.fill_bytes(counts_.data(), 0, now.queries.count);
    launch_scan(queue_, base_, now.queries, lists(), now.begin, now.end);
    launch_compress(queue_, base_, now.queries, lists(), pairs(), now.first_query);
    measure(0);
    queue_.download(buffer.total.data(), total_.data(), 1);
    // As many as the last tile had: panels are in random order, so tiles are alike.
    buffer.tile = tile, buffer.copied = std::min(last_total_, pairs().room);
    queue_.download(buffer.pairs.data(), pairs_.data(), buffer.copied);
  }
  // Requires that no other tile was started since.
  std::span<const PrunedPair> wait(int number) override {
    Buffer& buffer = buffers_[number];
    const auto first = wait_first(number);
    if (all_taken(number)) return first;
    buffer.more.clear();
    buffer.more.reserve(*buffer.total.data());
    for (auto some = first; !some.empty(); some = next(number))
      buffer.more.insert(buffer.more.end(), some.begin(), some.end());
    return buffer.more;
  }

  // As wait(), in pieces of as many pairs as are copied at once, each valid until the next; empty
  // after the last. No other tile may be started before that.
  std::span<const PrunedPair> wait_first(int number) {
    Buffer& buffer = buffers_[number];
    queue_.wait();
    last_total_ = *buffer.total.data();
    buffer.taken = std::min(last_total_, pairs().room);
    if (buffer.taken > buffer.copied) {
      queue_.download(buffer.pairs.data() + buffer.copied, pairs_.data() + buffer.copied,
                      buffer.taken - buffer.copied);
      queue_.wait();
    }
    return {buffer.pairs.data(), static_cast<std::size_t>(buffer.taken)};
  }
  std::span<const PrunedPair> next(int number) {
    Buffer& buffer = buffers_[number];
    if (all_taken(number)) return {};
    const Tile now = at(buffer.tile);
    launch_compress_more(queue_, base_, now.queries, lists(), pairs(), now.first_query,
                         buffer.taken);
    measure(buffer.taken);
    const std::size_t count = std::min(pairs().room, *buffer.total.data() - buffer.taken);
    queue_.download(buffer.pairs.data(), pairs_.data(), count);
    queue_.wait();
    buffer.taken += static_cast<std::int64_t>(count);
    return {buffer.pairs.data(), count};
  }
  // Whether next() has no more pairs for this buffer.
  bool all_taken(int number) const {
    return buffers_[number].taken >= *buffers_[number].total.data();
  }

 private:
  struct Buffer {
    typename Queue::template HostArray<PrunedPair> pairs;
    typename Queue::template HostArray<std::int64_t> total;
    std::vector<PrunedPair> more;  // all pairs of a tile that has more than fit `pairs`
    // Pairs copied before their number was known; and pairs returned.
    std::int64_t tile = 0, copied = 0, taken = 0;
  };
  struct Tile {
    DeviceQueryView queries;
    std::int64_t first_query, begin, end;  // places in the order of panels
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
  // Measures the pairs in the array, of which the first is number `begin` of the tile.
  void measure(std::int64_t begin) {
    if (!measured_) return;
    const DeviceRowData<Queue>& rows = scan_.rows();
    launch_measure_pairs(queue_, base_, pairs(), begin, vectors_.elements.data(),
                         vectors_.squares.data(), rows.data(), rows.type, rows.dim);
  }

  Queue& queue_;
  DeviceScan<Queue>& scan_;
  DeviceBaseView base_;
  const DeviceQueries coded_;
  const bool measured_;
  const std::int64_t group_, panels_;  // panels of a tile
  std::vector<double> thresholds_;     // by place
  typename DeviceScan<Queue>::Limited limited_;
  typename DeviceScan<Queue>::Queries queries_;
  typename DeviceScan<Queue>::Vectors vectors_;
  Array<Entry> entries_;
  Array<int> counts_, kept_;
  Array<PrunedPair> pairs_;
  Array<std::int64_t> total_;
  Buffer buffers_[2];
  std::int64_t last_total_ = 0;
  const StreamSyncGuard<Queue> waits_at_exit_;
};

// Calls f(tiles) for all of the queries `which`, as many together as the device has memory for:
// `sizes` are made smaller if necessary. Returns the queries for which it has none.
template <class Queue, class F>
std::vector<std::int64_t> with_tiles(Queue& queue, DeviceScan<Queue>& scan, const ScanJob& job,
                                     Keys keys, DeviceTileSizes& sizes,
                                     const std::vector<std::int64_t>& which, F f) {
  const std::int64_t count = std::ssize(which);
  for (std::int64_t first = 0, taken; first < count; first += taken) {
    taken = std::min(sizes.together, count - first);
    const auto some = std::span(which).subspan(first, taken);
    std::optional<DeviceTiles<Queue>> tiles;
    try {
      tiles.emplace(queue, scan, job, keys, sizes, some);
    } catch (const MemoryBudgetError&) {
      if (taken <= block_queries) return {which.begin() + first, which.end()};
      // Fewer at a time, from here on.
      sizes.together =
          std::max<std::int64_t>(block_queries, taken / 2 / block_queries * block_queries);
      sizes.group = std::min(sizes.group, sizes.together);
      sizes.pairs =
          std::min(sizes.pairs, DeviceTileSizes::usual_pairs(sizes.group, sizes.tile_rows));
      taken = 0;
      continue;
    }
    f(*tiles);
  }
  return {};
}

}  // namespace knear::detail
