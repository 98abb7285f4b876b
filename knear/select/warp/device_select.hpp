// knear/select/warp/device_select.hpp -- select_k on rows that are in device memory, over any
// queue.
//
//   select_rows(queue, {values, rows, cols, stride, lengths}, k,
//               {.extreme = Extreme::largest}, best, places);      // [rows x k] each
//
// The k smallest or largest of each row in the order (value, place), as knear::select_k gives them
// (knear/select/select_k.hpp): values with the bits that they have, the leftmost of equal ones, NaN
// never, and in empty places +infinity (-infinity for the largest) and -1. Best first or by
// ascending place. The answer is the same bits whatever the device and the method.
//
// Three ways, of which select_way() takes one by k, the length of a row and the number of rows: a
// warp for each row (WarpSelect), which reads it once and suits small k; a block for each row,
// which reads it once through a threshold, up to k = 4,096; and for larger k radix selection, which
// reads rows two to four times and sorts the result if asked to. Few long rows are cut into parts.
//
// A queue is cuda::Queue (knear/cuda/queue.hpp), with the kernels on the device, or the one that
// runs them thread by thread in the tests. Memory of the queue, until it is done: 8 k bytes for
// each part where rows are cut into parts, 24 KiB for each row in parts for k > 1024, and 8 k for
// each block that sorts, at most two per multiprocessor, where radix selection is sorted or
// WarpSelect is not wanted so; for places of 64 bits 4 k bytes per row.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "knear/select/sort/float_order.hpp"
#include "knear/select/sort/sort_rows.hpp"
#include "knear/select/warp/device_rows.hpp"
#include "knear/select/warp/radix_select_rows.hpp"
#include "knear/select/warp/threshold_select_rows.hpp"
#include "knear/select/warp/warp_select_layout.hpp"
#include "knear/select/warp/warp_select_rows.hpp"
#include "knear/select/warp/widen_places.hpp"
#include "knear/simt/thread.hpp"

namespace knear {
namespace detail {

enum class SelectWay { by_warps, by_threshold, by_digits };

// The limits between the ways, by what an H100 took for 10,000 rows. Of 128,000 values WarpSelect
// reads 2,820 GB/s at k = 32 and 2,440 at k = 100, near what memory gives; of 32,000 it reads 1,495
// at k = 100 and 515 at k = 1,000, as its merges wait for one another in a warp, and a block with a
// threshold 2,530 and 1,880; of 8,000 696 and 121, and the block 1,330 and 680. Of 1,000 values at
// k = 100 both take 0.18 ms. Where between k = 32 and 100 they meet, and for how few rows, was not
// measured.
struct SelectLimits {
  int warps_k = 32;                // WarpSelect up to here, whatever the length
  int warps_long_k = 128;          // and up to here where rows are longer than
  std::int64_t long_row = 65536;   // so much
  std::int64_t one_block = 16384;  // rows up to here are read by one block even if they are few
};

constexpr SelectWay select_way(std::int64_t rows, std::int64_t cols, std::int64_t k,
                               int multiprocessors) {
  constexpr SelectLimits limits;
  if (k <= limits.warps_k || (k <= limits.warps_long_k && cols > limits.long_row))
    return SelectWay::by_warps;
  // A block that reads alone in its multiprocessor, or two of them, make less of its share of the
  // bandwidth than parts of rows would.
  const bool enough = rows >= std::int64_t{2} * multiprocessors || cols <= limits.one_block;
  if (k <= threshold_max_k && enough) return SelectWay::by_threshold;
  // Where WarpSelect keeps most of what it reads, its merges amount to a sort by networks.
  if (k <= limits.warps_long_k || (k <= warp_select_max_k && k <= cols / 4))
    return SelectWay::by_warps;
  return SelectWay::by_digits;
}

// Selects, best first. Requires 1 <= k <= warp_select_max_k, parts >= 1 and parts * k <= cols if
// there are several.
template <class Queue>
void select_by_warps(Queue& queue, const DeviceRows& rows, int k, unsigned flip, int parts,
                     float* values, int* places) {
  using Thread = typename Queue::Thread;
  const std::size_t candidates = parts > 1 ? rows.rows * parts * k : 0;
  auto part_values = queue.template allocate<float>(candidates);
  auto part_places = queue.template allocate<int>(candidates);
  with_warp_select_shape(k, [&](auto shape) {
    using Kernel = SelectByWarp<Thread, decltype(shape)::R, decltype(shape)::T>;
    if (parts == 1) {
      launch(queue, Grid{select_blocks(rows.rows), 0},
             Kernel{rows, 1, k, flip, nullptr, values, places});
      return;
    }
    launch(queue, Grid{select_blocks(rows.rows * parts), 0},
           Kernel{rows, parts, k, flip, nullptr, part_values.data(), part_places.data()});
    const std::int64_t cols = std::int64_t{parts} * k;
    launch(queue, Grid{select_blocks(rows.rows), 0},
           Kernel{DeviceRows{part_values.data(), rows.rows, cols, cols, nullptr}, 1, k, flip,
                  part_places.data(), values, places});
  });
}

// Selects, best first or by ascending place. Requires 1 <= k <= threshold_max_k.
template <class Queue>
void select_by_threshold(Queue& queue, const DeviceRows& rows, int k, RowOrder order, unsigned flip,
                         float* values, int* places) {
  using Kernel = SelectByThreshold<typename Queue::Thread>;
  // A row for each block, but for millions of rows: the multiprocessors take blocks as they become
  // free, and where each had several rows the last ones would wait for some.
  const std::int64_t most = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks * 256;
  const int room = threshold_room(k);
  launch(queue, Grid{std::min(rows.rows, most), Kernel::Items::shared_bytes(room)},
         Kernel{rows, k, room, order, flip, values, places});
}

// Selects, by ascending place. Requires 1 <= k < 2^31 and parts >= 1.
template <class Queue>
void select_by_digits(Queue& queue, const DeviceRows& rows, int k, unsigned flip, int parts,
                      float* values, int* places) {
  using Thread = typename Queue::Thread;
  if (parts == 1) {
    using Kernel = RadixSelect<Thread>;
    const std::int64_t most = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks * 4;
    launch(queue, Grid{std::min(rows.rows, most), Kernel::Block::shared_bytes},
           Kernel{rows, k, flip, values, places});
    return;
  }
  const std::size_t n = rows.rows;
  auto histograms = queue.template allocate<int>(n * radix_digits * radix_bins);
  auto bounds = queue.template allocate<RadixBound>(n * (radix_digits + 1));
  auto kept = queue.template allocate<RadixKept>(n * static_cast<std::size_t>(parts));
  queue.fill_bytes(histograms.data(), 0, histograms.size());
  const RadixParts in = {rows, parts, k, flip, histograms.data(), bounds.data(), kept.data()};
  const Grid grid{rows.rows * parts, RadixBlock<Thread>::shared_bytes};
  for (int digit = 0; digit < radix_digits; ++digit)
    launch(queue, grid, RadixCount<Thread>{in, digit});
  launch(queue, grid, RadixCountKept<Thread>{in});
  launch(queue, grid, RadixGather<Thread>{in, values, places});
}

// Sorts what was selected. Requires rows >= 1 and 1 <= k < 2^31.
template <class Queue>
void sort_rows(Queue& queue, std::int64_t rows, int k, RowOrder order, unsigned flip, float* values,
               int* places) {
  using Kernel = SortRows<typename Queue::Thread>;
  const std::int64_t blocks =
      std::min(rows, std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks);
  auto other_values = queue.template allocate<float>(blocks * k);
  auto other_places = queue.template allocate<int>(blocks * k);
  launch(queue, Grid{blocks, Kernel::shared_bytes},
         Kernel{rows, k, order, flip, values, places, other_values.data(), other_places.data()});
}

// Selects one way. Requires that it takes the k: by_warps up to warp_select_max_k, by_threshold up
// to threshold_max_k.
template <class Queue>
void select_rows_by(SelectWay way, Queue& queue, const DeviceRows& rows, int k,
                    const DeviceSelectOptions& options, float* values, int* places) {
  const unsigned flip = flip_of(options.extreme);
  const RowOrder order = options.sorted ? RowOrder::by_value : RowOrder::by_place;
  const std::int64_t processors = queue.multiprocessors();
  switch (way) {
    case SelectWay::by_warps: {
      const std::int64_t warps = processors * select_warps_per_block * select_resident_blocks(k);
      select_by_warps(queue, rows, k, flip, select_parts(rows.rows, rows.cols, k, warps), values,
                      places);
      if (!options.sorted) sort_rows(queue, rows.rows, k, order, flip, values, places);
      return;
    }
    case SelectWay::by_threshold:
      select_by_threshold(queue, rows, k, order, flip, values, places);
      return;
    case SelectWay::by_digits: {
      const std::int64_t blocks = processors * RadixSelect<typename Queue::Thread>::resident_blocks;
      select_by_digits(queue, rows, k, flip, radix_parts(rows.rows, rows.cols, blocks), values,
                       places);
      if (options.sorted) sort_rows(queue, rows.rows, k, order, flip, values, places);
      return;
    }
  }
}

}  // namespace detail

// values, places [rows x k], in device memory. Requires that detail::bad_argument(rows, k) finds
// nothing. Returns when the work is enqueued.
template <class Queue>
void select_rows(Queue& queue, const DeviceRows& rows, std::int64_t k,
                 const DeviceSelectOptions& options, float* values, int* places) {
  if (rows.rows == 0) return;
  detail::select_rows_by(detail::select_way(rows.rows, rows.cols, k, queue.multiprocessors()),
                         queue, rows, static_cast<int>(k), options, values, places);
}

// As above with places of 64 bits, as knear::select_k has them.
template <class Queue>
void select_rows(Queue& queue, const DeviceRows& rows, std::int64_t k,
                 const DeviceSelectOptions& options, float* values, std::int64_t* places) {
  using Kernel = detail::WidenPlaces<typename Queue::Thread>;
  const std::int64_t count = rows.rows * k;
  if (count == 0) return;
  auto narrow = queue.template allocate<int>(count);
  select_rows(queue, rows, k, options, values, narrow.data());
  const std::int64_t blocks = (count + Kernel::threads - 1) / Kernel::threads;
  const std::int64_t most = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks;
  launch(queue, Grid{std::min(blocks, most), 0}, Kernel{count, narrow.data(), places});
}

// select_rows() for a queue: INSTANCE is `template`, where it is compiled, or `extern template`. A
// list by names, as in knear/simt/instances.hpp, cannot tell two functions of one name apart.
#define KNEAR_DEVICE_SELECT(INSTANCE, Queue)                                                     \
  INSTANCE void select_rows(Queue&, const DeviceRows&, std::int64_t, const DeviceSelectOptions&, \
                            float*, int*);

}  // namespace knear
