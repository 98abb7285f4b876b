// knear/scan/device/code_scan_launches.hpp -- the launches of the kernels that search codes,
// compiled once for each queue (knear/simt/instances.hpp).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "knear/scan/device/code_product_kernels.hpp"
#include "knear/scan/device/code_scan_kernels.hpp"

namespace knear::detail {

// Tables of no more bytes are made in shared memory: what a block may have on every device of
// compute capability 8.0 or later, less what else it needs there. Codes of 64 bytes have 64 KiB.
inline constexpr std::int64_t most_shared_table_bytes = 92 << 10;
KNEAR_HD constexpr bool tables_are_shared(const DeviceCodeBookView& book) {
  return std::int64_t{book.entries()} * 4 <= most_shared_table_bytes;
}

// Lists of a query that one block of ScanCodes leaves.
inline constexpr int code_lists_of_block = 4;

// Requires tables_are_shared(), 1 <= k <= warp_select_max_k. keys, ids [count x splits *
// code_lists_of_block x k].
template <class Queue>
void launch_scan_codes(Queue& queue, const DeviceCodeJob& job, int k, float* keys,
                       std::int64_t* ids) {
  with_warp_select_shape(k, [&](auto shape) {
    using Kernel = ScanCodes<typename Queue::Thread, decltype(shape)::R, decltype(shape)::T>;
    static_assert(Kernel::Rows::warps == code_lists_of_block);
    launch(
        queue,
        Grid{job.count * job.splits, Kernel::Rows::shared_bytes((job.book.entries() + 1) / 2 * 2)},
        Kernel{job, k, keys, ids});
  });
}

// Of each query's `lists` lists one for each `together` of them.
template <class Queue>
void launch_merge_code_lists(Queue& queue, std::int64_t count, int lists, int together, int k,
                             const float* keys, const std::int64_t* ids, float* out_keys,
                             std::int64_t* out_ids) {
  with_warp_select_shape(k, [&](auto shape) {
    using Kernel = MergeCodeLists<typename Queue::Thread, decltype(shape)::R, decltype(shape)::T>;
    const Kernel kernel{count, lists, together, k, keys, ids, out_keys, out_ids};
    launch(queue, Grid{(count * kernel.merged() + Kernel::warps - 1) / Kernel::warps, 0}, kernel);
  });
}

// Requires that the ids of each list ascend.
template <class Queue>
void launch_locate_rows(Queue& queue, const DeviceCodeJob& job, int k, const std::int64_t* ids,
                        std::int32_t* segments, std::int64_t* rows) {
  using Kernel = LocateRows<typename Queue::Thread>;
  launch(queue, Grid{(job.count * k + Kernel::warps - 1) / Kernel::warps, 0},
         Kernel{job, k, ids, segments, rows});
}

// tables [count x entries].
template <class Queue>
void launch_make_code_tables(Queue& queue, const DeviceCodeJob& job, float* tables) {
  const MakeCodeTables<typename Queue::Thread> kernel{job, tables};
  launch(queue, Grid{job.count * kernel.blocks_of_query(), 0}, kernel);
}

// keys [count x stride]. tables: nullptr where tables_are_shared().
template <class Queue>
void launch_write_code_keys(Queue& queue, const DeviceCodeJob& job, const float* tables,
                            float* keys, std::int64_t stride) {
  using Kernel = WriteCodeKeys<typename Queue::Thread>;
  const int entries = tables ? 0 : (job.book.entries() + 1) / 2 * 2;
  launch(queue, Grid{job.count * job.splits, Kernel::Rows::shared_bytes(entries)},
         Kernel{job, tables, keys, stride});
}

// values, places [count x k]: what select_k found among the keys.
template <class Queue>
void launch_resolve_ties(Queue& queue, const DeviceCodeJob& job, int k, const float* keys,
                         std::int64_t stride, const float* values, int* places) {
  using Kernel = ResolveTies<typename Queue::Thread>;
  launch(queue, Grid{job.count, Kernel::shared_bytes},
         Kernel{job, k, keys, stride, values, places});
}

// rows [panels * 32 x dim], places [panels * 32]. numbers: of all panels.
template <class Queue>
void launch_decode_rows(Queue& queue, const DecodedView& of, const int* numbers, std::int64_t first,
                        std::int64_t panels, float* rows, int* places) {
  using Kernel = DecodeRows<typename Queue::Thread>;
  launch(queue, grid_for<Kernel>(queue, panels * panel_rows, Kernel::warps),
         Kernel{of, numbers, first, panels, rows, places});
}
template <class Queue>
void launch_make_table_queries(Queue& queue, const double* from, double factor, std::int64_t count,
                               double* to) {
  using Kernel = MakeTableQueries<typename Queue::Thread>;
  launch(queue, grid_for<Kernel>(queue, count, Kernel::threads), Kernel{from, factor, count, to});
}
// Of `count` queries. kernel.parts is set here.
template <class Queue>
void launch_measure_codes(Queue& queue, MeasureCodes<typename Queue::Thread> kernel,
                          std::int64_t count) {
  const std::int64_t wanted = std::int64_t{queue.multiprocessors()} * kernel.resident_blocks;
  kernel.parts = static_cast<int>(std::clamp<std::int64_t>(
      (wanted + count - 1) / count, 1,
      std::max(1, (kernel.lists.room + kernel.threads - 1) / kernel.threads)));
  launch(queue, Grid{count * kernel.parts, 0}, kernel);
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_CODE_SCAN_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_scan_codes, Queue)              \
  INSTANCE(launch_merge_code_lists, Queue)        \
  INSTANCE(launch_locate_rows, Queue)             \
  INSTANCE(launch_make_code_tables, Queue)        \
  INSTANCE(launch_write_code_keys, Queue)         \
  INSTANCE(launch_resolve_ties, Queue)            \
  INSTANCE(launch_decode_rows, Queue)             \
  INSTANCE(launch_make_table_queries, Queue)      \
  INSTANCE(launch_measure_codes, Queue)

}  // namespace knear::detail
