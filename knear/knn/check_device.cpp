#include "knear/knn/check_device.hpp"

#include "knear/scan/device_choice.hpp"

namespace knear {

void check_device(std::string_view device) { detail::devices_that_are_here(device); }

void check_one_device(std::string_view device) { detail::device_that_is_here(device); }

std::string device_of_process(std::string_view device, int process) {
  return detail::device_of_process(device, process);
}

}  // namespace knear
