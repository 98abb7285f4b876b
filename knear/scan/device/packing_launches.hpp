// knear/scan/device/packing_launches.hpp -- the launches of packing.hpp, compiled once for each
// queue (knear/simt/instances.hpp).
#pragma once
#include <algorithm>
#include <cstdint>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/packing_kernels.hpp"
#include "knear/select/warp/device_select.hpp"

namespace knear::detail {

template <class Queue>
void launch_interleave_slots(Queue& queue, const DevicePacking& packing) {
  using Kernel = InterleaveSlots<typename Queue::Thread>;
  launch(queue, grid_for<Kernel>(queue, packing.slots(), Kernel::threads), Kernel{packing});
}
template <class Queue>
void launch_interleave_rows(Queue& queue, const DevicePacking& packing, ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = InterleaveRows<typename Queue::Thread, decltype(element)>;
    launch(queue, grid_for<Kernel>(queue, packing.slots(), Kernel::warps), Kernel{packing});
  });
}
template <class Queue>
void launch_encode_panels(Queue& queue, const DevicePacking& packing, ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = EncodePanels<typename Queue::Thread, decltype(element)>;
    launch(queue, Grid{packing.panels(), Kernel::shared_bytes}, Kernel{packing});
  });
}
template <class Queue>
void launch_encode_whole_rows(Queue& queue, const DevicePacking& packing, ElementType type) {
  with_element(type, [&](auto element) {
    using Kernel = EncodeWholeRows<typename Queue::Thread, decltype(element)>;
    launch(queue, Grid{packing.panels(), 0}, Kernel{packing});
  });
}

template <class Queue>
void launch_find_value_range(Queue& queue, const void* rows, ElementType type,
                             std::int64_t elements, RowsFound* found) {
  with_element(type, [&](auto element) {
    using Row = decltype(element);
    using Kernel = FindValueRange<typename Queue::Thread, Row>;
    const std::int64_t most = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks;
    const std::int64_t blocks = (elements + Kernel::threads - 1) / Kernel::threads;
    launch(queue, Grid{std::min(blocks, most), 0},
           Kernel{static_cast<const Row*>(rows), elements, found});
  });
}
template <class Queue>
void launch_sample(Queue& queue, const void* rows, std::int64_t count, std::int64_t row_bytes,
                   std::int64_t sample, std::int64_t first, std::int64_t some, unsigned char* out) {
  using Kernel = SampleRows<typename Queue::Thread>;
  const std::int64_t most = std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks;
  const std::int64_t blocks = (some * row_bytes + Kernel::threads - 1) / Kernel::threads;
  launch(
      queue, Grid{std::min(blocks, most), 0},
      Kernel{static_cast<const unsigned char*>(rows), count, row_bytes, sample, first, some, out});
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_PACKING_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_interleave_slots, Queue)      \
  INSTANCE(launch_interleave_rows, Queue)       \
  INSTANCE(launch_encode_panels, Queue)         \
  INSTANCE(launch_encode_whole_rows, Queue)     \
  INSTANCE(launch_find_value_range, Queue)      \
  INSTANCE(launch_sample, Queue)                \
  INSTANCE(sort_rows, Queue)

}  // namespace knear::detail
