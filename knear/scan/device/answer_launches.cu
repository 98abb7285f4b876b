// Instantiates the kernels for answers in device memory for cuda::Queue: see answer_launches.hpp.
#include "knear/scan/device/answer_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/answer_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
