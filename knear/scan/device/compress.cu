// Instantiates the kernels of the compression for cuda::Queue: see compress.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/compress.hpp"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

template void launch_compress(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                              const DeviceLists&, const DevicePairs&, std::int64_t);
template void launch_compress_more(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                   const DeviceLists&, const DevicePairs&, std::int64_t,
                                   std::int64_t);
template void launch_measure_pairs(cuda::Queue&, const DeviceBaseView&, const DevicePairs&,
                                   std::int64_t, const double*, const double*, const void*,
                                   ElementType, std::int64_t);

}  // namespace knear::detail
