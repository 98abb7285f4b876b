// knear/scan/device/compress_cuda.hpp -- the launches of compress.hpp that nvcc compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/compress.hpp"

namespace knear::detail {

extern template void launch_compress(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                     const DeviceLists&, const DevicePairs&, std::int64_t);
extern template void launch_compress_more(cuda::Queue&, const DeviceBaseView&,
                                          const DeviceQueryView&, const DeviceLists&,
                                          const DevicePairs&, std::int64_t, std::int64_t);
extern template void launch_measure_pairs(cuda::Queue&, const DeviceBaseView&, const DevicePairs&,
                                          std::int64_t, const double*, const double*, const void*,
                                          ElementType, std::int64_t);

}  // namespace knear::detail
