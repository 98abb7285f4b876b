#include "knear/scan/device_choice.hpp"

#include <charconv>

#include "knear/core/error.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/device.hpp"
#endif

namespace knear::detail {

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

Device device_that_is_here(std::string_view text) {
  const Device device = parse_device(text);
  if (!device.cuda) return device;
#ifdef KNEAR_CUDA
  cuda::check_device(device.index);
  return device;
#else
  throw DeviceUnavailable("device is {}, but this knear was built without CUDA", text);
#endif
}

}  // namespace knear::detail
