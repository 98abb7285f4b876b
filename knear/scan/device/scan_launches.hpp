// knear/scan/device/scan_launches.hpp -- the launches of the scan on a GPU: what nvcc compiles for
// cuda::Queue (scan_launches.cu) and the tests for the emulator.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/gather_queries.hpp"
#include "knear/scan/device/long_lists.hpp"
#include "knear/scan/device/scan_kernels.hpp"
#include "knear/scan/device/warpgroup_scan.hpp"

namespace knear::detail {

// Bytes of shared memory of a block; a multiprocessor has room for two such blocks on the smallest
// GPU we build for (sm_80). With long rows fewer blocks are resident than the kernel's registers
// would allow.
inline constexpr std::size_t most_kept_bytes = 81 << 10;

// Calls f(keep, whole): whether the codes of a block's queries stay in shared memory, and whether
// they are whole numbers. Of many queries they stay where a row fits a stage of the ring.
template <class Thread, bool few, class F>
void with_scan_form(const DeviceBaseView& base, F f) {
  const auto with_whole = [&](auto whole) {
    using Kept = ScanPanels<Thread, few, true, whole.value>;
    if (few ? Kept::shared_bytes(base.slices) <= most_kept_bytes
            : base.slices <= Kept::stage_slices)
      f(std::true_type{}, whole);
    else
      f(std::false_type{}, whole);
  };
  if (base.integer)
    with_whole(std::true_type{});
  else
    with_whole(std::false_type{});
}

// Into how many splits panels are cut for so many blocks of queries, `most` at most: such that the
// grid takes `fewest` to 12 rounds of the blocks that are resident at once, if it can, and the last
// round is the fullest. With 8.1 rounds a tenth of the time most multiprocessors would wait for the
// rest.
inline std::int64_t scan_splits(std::int64_t blocks, std::int64_t resident, std::int64_t most,
                                int fewest) {
  constexpr int most_rounds = 12;
  constexpr double worth = 0.01;
  std::int64_t best = 1;
  double best_share = 0;
  for (int rounds = fewest; rounds <= most_rounds; ++rounds) {
    const std::int64_t splits = rounds * resident / blocks;  // as many as fit these rounds
    if (splits > most) return rounds == fewest ? most : best;
    const double share =
        static_cast<double>(splits * blocks) / static_cast<double>(rounds * resident);
    if (share > best_share + worth) best = splits, best_share = share;
  }
  return best;
}

template <bool few, class Queue>
void launch_scan_panels(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                        const DeviceLists& lists, std::int64_t begin, std::int64_t end) {
  with_scan_form<typename Queue::Thread, few>(base, [&](auto keep, auto whole) {
    using Kernel = ScanPanels<typename Queue::Thread, few, keep.value, whole.value>;
    // No block has fewer than two tiles, unless there are no more.
    const std::int64_t tiles = (end - begin + Kernel::tile_panels - 1) / Kernel::tile_panels;
    const std::int64_t resident = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks;
    const std::int64_t splits =
        scan_splits(queries.blocks, resident, std::max<std::int64_t>(1, tiles / 2), few ? 8 : 5);
    launch(queue, Grid{queries.blocks * splits, Kernel::shared_bytes(base.slices)},
           Kernel{base,
                  queries,
                  lists,
                  static_cast<int>(begin),
                  static_cast<int>(end),
                  static_cast<int>(splits),
                  {}});
  });
}

// The same by the products of warpgroups, where the queue has them and is to use them. False where
// it is not, where there are no more queries than half an item has, and where rows are too long.
template <class Queue>
bool launch_scan_by_warpgroups(Queue& queue, const DeviceBaseView& base,
                               const DeviceQueryView& queries, const DeviceLists& lists,
                               std::int64_t begin, std::int64_t end) {
  if (!queue.warpgroups() || queries.count <= block_queries) return false;
  const auto launch_form = [&](auto whole, auto row_slices) {
    using Kernel = ScanByWarpgroups<typename Queue::WarpgroupThread, whole.value, row_slices.value>;
    const int stages = Kernel::stages_for(base.slices);
    if (stages == 0) return false;
    const std::int64_t tiles = (end - begin + Kernel::tile_panels - 1) / Kernel::tile_panels;
    const std::int64_t pairs = (queries.blocks + 1) / 2, resident = queue.multiprocessors();
    const std::int64_t splits =
        scan_splits(pairs, resident, std::max<std::int64_t>(1, tiles / 2), 1);
    launch(queue,
           Grid{std::min(pairs * splits, resident), Kernel::shared_bytes(base.slices, stages)},
           Kernel{base, queries, lists, static_cast<int>(begin), static_cast<int>(end),
                  static_cast<int>(splits), stages});
    return true;
  };
  const auto with_slices = [&](auto whole) {
    switch (base.slices) {
      case 1:
        return launch_form(whole, std::integral_constant<int, 1>{});
      case 2:
        return launch_form(whole, std::integral_constant<int, 2>{});
      case 3:
        return launch_form(whole, std::integral_constant<int, 3>{});
      case 4:
        return launch_form(whole, std::integral_constant<int, 4>{});
      default:
        return launch_form(whole, std::integral_constant<int, 0>{});
    }
  };
  return base.integer ? with_slices(std::true_type{}) : with_slices(std::false_type{});
}

// Does the tasks of a table. queries: the codes and scales of its blocks, and heads and thresholds
// of the queries that its places name.
template <class Queue>
void launch_scan_tasks(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                       const DeviceLists& lists, const DeviceTaskTable& table) {
  const auto with = [&](auto few) {
    with_scan_form<typename Queue::Thread, few.value>(base, [&](auto keep, auto whole) {
      using Kernel = ScanPanels<typename Queue::Thread, few.value, keep.value, whole.value, true>;
      launch(queue, Grid{table.count, Kernel::shared_bytes(base.slices)},
             Kernel{base, queries, lists, 0, 0, 0, table});
    });
  };
  if (table.few)
    with(std::true_type{});
  else
    with(std::false_type{});
}

template <class Queue>
void launch_gather_queries(Queue& queue, const QueryGathering& gathering) {
  launch(queue, Grid{gathering.blocks, 0}, GatherQueries<typename Queue::Thread>{gathering});
}

// Scans panels [begin, end) of base.order for all queries.
template <class Queue>
void launch_scan(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                 const DeviceLists& lists, std::int64_t begin, std::int64_t end) {
  if (queries.count <= ScanPanels<typename Queue::Thread, true, true, true>::most_few)
    launch_scan_panels<true>(queue, base, queries, lists, begin, end);
  else if (!launch_scan_by_warpgroups(queue, base, queries, lists, begin, end))
    launch_scan_panels<false>(queue, base, queries, lists, begin, end);
}

// Whether launch_update takes a block for each list, which uses the memory of its keys: where it is
// long, or where there are too few lists to keep the device busy with a warp for each.
template <class Queue>
bool updates_by_blocks(const Queue& queue, std::int64_t count, int k) {
  return k > warp_select_max_k || count <= queue.multiprocessors();
}
template <class Queue>
void launch_update(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                   const DeviceLists& lists, int k) {
  if (updates_by_blocks(queue, queries.count, k)) {
    using Kernel = UpdateLongLists<typename Queue::Thread>;
    return launch(queue, Grid{queries.count, Kernel::shared_bytes},
                  Kernel{base, queries, lists, k});
  }
  with_warp_select_shape(k, [&](auto shape) {
    using Kernel = UpdateThresholds<typename Queue::Thread, shape.R, shape.T>;
    launch(queue, Grid{Kernel::blocks(queries.count), 0}, Kernel{base, queries, lists, k});
  });
}

template <class Queue>
void launch_integer_keys(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                         const DeviceLists& lists) {
  launch(queue, Grid{queries.count, 0}, IntegerKeys<typename Queue::Thread>{base, queries, lists});
}

template <class Queue>
void launch_measure(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                    const DeviceLists& lists, const double* vectors, const double* vector_squares,
                    const void* rows, ElementType type, std::int64_t dim) {
  with_element(type, [&](auto element) {
    using Row = decltype(element);
    launch(queue, Grid{queries.count, 0},
           MeasureRows<typename Queue::Thread, Row>{base, lists, vectors, vector_squares,
                                                    static_cast<const Row*>(rows), dim});
  });
}

// The number of spare lists that launch_rank uses for so many queries.
template <class Queue>
std::int64_t spare_lists(Queue& queue, std::int64_t count) {
  return std::min<std::int64_t>(count, std::int64_t{queue.multiprocessors()} *
                                           SortLists<typename Queue::Thread>::resident_blocks);
}

// Sorts if there are spare lists, compares otherwise.
template <class Queue>
void launch_rank(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                 const DeviceLists& lists, const SpareLists& spare, double* keys, std::int64_t* ids,
                 int k) {
  if (spare.count > 0) {
    using Kernel = SortLists<typename Queue::Thread>;
    return launch(queue, Grid{spare.count, Kernel::shared_bytes},
                  Kernel{base, lists, spare, keys, ids, k, queries.count});
  }
  using Kernel = RankRows<typename Queue::Thread>;
  launch(queue, Grid{queries.count, Kernel::shared_bytes}, Kernel{base, lists, keys, ids, k});
}

}  // namespace knear::detail
