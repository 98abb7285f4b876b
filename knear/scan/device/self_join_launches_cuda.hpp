// knear/scan/device/self_join_launches_cuda.hpp -- the launches of self_join_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/self_join_launches.hpp"

namespace knear::detail {

#define KNEAR_INSTANCE extern template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/self_join_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
