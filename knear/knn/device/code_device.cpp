#include "knear/knn/device/code_device.hpp"

#include "knear/knn/device/device_engine.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/queue.hpp"
#include "knear/knn/device/code_device_search.hpp"
#include "knear/scan/device/code_scan_launches_cuda.hpp"
#endif

namespace knear::detail {

std::unique_ptr<CodeDevice> open_code_device(const KnnOptions& options) {
  check_device(options.device);
#ifdef KNEAR_CUDA
  if (const Device device = parse_device(options.device); device.cuda)
    return std::make_unique<CodeDeviceSearch<cuda::Queue>>(
        fmt::format("cuda:{}", device.index),
        [index = device.index] { return cuda::Queue(index); });
#endif
  return nullptr;
}

}  // namespace knear::detail
