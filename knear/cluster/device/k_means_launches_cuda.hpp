// knear/cluster/device/k_means_launches_cuda.hpp -- the launches of k_means_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cluster/device/k_means_launches.hpp"
#include "knear/cuda/queue.hpp"

namespace knear::detail {

#define KNEAR_INSTANCE extern template
#define KNEAR_QUEUE cuda::Queue
#include "knear/cluster/device/k_means_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
