#include "knear/knn/device/device_search.hpp"

#include <charconv>

#ifdef KNEAR_CUDA
#include "knear/cuda/device.hpp"
#include "knear/knn/device/queue_factory.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"
#endif

namespace knear {
namespace detail {

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

std::unique_ptr<Search> make_search(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                    std::int64_t k, const KnnOptions& options, Reuse reuse,
                                    std::int64_t already) {
  check_device(options.device);
  const Device device = parse_device(options.device);
  if (!device.cuda) return std::make_unique<Search>(segments, queries, k, options, reuse, already);
#ifdef KNEAR_CUDA
  return std::make_unique<DeviceSearch<cuda::Queue>>(queue_factory(device, options), segments,
                                                     queries, k, options, reuse, already);
#else
  return nullptr;  // check_device has thrown
#endif
}

}  // namespace detail

void check_device(std::string_view device) {
  const detail::Device parsed = detail::parse_device(device);
  if (!parsed.cuda) return;
#ifdef KNEAR_CUDA
  cuda::check_device(parsed.index);
#else
  throw DeviceUnavailable("device is {}, but this knear was built without CUDA", device);
#endif
}

namespace detail {

void check_processor(const KnnOptions& options, std::string_view search) {
  if (parse_device(options.device).cuda)
    throw InvalidArgument("device is {}, but {} runs on the processor alone", options.device,
                          search);
}

}  // namespace detail
}  // namespace knear
