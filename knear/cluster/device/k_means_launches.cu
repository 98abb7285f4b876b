// Instantiates the kernels of k-means for cuda::Queue: see k_means_launches.hpp.
#include "knear/cluster/device/k_means_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/cluster/device/k_means_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
