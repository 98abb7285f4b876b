// knear/scan/device/packing_cuda.hpp -- the launches of packing_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/packing_launches.hpp"

namespace knear::detail {

extern template void launch_interleave_slots(cuda::Queue&, const DevicePacking&);
extern template void launch_interleave_rows(cuda::Queue&, const DevicePacking&, ElementType);
extern template void launch_encode_panels(cuda::Queue&, const DevicePacking&, ElementType);
extern template void launch_encode_whole_rows(cuda::Queue&, const DevicePacking&, ElementType);
extern template void launch_find_value_range(cuda::Queue&, const void*, ElementType, std::int64_t,
                                             RowsFound*);
extern template void launch_sample(cuda::Queue&, const void*, std::int64_t, std::int64_t,
                                   std::int64_t, std::int64_t, std::int64_t, unsigned char*);
extern template void sort_rows(cuda::Queue&, std::int64_t, int, RowOrder, unsigned, float*, int*);

}  // namespace knear::detail
