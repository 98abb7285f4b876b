// bench/gpu/held_scan.hpp -- the scan of many queries whose codes stay in registers, a form that no
// search takes before a GPU has shown that it is faster: beside the usual one, on the same panels.
#pragma once
#include <cstdint>

#include "knear/cuda/queue.hpp"
#include "knear/scan/device/scan_kernels.hpp"

namespace knear::bench {

// Scans all panels as launch_scan() does, in as many blocks, for rows of at most 128 columns.
void launch_held_scan(cuda::Queue& queue, const detail::DeviceBaseView& base,
                      const detail::DeviceQueryView& queries, const detail::DeviceLists& lists);

}  // namespace knear::bench
