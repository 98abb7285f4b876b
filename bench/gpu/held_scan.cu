#include "bench/gpu/held_scan.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/scan/device/launches_cuda.hpp"
#include "knear/simt/cuda_thread.cuh"

namespace knear::bench {

void launch_held_scan(cuda::Queue& queue, const detail::DeviceBaseView& base,
                      const detail::DeviceQueryView& queries, const detail::DeviceLists& lists) {
  const auto with = [&](auto whole) {
    using Kernel = detail::ScanPanels<CudaThread, true, whole.value, false, true>;
    Kernel kernel{};
    kernel.base = base, kernel.queries = queries, kernel.lists = lists;
    kernel.end = static_cast<int>(base.panels);
    const std::int64_t splits =
        detail::splits_of_many<Kernel>(queue.multiprocessors(), queries.blocks, base.panels);
    kernel.splits = static_cast<int>(splits);
    launch(queue, Grid{queries.blocks * splits, Kernel::shared_bytes(base.slices)}, kernel);
  };
  if (base.integer)
    with(std::true_type{});
  else
    with(std::false_type{});
}

}  // namespace knear::bench
