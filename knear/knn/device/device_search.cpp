#include "knear/knn/device/device_engine.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/queue.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/scan/device/compress_cuda.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/query_launches_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"
#endif

namespace knear {

void check_device(std::string_view device) { detail::device_that_is_here(device); }

namespace detail {

std::unique_ptr<DeviceEngine> open_device(const KnnOptions& options) {
  check_device(options.device);
#ifdef KNEAR_CUDA
  // options.memory bounds what the queue takes of the device; 0: nothing does.
  if (const Device device = parse_device(options.device); device.cuda)
    return std::make_unique<DeviceSearch<cuda::Queue>>(
        [index = device.index, memory = std::max<std::int64_t>(0, options.memory)] {
          return cuda::Queue(index, static_cast<std::size_t>(memory));
        });
#endif
  return nullptr;
}

}  // namespace detail
}  // namespace knear
