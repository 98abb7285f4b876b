// knear/scan/device/query_launches_cuda.hpp -- the launches of query_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/query_launches.hpp"

namespace knear::detail {

extern template void launch_measure_queries(cuda::Queue&, const DeviceQueryCoding&, ElementType);
extern template void launch_order_queries(cuda::Queue&, const DeviceQueryCoding&);
extern template void launch_encode_queries(cuda::Queue&, const DeviceQueryCoding&, ElementType);

}  // namespace knear::detail
