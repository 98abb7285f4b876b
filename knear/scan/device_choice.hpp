// knear/scan/device_choice.hpp -- where something runs, from the words that options have for it.
#pragma once
#include <string>
#include <string_view>

namespace knear::detail {

struct Device {
  bool cuda = false;
  int index = 0;
};
// "cpu", "cuda", "cuda:N". Throws InvalidArgument for any other word.
Device parse_device(std::string_view text);

// The same, of a device that is here. Throws DeviceUnavailable where that is a GPU that is not
// there, or knear was built without CUDA.
Device device_that_is_here(std::string_view text);

// As device_of_process() (knn/knn.hpp), of a machine with so many GPUs, and of this one.
std::string device_of_process(std::string_view text, int process, int devices);
std::string device_of_process(std::string_view text, int process);

}  // namespace knear::detail
