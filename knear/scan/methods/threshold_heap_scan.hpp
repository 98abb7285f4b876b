// knear/scan/methods/threshold_heap_scan.hpp -- the TH-heap's way through a base: distances are
// pruned by a threshold that stands from the beginning, compressed, and sorted by one min-max heap
// a query.
//
// After Matsumoto and Yiu, "Accelerating Exact Similarity Search on CPU-GPU Systems" (2015),
// section III: job.upper_bounds are the thresholds, each the k-th key of a sample of the base. The
// distances of a batch of queries and a tile of rows are pruned in the registers, by the scan's
// kernels or by a GPU (PrunedTiles; scan/device/threshold_heap_by_tiles.hpp). While one tile is
// compressed the next is on its way, and while one batch is sorted other threads compute theirs, or
// the GPU goes on.
//
// With interval instead of exact scores the heap finds the k smallest lower ends; what begins no
// later than the k-th of them and the widest interval together is measured in float64. So the
// answer is exact, and that of every other method.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/methods/pruned_pair.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// Distances of one batch of queries to the rows of a base, tile by tile. A tile is waited for
// before the next one is started.
class PrunedTiles {
 public:
  virtual ~PrunedTiles() = default;
  virtual std::int64_t tiles() const = 0;
  // Begins to compute a tile into one of two buffers, 0 or 1.
  virtual void start(std::int64_t tile, int buffer) = 0;
  // What is in a buffer once it is done, until that buffer is started again.
  virtual std::span<const PrunedPair> wait(int buffer) = 0;
};

struct ThresholdHeapStats {
  double sort_seconds = 0;    // of heaps and what follows them, a sum over threads
  double compress_sum = 0;    // of Eq. 4 over batches
  std::int64_t batches = 0;   // of queries
  std::int64_t kept = 0;      // pairs that passed, over all queries
  std::int64_t measured = 0;  // in float64

  void add(const ThresholdHeapStats& task) {
    sort_seconds += task.sort_seconds, compress_sum += task.compress_sum;
    batches += task.batches, kept += task.kept, measured += task.measured;
  }
};

// Most bytes that one query of a batch takes while it is searched for among so many rows.
std::int64_t threshold_heap_bytes(std::int64_t rows, std::int64_t k);

// As scan(), with job.upper_bounds as thresholds: rows whose key exceeds the bound are not looked
// at, those that equal it are. batch: queries that share the width of their compressed rows, at
// least 1.
void scan_threshold_heap(const PackedBase& packed, const ScanJob& job, std::int64_t batch,
                         const std::vector<std::int64_t>& which, ExactNeighbors& out,
                         ScanStats& stats, ThresholdHeapStats& heap, const Progress& progress);

// Gives the same answer by distances in float64, of all rows of job.base or of a `subset`
// (ascending).
void scan_threshold_heap_directly(const ScanJob& job, std::int64_t batch,
                                  std::span<const std::uint32_t> subset,
                                  const std::vector<std::int64_t>& which, ExactNeighbors& out,
                                  ScanStats& stats, ThresholdHeapStats& heap,
                                  const Progress& progress);

// Compresses and sorts what another device prunes, for `group` queries after others: with G groups
// of T tiles there are G T tiles, those of a group one after another; the pairs of a tile come by
// query, whose number is its place in `which`. The pairs of rows that job.allowed forbids are
// dropped here. rows: of the base; batch: as above, of a group. A tile counts its queries for
// `reporter`.
void sort_pruned_tiles(PrunedTiles& tiles, std::int64_t group, const ScanJob& job,
                       std::int64_t rows, std::int64_t batch, std::span<const std::int64_t> which,
                       ExactNeighbors& out, ScanStats& stats, ThresholdHeapStats& heap,
                       Reporter& reporter);

}  // namespace knear::detail
