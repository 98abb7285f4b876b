// knear/scan/device/compress.hpp -- gathers the pairs of a tile that passed the thresholds in one
// dense array on a GPU: the compression of the TH-heap, as a kernel for knear/simt/thread.hpp, and
// its launches.
//
// ScanPanels leaves an unordered list for each query. CompressLists reads the lists twice: first it
// counts the pairs of each query that pass, then it writes them after those of the queries before.
// So pairs are ordered by query, those of one query in no order. MeasurePairs processes this array:
// each pair takes equally long, so that a query with many rows keeps the whole GPU busy, not just
// one block (as in MeasureRows, which has no such array).
#pragma once
#include <algorithm>
#include <cstdint>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/list_kernels.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/scan/methods/pruned_pair.hpp"

namespace knear::detail {

// Arrays in device memory.
struct DevicePairs {
  PrunedPair* pairs;    // [room]
  int* kept;            // [count]: pairs of each query
  std::int64_t* total;  // [1]: of all
  std::int64_t room;
};

// The pair of an entry; false if the threshold excludes it, or it is no row.
KNEAR_DEVICE bool pair_of(const DeviceBaseView& base, const DeviceQuery& query, double scale,
                          bool shifted, double threshold, Entry entry, PrunedPair& out) {
  out.row = base.ids[entry.slot];
  if (out.row == DeviceBaseView::no_row) return false;
  if (base.integer) {
    out.low = out.high = integer_key(base, query, shifted, entry);
    return out.low <= threshold;
  }
  const GInterval g = interval_of(base, query, scale, entry);
  const KeyScale keys = {base.l2       ? Metric::l2
                         : base.cosine ? Metric::cosine
                                       : Metric::ip,
                         query.squares, query.constant};
  out.low = keys.key_at_least(g.upper), out.high = keys.key_at_most(g.lower);
  return !(g.upper < threshold);
}

// One warp per query.
template <class Thread>
struct CompressLists {
  static constexpr int threads = 128, resident_blocks = 8;
  static constexpr int warps = threads / warp_size;

  DeviceBaseView base;
  DeviceQueryView queries;
  DeviceLists lists;
  DevicePairs out;
  bool counting;             // true: sets out.kept; false: reads it and sets the others
  std::int64_t first_query;  // the number of the first of the queries in their pairs
  std::int64_t begin;        // the first of all pairs to be written

  // The number of blocks of a grid.
  static std::int64_t blocks(std::int64_t count) { return (count + warps - 1) / warps; }

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block() * warps + t.index() / warp_size;
    if (place >= queries.count) return;  // the whole warp
    const int lane = t.index() % warp_size;
    const DeviceQuery query = queries.heads[place];
    const double scale = queries.scales[place / block_queries];
    const double threshold = queries.thresholds[place];
    const Entry* const list = lists.entries + place * lists.room;
    const int count = lists.counts[place] < lists.room ? lists.counts[place] : lists.room;

    std::int64_t at = 0;  // among all pairs
    if (!counting) {
      for (std::int64_t i = lane; i < place; i += warp_size) at += out.kept[i];
      for (int step = warp_size / 2; step > 0; step /= 2) at += t.shuffle_xor(at, step);
    }
    for (int first = 0; first < count; first += warp_size) {
      PrunedPair pair = {};
      const bool keep = first + lane < count && pair_of(base, query, scale, queries.shifted,
                                                        threshold, list[first + lane], pair);
      const unsigned keeping = t.ballot(keep);
      const std::int64_t to = at + count_bits(keeping & ((1u << lane) - 1)) - begin;
      if (!counting && keep && to >= 0 && to < out.room) {
        pair.query = static_cast<std::uint32_t>(first_query + place);
        out.pairs[to] = pair;
      }
      at += count_bits(keeping);
    }
    if (lane != 0) return;
    if (counting)
      out.kept[place] = static_cast<int>(at);
    else if (place + 1 == queries.count)
      *out.total = at;
  }
};

// Sets both ends of pairs to the key of the reference. Half a warp measures a pair; Row and vectors
// are those of MeasureRows.
template <class Thread, class Row>
struct MeasurePairs {
  static constexpr int threads = 128, resident_blocks = 8;
  static constexpr int halves = threads / 16;

  DeviceBaseView base;
  DevicePairs pairs;
  std::int64_t begin;            // the number of the first pair of this array among all
  const double* vectors;         // [queries x dim], by number
  const double* vector_squares;  // [queries]; cosine
  const Row* rows;               // [rows x dim]
  std::int64_t dim;
  std::int64_t blocks;  // of the grid

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t left = *pairs.total - begin, count = left < pairs.room ? left : pairs.room;
    const int half = t.index() / 16;
    for (std::int64_t first = t.block() * halves; first < count; first += blocks * halves) {
      const bool real = first + half < count;
      PrunedPair& pair = pairs.pairs[real ? first + half : 0];
      const double key = reference_key(t, base, vectors + std::int64_t{pair.query} * dim,
                                       base.cosine ? vector_squares + pair.query : nullptr,
                                       rows + std::int64_t{pair.row} * dim, dim);
      if (real && t.index() % 16 == 0) pair.low = pair.high = key;
    }
  }
};

// Counts and writes the first pairs of all lists, as many as fit.
template <class Queue>
void launch_compress(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                     const DeviceLists& lists, const DevicePairs& out, std::int64_t first_query) {
  using Kernel = CompressLists<typename Queue::Thread>;
  const Grid grid = {Kernel::blocks(queries.count), 0};
  launch(queue, grid, Kernel{base, queries, lists, out, true, first_query, 0});
  launch(queue, grid, Kernel{base, queries, lists, out, false, first_query, 0});
}
// As launch_compress for the same lists: writes pairs from number `begin` on.
template <class Queue>
void launch_compress_more(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                          const DeviceLists& lists, const DevicePairs& out,
                          std::int64_t first_query, std::int64_t begin) {
  using Kernel = CompressLists<typename Queue::Thread>;
  launch(queue, Grid{Kernel::blocks(queries.count), 0},
         Kernel{base, queries, lists, out, false, first_query, begin});
}

// Measures the pairs that were written last, from number `begin` on.
template <class Queue>
void launch_measure_pairs(Queue& queue, const DeviceBaseView& base, const DevicePairs& pairs,
                          std::int64_t begin, const double* vectors, const double* vector_squares,
                          const void* rows, ElementType type, std::int64_t dim) {
  with_element(type, [&](auto element) {
    using Row = decltype(element);
    using Kernel = MeasurePairs<typename Queue::Thread, Row>;
    // Only the device knows how many pairs there are: as many blocks as run at once.
    const std::int64_t resident = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks;
    const std::int64_t blocks =
        std::min(resident, (pairs.room + Kernel::halves - 1) / Kernel::halves);
    launch(queue, Grid{blocks, 0},
           Kernel{base, pairs, begin, vectors, vector_squares, static_cast<const Row*>(rows), dim,
                  blocks});
  });
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_COMPRESS(INSTANCE, Queue) \
  INSTANCE(launch_compress, Queue)      \
  INSTANCE(launch_compress_more, Queue) \
  INSTANCE(launch_measure_pairs, Queue)

}  // namespace knear::detail
