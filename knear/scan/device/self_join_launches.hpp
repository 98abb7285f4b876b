// knear/scan/device/self_join_launches.hpp -- the launches of a self-join that scores each pair of
// rows once, compiled once for each queue (knear/simt/instances.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "knear/scan/device/scan_launches.hpp"
#include "knear/scan/device/self_join_kernels.hpp"

namespace knear::detail {

// Calls f(kernel) with a std::type_identity of the form of ScanPanels for pairs of these rows.
template <class Thread, class F>
void with_pair_form(bool integer, int slices, F f) {
  const auto with_whole = [&](auto whole) {
    using Kept = ScanPanels<Thread, true, whole.value, false, false, true>;
    if (slices <= Kept::stage_slices)
      f(std::type_identity<Kept>{});
    else
      f(std::type_identity<ScanPanels<Thread, false, whole.value, false, false, true>>{});
  };
  if (integer)
    with_whole(std::true_type{});
  else
    with_whole(std::false_type{});
}
// Bytes of shared memory of a block.
template <class Thread>
std::size_t shared_bytes_of_pairs(bool integer, int slices) {
  std::size_t out = 0;
  with_pair_form<Thread>(integer, slices,
                         [&](auto form) { out = decltype(form)::type::shared_bytes(slices); });
  return out;
}

// A thread for each of `count`, as many as there are at once.
template <class Kernel, class Queue>
Grid grid_of_places(const Queue& queue, std::int64_t count, int each = Kernel::threads) {
  const std::int64_t resident = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks;
  return {std::min((count + each - 1) / each, resident), 0};
}

template <class Queue>
void launch_place_rows(Queue& queue, const DeviceBaseView& base, std::int64_t count,
                       std::int32_t* rows) {
  using Kernel = PlaceRows<typename Queue::Thread>;
  launch(queue, grid_of_places<Kernel>(queue, count), Kernel{base, count, rows});
}
template <class Queue>
void launch_find_tops(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                      const SelfJoinPairs& join) {
  using Kernel = FindTops<typename Queue::Thread>;
  launch(queue, Grid{queries.blocks, Kernel::shared_bytes}, Kernel{base, queries, join});
}
template <class Queue>
void launch_find_reach(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                       const SelfJoinPairs& join) {
  const auto launch_form = [&](auto whole) {
    using Kernel = FindReach<typename Queue::Thread, whole.value>;
    launch(queue, grid_of_places<Kernel>(queue, queries.count), Kernel{base, queries, join});
  };
  if (base.integer)
    launch_form(std::true_type{});
  else
    launch_form(std::false_type{});
}
// Scores each block b of queries with the rows at the places [begin + 4 b, end + 4 b) of
// base.order.
template <class Queue>
void launch_scan_pairs(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                       const DeviceLists& lists, const SelfJoinPairs& join, std::int64_t begin,
                       std::int64_t end) {
  with_pair_form<typename Queue::Thread>(base.integer, base.slices, [&](auto form) {
    using Kernel = typename decltype(form)::type;
    Kernel kernel{};
    kernel.base = base, kernel.queries = queries, kernel.lists = lists, kernel.join = join;
    kernel.begin = static_cast<int>(begin), kernel.end = static_cast<int>(end);
    const std::int64_t splits =
        splits_of_many<Kernel>(queue.multiprocessors(), queries.blocks, end - begin);
    kernel.splits = static_cast<int>(splits);
    launch(queue, Grid{queries.blocks * splits, Kernel::shared_bytes(base.slices)}, kernel);
  });
}
template <class Queue>
void launch_score_pairs(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                        const DeviceLists& lists) {
  using Kernel = ScorePairs<typename Queue::Thread>;
  launch(queue, grid_of_places<Kernel>(queue, queries.count, Kernel::warps),
         Kernel{base, queries, lists});
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_SELF_JOIN_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_place_rows, Queue)              \
  INSTANCE(launch_find_tops, Queue)               \
  INSTANCE(launch_find_reach, Queue)              \
  INSTANCE(launch_scan_pairs, Queue)              \
  INSTANCE(launch_score_pairs, Queue)

}  // namespace knear::detail
