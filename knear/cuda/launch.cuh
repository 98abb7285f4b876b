// knear/cuda/launch.cuh -- a kernel of knear/simt/thread.hpp on the device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "knear/cuda/queue.hpp"

namespace knear::cuda {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, Kernel::resident_blocks)
    run_kernel(const __grid_constant__ Kernel kernel) {
  kernel({});
}

// Asynchronous. grid: a knear::Grid. Kernel::resident_blocks is how many blocks must fit a
// multiprocessor at once, from which the compiler takes its limit of registers. Throws
// InvalidArgument unless 1 <= grid.blocks < 2^31; DeviceError if the launch fails, as where the
// device does not hold the blocks of a grid that run together.
template <class Grid, class Kernel>
void launch(Queue& queue, const Grid& grid, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel>, "arguments travel as bytes");
  if (grid.blocks < 1 || grid.blocks >= std::int64_t{1} << 31)
    throw_invalid("grid.blocks", "between 1 and 2^31 - 1", grid.blocks);
  const CurrentDevice current(queue.device());
  const auto* const function = reinterpret_cast<const void*>(run_kernel<Kernel>);
  if (grid.shared_bytes > 48 << 10) queue.allow_shared_memory(function, grid.shared_bytes);
  // Its own status: what cudaGetLastError() says may be somebody else's.
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  const dim3 blocks(static_cast<unsigned>(grid.blocks)), threads(Kernel::threads);
  KNEAR_CHECK(grid.together ? cudaLaunchCooperativeKernel(function, blocks, threads, arguments,
                                                          grid.shared_bytes, queue.stream())
                            : cudaLaunchKernel(function, blocks, threads, arguments,
                                               grid.shared_bytes, queue.stream()));
}

}  // namespace knear::cuda
