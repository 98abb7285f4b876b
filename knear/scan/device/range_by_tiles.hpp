// knear/scan/device/range_by_tiles.hpp -- all rows within a radius, on a GPU: it prunes and
// measures one tile of rows after another, while the processor sorts the pairs of the last one into
// lists.
//
//   auto left = scan_range_on(queue, scan, job, limit, sizes, which, {}, sink, stats, progress);
//
// The threshold is known from the beginning, so a tile is scored, compressed and measured on the
// device (tiles.hpp). Some of the pairs that pass have a larger key than the limit: the processor
// drops them on the way, which costs less than another pass on the device.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "knear/scan/device/tiles.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

// As scan_range() for the queries `which`; returns those for which the device has no memory and the
// sink has no pairs. job.upper_bounds: the limit for each query. rows: the row of job.base for each
// packed row; empty: the same number. sizes: made smaller where the device has no memory for them.
// Throws Cancelled.
template <class Queue>
std::vector<std::int64_t> scan_range_on(Queue& queue, DeviceScan<Queue>& scan, const ScanJob& job,
                                        double limit, DeviceTileSizes& sizes,
                                        const std::vector<std::int64_t>& which,
                                        std::span<const std::uint32_t> rows, RangeSink& sink,
                                        ScanStats& stats, const Progress& progress) {
  const std::int64_t panels = scan.base().panels, tile_panels = sizes.tile_panels(panels);
  Reporter reporter(progress, "search",
                    std::ssize(which) * ((panels + tile_panels - 1) / tile_panels));
  return with_tiles(queue, scan, job, Keys::exact, sizes, which, [&](DeviceTiles<Queue>& tiles) {
    const auto take = [&](std::span<const PrunedPair> pairs) {
      sink.take(pairs, tiles.queries(), rows, limit, job.threads);
      stats.hits += std::ssize(pairs);
      if (tiles.measured()) stats.survivors += std::ssize(pairs);
    };
    tiles.start(0, 0);
    for (std::int64_t tile = 0, all = tiles.tiles(); tile < all; ++tile) {
      const int buffer = static_cast<int>(tile % 2);
      std::span<const PrunedPair> pairs = tiles.wait_first(buffer);
      for (; !tiles.all_taken(buffer); pairs = tiles.next(buffer)) take(pairs);
      if (tile + 1 < all) tiles.start(tile + 1, 1 - buffer);
      take(pairs);
      reporter.add(tiles.queries_of(tile));
    }
    stats.buffer_bytes = std::max(stats.buffer_bytes, tiles.bytes());
  });
}

}  // namespace knear::detail
