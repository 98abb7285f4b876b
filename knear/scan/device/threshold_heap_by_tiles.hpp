// knear/scan/device/threshold_heap_by_tiles.hpp -- the TH-heap across devices: distances,
// thresholds and compression on a GPU, heaps on the processor, both at work at once.
//
//   auto left = scan_threshold_heap_on(queue, scan, job, sizes, batch, which, out, stats, heap,
//                                      progress);
//
// The pipeline of Matsumoto and Yiu (2015), section III: while the processor compresses and sorts
// the pairs of one tile (tiles.hpp), the device works on the next, even if that is for other
// queries.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "knear/scan/device/tiles.hpp"

namespace knear::detail {

// Fills rows `which` of `out` as scan_threshold_heap() does; returns the queries for which the
// device has no memory, whose rows are untouched. job.base: the rows that were packed. sizes: made
// smaller where the device has no memory for them. Throws Cancelled.
template <class Queue>
std::vector<std::int64_t> scan_threshold_heap_on(
    Queue& queue, DeviceScan<Queue>& scan, const ScanJob& job, DeviceTileSizes& sizes,
    std::int64_t batch, const std::vector<std::int64_t>& which, ExactNeighbors& out,
    ScanStats& stats, ThresholdHeapStats& heap, const Progress& progress) {
  const std::int64_t panels = scan.base().panels, tile_panels = sizes.tile_panels(panels);
  Reporter reporter(progress, "search",
                    std::ssize(which) * ((panels + tile_panels - 1) / tile_panels));
  return with_tiles(queue, scan, job, Keys::ends, sizes, which, [&](DeviceTiles<Queue>& tiles) {
    ScanStats these;
    sort_pruned_tiles(tiles, tiles.group(), job, scan.packed().rows, batch, tiles.queries(), out,
                      these, heap, reporter);
    stats.add(these);
    stats.buffer_bytes = std::max(stats.buffer_bytes, these.buffer_bytes + tiles.bytes());
  });
}

}  // namespace knear::detail
