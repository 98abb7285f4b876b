// knear/scan/device/code_scan_launches_cuda.hpp -- the launches of code_scan_launches.hpp that nvcc
// compiled, and the selection that goes with them (knear::select_cuda).
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/code_scan_launches.hpp"
#include "knear/select/warp/device_select.hpp"

namespace knear {
extern template void select_rows(cuda::Queue&, const DeviceRows&, std::int64_t,
                                 const DeviceSelectOptions&, float*, int*);
}

namespace knear::detail {

#define KNEAR_INSTANCE extern template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/code_scan_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
