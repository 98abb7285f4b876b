// knear/scan/device/compress_cuda.hpp -- the launches of compress.hpp that nvcc compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/compress.hpp"

namespace knear::detail {

#define KNEAR_INSTANCE extern template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/compress_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
