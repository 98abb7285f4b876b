// Instantiates the kernels that search codes for cuda::Queue: see code_scan_launches.hpp.
#include "knear/scan/device/code_scan_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/code_scan_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
