// Instantiates the kernels of the scan for cuda::Queue: see scan_launches.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/scan_launches.hpp"
#include "knear/simt/cuda_thread.cuh"
#include "knear/simt/cuda_warpgroup_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/scan_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
