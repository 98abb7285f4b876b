#include "knear/scan/device_choice.hpp"

#include <fmt/format.h>

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

std::string device_of_process(std::string_view text, int process, int devices) {
  if (text != "cuda" || devices == 0) return std::string(text);
  return fmt::format("cuda:{}", process % devices);
}

std::string device_of_process(std::string_view text, int process) {
  int devices = 0;
#ifdef KNEAR_CUDA
  if (device_that_is_here(text).cuda) devices = cuda::device_count();
#else
  device_that_is_here(text);
#endif
  return device_of_process(text, process, devices);
}

}  // namespace knear::detail
