// knear/scan/device/query_launches.hpp -- the launches of the kernels that code queries,
// compiled once for each queue (knear/simt/instances.hpp).
#pragma once
#include <algorithm>
#include <cstdint>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/query_kernels.hpp"

namespace knear::detail {

template <class Queue>
void launch_measure_queries(Queue& queue, const DeviceQueryCoding& coding, ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = MeasureQueries<typename Queue::Thread, decltype(element)>;
    launch(queue, grid_for<Kernel>(queue, coding.count, Kernel::warps), Kernel{coding});
  });
}
template <class Queue>
void launch_order_queries(Queue& queue, const DeviceQueryCoding& coding) {
  using Kernel = OrderQueries<typename Queue::Thread>;
  launch(queue, Grid{Kernel::blocks(coding.count), 0}, Kernel{coding});
}
template <class Queue>
void launch_encode_queries(Queue& queue, const DeviceQueryCoding& coding, ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = EncodeQueries<typename Queue::Thread, decltype(element)>;
    launch(queue, Grid{Kernel::blocks(coding.blocks()), 0}, Kernel{coding});
  });
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_QUERY_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_measure_queries, Queue)     \
  INSTANCE(launch_order_queries, Queue)       \
  INSTANCE(launch_encode_queries, Queue)

}  // namespace knear::detail
