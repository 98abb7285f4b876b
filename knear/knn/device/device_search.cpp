#include <charconv>

#include "knear/knn/device/device_engine.hpp"
#include "knear/knn/list_search.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/device.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/knn/device/device_list_search.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/scan/device/compress_cuda.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/query_launches_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"
#endif

namespace knear {

void check_device(std::string_view device) {
  const detail::Device parsed = detail::parse_device(device);
  if (!parsed.cuda) return;
#ifdef KNEAR_CUDA
  cuda::check_device(parsed.index);
#else
  throw DeviceUnavailable("device is {}, but this knear was built without CUDA", device);
#endif
}

std::string device_of_process(std::string_view device, int process) {
  check_device(device);
#ifdef KNEAR_CUDA
  if (device != "cpu") return detail::device_of_process(device, process, cuda::device_count());
#endif
  return detail::device_of_process(device, process, 0);
}

namespace detail {

std::string device_of_process(std::string_view device, int process, int devices) {
  if (device != "cuda" || devices == 0) return std::string(device);
  return fmt::format("cuda:{}", process % devices);
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {true, 0};
  constexpr std::string_view prefix = "cuda:";
  if (text.starts_with(prefix)) {
    Device out{true, 0};
    const std::string_view number = text.substr(prefix.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), out.index);
    if (error == std::errc() && end == number.data() + number.size() && out.index >= 0) return out;
  }
  throw InvalidArgument("device must be cpu, cuda or cuda:N, but is '{}'", text);
}

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
