// Instantiates the kernels of a self-join for cuda::Queue: see self_join_launches.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/self_join_launches.hpp"
#include "knear/simt/cuda_thread.cuh"
#include "knear/simt/cuda_warpgroup_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/self_join_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
