// Instantiates the kernels of the compression for cuda::Queue: see compress.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/compress.hpp"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE cuda::Queue
#include "knear/scan/device/compress_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
