// Instantiates the kernels that encode rows for cuda::Queue: see packing_launches.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/packing_launches.hpp"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

template void launch_interleave_slots(cuda::Queue&, const DevicePacking&);
template void launch_interleave_rows(cuda::Queue&, const DevicePacking&, ElementType);
template void launch_encode_panels(cuda::Queue&, const DevicePacking&, ElementType);
template void launch_encode_whole_rows(cuda::Queue&, const DevicePacking&, ElementType);
template void launch_find_value_range(cuda::Queue&, const void*, ElementType, std::int64_t,
                                      RowsFound*);
template void launch_sample(cuda::Queue&, const void*, std::int64_t, std::int64_t, std::int64_t,
                            std::int64_t, std::int64_t, unsigned char*);
template void sort_rows(cuda::Queue&, std::int64_t, int, RowOrder, unsigned, float*, int*);

}  // namespace knear::detail
