// Instantiates the kernels that code queries for cuda::Queue: see query_launches.hpp.
#include "knear/scan/device/query_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/query_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
