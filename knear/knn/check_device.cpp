#include "knear/knn/check_device.hpp"

#include "knear/scan/device_choice.hpp"

namespace knear {

void check_device(std::string_view device) { detail::present_devices_of(device); }

void check_one_device(std::string_view device) { detail::present_device_of(device); }

std::string device_of_process(std::string_view device, int process) {
  return detail::device_of_process(device, process);
}

}  // namespace knear
