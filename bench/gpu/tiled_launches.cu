// Instantiates the kernels of tiled_search.hpp for cuda::Queue.
#include "bench/gpu/tiled_launches.hpp"
#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::bench {

template void launch_select_from_tile(cuda::Queue&, const float*, std::int64_t, const float*, float,
                                      std::int64_t, int, int, int, float*, int*);
template void launch_select_from_tile(cuda::Queue&, const std::int32_t*, std::int64_t, const float*,
                                      float, std::int64_t, int, int, int, float*, int*);
template void launch_list_kept(cuda::Queue&, const int*, std::int64_t, int, detail::Entry*, int*);

}  // namespace knear::bench
