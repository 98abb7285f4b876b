// Instantiates the kernels that encode rows for cuda::Queue: see packing_launches.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/packing_launches.hpp"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/packing_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
