#include "knear/knn/device/device_engine.hpp"
#include "knear/knn/list_search.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/queue.hpp"
#include "knear/knn/device/device_list_search.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/scan/device/compress_cuda.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/query_launches_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"
#endif

namespace knear {

void check_device(std::string_view device) { detail::device_that_is_here(device); }

std::string device_of_process(std::string_view device, int process) {
  return detail::device_of_process(device, process);
}

namespace detail {

#ifdef KNEAR_CUDA
namespace {

// options.memory bounds what the queue takes of the device; 0: nothing does.
std::function<cuda::Queue()> opener(const KnnOptions& options) {
  return [index = parse_device(options.device).index,
          memory = std::max<std::int64_t>(0, options.memory)] {
    return cuda::Queue(index, static_cast<std::size_t>(memory));
  };
}

}  // namespace
#endif

std::unique_ptr<DeviceEngine> open_device(const KnnOptions& options) {
  check_device(options.device);
#ifdef KNEAR_CUDA
  if (parse_device(options.device).cuda)
    return std::make_unique<DeviceSearch<cuda::Queue>>(opener(options));
#endif
  return nullptr;
}

std::unique_ptr<ProbedSearch> open_list_search(const SearchRequest& request,
                                               std::int64_t more_bytes) {
  check_device(request.options.device);
#ifdef KNEAR_CUDA
  if (parse_device(request.options.device).cuda)
    return std::make_unique<DeviceListSearch<cuda::Queue>>(request, opener(request.options),
                                                           more_bytes);
#endif
  return std::make_unique<ListSearch>(request, more_bytes);
}

}  // namespace detail
}  // namespace knear
