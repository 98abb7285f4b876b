// knear/scan/device/scan_launches.hpp -- the launches of the scan on a GPU, compiled once for
// each queue (knear/simt/instances.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/few_scan.hpp"
#include "knear/scan/device/few_search.hpp"
#include "knear/scan/device/gather_queries.hpp"
#include "knear/scan/device/list_kernels.hpp"
#include "knear/scan/device/long_lists.hpp"
#include "knear/scan/device/scan_kernels.hpp"
#include "knear/scan/device/warpgroup_scan.hpp"

namespace knear::detail {

// Bytes of shared memory of a block; a multiprocessor has room for two such blocks on the smallest
// GPU we build for (sm_80). With long rows fewer blocks are resident than the kernel's registers
// would allow.
inline constexpr std::size_t most_kept_bytes = 81 << 10;

// The most queries of a block that the forms for few queries take.
inline constexpr std::int64_t fewest_queries = 8, few_queries = 32;

// Calls f(kernel) with a kernel of the form for so many queries of a block: a
// std::type_identity<ScanFew<...>> or <ScanPanels<...>>. Codes of queries stay in shared memory
// where it has room for them; of many queries where a row fits a stage of the ring.
template <class Thread, bool tabled, class F>
void with_scan_form(const DeviceBaseView& base, std::int64_t queries, F f) {
  const auto with_few = [&](auto columns, auto whole) {
    using Kept = ScanFew<Thread, columns.value, true, whole.value, tabled>;
    if (Kept::shared_bytes(base.slices) <= most_kept_bytes)
      f(std::type_identity<Kept>{});
    else
      f(std::type_identity<ScanFew<Thread, columns.value, false, whole.value, tabled>>{});
  };
  const auto with_whole = [&](auto whole) {
    using Kept = ScanPanels<Thread, true, whole.value, tabled>;
    if (queries <= fewest_queries)
      with_few(std::integral_constant<int, fewest_queries>{}, whole);
    else if (queries <= few_queries)
      with_few(std::integral_constant<int, few_queries>{}, whole);
    else if (base.slices <= Kept::stage_slices)
      f(std::type_identity<Kept>{});
    else
      f(std::type_identity<ScanPanels<Thread, false, whole.value, tabled>>{});
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

// Of so many panels for a ScanPanels: no block has fewer than two tiles, unless there are no more.
template <class Kernel>
std::int64_t splits_of_many(int multiprocessors, std::int64_t blocks, std::int64_t panels) {
  const std::int64_t tiles = (panels + Kernel::tile_panels - 1) / Kernel::tile_panels;
  return scan_splits(blocks, std::int64_t{multiprocessors} * Kernel::resident_blocks,
                     std::max<std::int64_t>(1, tiles / 2), 5);
}

// The same for few queries, whose warps have panels each for itself: so many rounds that a warp has
// `worth` of them, which are many beside those that are on their way when it begins; at most 8, by
// which time what a round has too much or too little does not count.
inline std::int64_t few_scan_splits(std::int64_t panels, std::int64_t resident,
                                    std::int64_t warps) {
  constexpr std::int64_t most_rounds = 8, worth = 8;
  const std::int64_t rounds =
      std::clamp<std::int64_t>(panels / (resident * warps * worth), 1, most_rounds);
  return std::clamp<std::int64_t>(rounds * resident, 1, std::max<std::int64_t>(1, panels / warps));
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
  using Thread = typename Queue::Thread;
  with_scan_form<Thread, true>(base, table.most_queries, [&](auto form) {
    using Kernel = typename decltype(form)::type;
    Kernel kernel{};
    kernel.base = base, kernel.queries = queries, kernel.lists = lists, kernel.table = table;
    launch(queue, Grid{table.count, Kernel::shared_bytes(base.slices)}, kernel);
  });
}
// How many blocks of such a scan are resident at once.
template <class Queue>
std::int64_t resident_scan_tasks(const Queue& queue, const DeviceBaseView& base,
                                 std::int64_t most_queries) {
  std::int64_t out = queue.multiprocessors();
  with_scan_form<typename Queue::Thread, true>(
      base, most_queries, [&](auto form) { out *= decltype(form)::type::resident_blocks; });
  return out;
}

template <class Queue>
void launch_gather_queries(Queue& queue, const QueryGathering& gathering) {
  launch(queue, Grid{gathering.blocks, 0}, GatherQueries<typename Queue::Thread>{gathering});
}

// Scans panels [begin, end) of base.order for all queries.
template <class Queue>
void launch_scan(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                 const DeviceLists& lists, std::int64_t begin, std::int64_t end) {
  if (launch_scan_by_warpgroups(queue, base, queries, lists, begin, end)) return;
  with_scan_form<typename Queue::Thread, false>(base, queries.count, [&](auto form) {
    using Kernel = typename decltype(form)::type;
    Kernel kernel{};
    kernel.base = base, kernel.queries = queries, kernel.lists = lists;
    kernel.begin = static_cast<int>(begin), kernel.end = static_cast<int>(end);
    std::int64_t splits = 0;
    if constexpr (requires { Kernel::tile_panels; })
      splits = splits_of_many<Kernel>(queue.multiprocessors(), queries.blocks, end - begin);
    else
      splits = few_scan_splits(end - begin,
                               std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks,
                               Kernel::warps);
    kernel.splits = static_cast<int>(splits);
    launch(queue, Grid{queries.blocks * splits, Kernel::shared_bytes(base.slices)}, kernel);
  });
}

// Puts all pairs of panels [0, end) of base.order into the lists, which must be empty and have room
// for them, of at most few_queries queries that may find all rows; slots without a row too. The
// first step of a search that knows nothing of its queries: no list is waited for.
template <class Queue>
void launch_scan_of_all(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                        const DeviceLists& lists, std::int64_t end) {
  with_scan_form<typename Queue::Thread, false>(base, queries.count, [&](auto form) {
    using Kernel = typename decltype(form)::type;
    if constexpr (requires { Kernel::everything; }) {
      Kernel kernel{};
      kernel.base = base, kernel.queries = queries, kernel.lists = lists;
      kernel.end = static_cast<int>(end), kernel.everything = true;
      const std::int64_t splits = std::max<std::int64_t>(1, end / Kernel::warps);
      kernel.splits = static_cast<int>(splits);
      launch(queue, Grid{splits, Kernel::shared_bytes(base.slices)}, kernel);
    }
  });
}

// Calls f(kernel) with the std::type_identity<SearchFew<...>> for so many queries, few_queries at
// most.
template <class Thread, class F>
auto with_few_search(bool whole, std::int64_t queries, F f) {
  const auto with_columns = [&](auto columns) {
    return whole ? f(std::type_identity<SearchFew<Thread, columns.value, true>>{})
                 : f(std::type_identity<SearchFew<Thread, columns.value, false>>{});
  };
  return queries <= fewest_queries ? with_columns(std::integral_constant<int, fewest_queries>{})
                                   : with_columns(std::integral_constant<int, few_queries>{});
}
// Whether the whole search of so many queries, in rows of so many slices, is to be one launch: the
// queue was told so, they are few, and a multiprocessor has shared memory for what is on its way.
template <class Queue>
bool searches_in_one_launch(const Queue& queue, int slices, std::int64_t queries) {
  constexpr std::size_t of_block = 1 << 10;  // of a multiprocessor's, that no block has for itself
  return queue.one_launch() && queries <= few_queries &&
         with_few_search<typename Queue::Thread>(false, queries, [&](auto form) {
           return decltype(form)::type::shared_bytes(slices) + of_block <= queue.shared_memory();
         });
}
// That search. Counts of lists and `lost` must be zeros.
template <class Queue>
void launch_few_search(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                       const DeviceLists& lists, const FewSearch& search) {
  with_few_search<typename Queue::Thread>(base.integer, queries.count, [&](auto form) {
    using Kernel = typename decltype(form)::type;
    const std::int64_t worth = std::max(base.panels / Kernel::Scan::warps, queries.count);
    launch(queue,
           Grid{std::min<std::int64_t>(worth, queue.multiprocessors()),
                Kernel::shared_bytes(base.slices), true},
           Kernel{base, queries, lists, search});
  });
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
  // A list has some dozen entries or more, of which a block measures 8 at a time.
  constexpr std::int64_t most_parts = 16;
  const std::int64_t parts =
      std::clamp<std::int64_t>(2 * queue.multiprocessors() / queries.count, 1, most_parts);
  with_element(type, [&](auto element) {
    using Row = decltype(element);
    launch(queue, Grid{queries.count * parts, 0},
           MeasureRows<typename Queue::Thread, Row>{base, lists, vectors, vector_squares,
                                                    static_cast<const Row*>(rows), dim,
                                                    static_cast<int>(parts)});
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

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_SCAN_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_scan, Queue)               \
  INSTANCE(launch_scan_of_all, Queue)        \
  INSTANCE(searches_in_one_launch, Queue)    \
  INSTANCE(launch_few_search, Queue)         \
  INSTANCE(launch_scan_tasks, Queue)         \
  INSTANCE(resident_scan_tasks, Queue)       \
  INSTANCE(launch_gather_queries, Queue)     \
  INSTANCE(launch_update, Queue)             \
  INSTANCE(launch_integer_keys, Queue)       \
  INSTANCE(launch_measure, Queue)            \
  INSTANCE(launch_rank, Queue)

}  // namespace knear::detail
