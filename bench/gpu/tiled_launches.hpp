// bench/gpu/tiled_launches.hpp -- the launches of tiled_search.hpp that nvcc compiled.
#pragma once
#include "bench/gpu/tiled_search.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/launches_cuda.hpp"

namespace knear::bench {

extern template void launch_select_from_tile(cuda::Queue&, const float*, std::int64_t, const float*,
                                             float, std::int64_t, int, int, int, float*, int*);
extern template void launch_select_from_tile(cuda::Queue&, const std::int32_t*, std::int64_t,
                                             const float*, float, std::int64_t, int, int, int,
                                             float*, int*);
extern template void launch_list_kept(cuda::Queue&, const int*, std::int64_t, int, detail::Entry*,
                                      int*);

}  // namespace knear::bench
