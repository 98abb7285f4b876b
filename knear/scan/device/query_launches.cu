// Instantiates the kernels that code queries for cuda::Queue: see query_launches.hpp.
#include "knear/scan/device/query_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

template void launch_measure_queries(cuda::Queue&, const DeviceQueryCoding&, ElementType);
template void launch_order_queries(cuda::Queue&, const DeviceQueryCoding&);
template void launch_encode_queries(cuda::Queue&, const DeviceQueryCoding&, ElementType);

}  // namespace knear::detail
