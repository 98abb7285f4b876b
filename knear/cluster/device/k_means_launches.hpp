// knear/cluster/device/k_means_launches.hpp -- the launches of k-means on a GPU, compiled
// once for each queue (knear/simt/instances.hpp).
#pragma once
#include <algorithm>
#include <cstdint>

#include "knear/cluster/device/k_means_kernels.hpp"
#include "knear/core/element_type.hpp"

namespace knear::detail {

template <class Queue>
void launch_measure_lengths(Queue& queue, const void* rows, ElementType type, std::int64_t count,
                            std::int64_t dim, double* lengths) {
  with_element(type, [&](auto element) {
    using Element = decltype(element);
    using Kernel = MeasureLengths<typename Queue::Thread, Element>;
    launch(queue, Grid{(count + Kernel::threads - 1) / Kernel::threads, 0},
           Kernel{static_cast<const Element*>(rows), count, dim, lengths});
  });
}
template <class Queue>
void launch_start_from_last(Queue& queue, const DeviceBaseView& base,
                            const DeviceQueryView& queries, const DeviceClusterRows& rows,
                            ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = StartFromLast<typename Queue::Thread, decltype(element)>;
    launch(queue, Grid{Kernel::blocks(rows.count), 0}, Kernel{base, queries, rows});
  });
}
// rows.full_count must be 0 before.
template <class Queue>
void launch_choose_nearest(Queue& queue, const DeviceBaseView& base, const DeviceQueryView& queries,
                           const DeviceLists& lists, const DeviceClusterRows& rows,
                           ElementType type) {
  with_element(type, [&](auto element) {
    using Choose = ChooseNearest<typename Queue::Thread, decltype(element)>;
    launch(queue, Grid{Choose::blocks(rows.count), 0}, Choose{base, queries, lists, rows});
    // How many lists were full only the device knows; mostly none was.
    using All = MeasureAll<typename Queue::Thread, decltype(element)>;
    const std::int64_t most = std::int64_t{queue.multiprocessors()} * All::resident_blocks;
    launch(queue, Grid{std::min(rows.count, most), All::shared_bytes}, All{base, rows});
  });
}
template <class Queue>
void launch_move_rows(Queue& queue, const DeviceClusterRows& rows, const DeviceClusterSums& sums,
                      ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = MoveRows<typename Queue::Thread, decltype(element)>;
    launch(queue, grid_for<Kernel>(queue, rows.count, Kernel::warps), Kernel{rows, sums});
  });
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_K_MEANS_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_measure_lengths, Queue)       \
  INSTANCE(launch_start_from_last, Queue)       \
  INSTANCE(launch_choose_nearest, Queue)        \
  INSTANCE(launch_move_rows, Queue)

}  // namespace knear::detail
