// knear/scan/device_choice.hpp -- where something runs, from the words that options have for it.
//
//   parse_devices("cuda:0,2")    // the processor, or GPUs: these two
//   parse_device("cuda:1")       // the same for what runs in one place
//
// Which GPUs are here is CUDA's to say. Tests put emulated ones in their place (use_gpus()).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "knear/cost/device_plan.hpp"

namespace knear::detail {

struct Device {
  bool cuda = false;
  int index = 0;
};
// "cpu", "cuda", "cuda:N". Throws InvalidArgument for any other word.
Device parse_device(std::string_view text);

// GPUs by their numbers, in the order in which they were named; the processor where there are none.
struct Devices {
  std::vector<int> gpus = {};

  bool cuda() const { return !gpus.empty(); }
  bool several() const { return gpus.size() > 1; }
};
// "cpu", "cuda", "cuda:N", or several GPUs as "cuda:N,N,...". Throws InvalidArgument for any other
// word, and for a GPU that is named twice. "auto" is another word: placed_request() of
// knn/faster_device.hpp has decided that before.
Devices parse_devices(std::string_view text);
// The inverse.
std::string words_of(const Devices& devices);

// The same, of devices that are here. Throws DeviceUnavailable where one is a GPU that is not
// there, or knear was built without CUDA.
Device present_device_of(std::string_view text);
Devices present_devices_of(std::string_view text);

// The GPUs of this process.
class Gpus {
 public:
  virtual ~Gpus() = default;
  virtual int count() const = 0;
  // Throws DeviceUnavailable, naming both numbers, unless there is one of this number.
  virtual void check(int index) const = 0;
  // What there is to know of one that is there, for plans.
  virtual DeviceTraits traits(int index) const = 0;
};
// What CUDA says of one that is there; where knear has code for CUDA.
DeviceTraits traits_of_cuda(int index);
// nullptr: there is no code for any.
const Gpus* present_gpus();
// These instead, for a test that is alone; nullptr: those that are here again.
void use_gpus(const Gpus* others);

// As device_of_process() (knn/knn.hpp), of a machine with so many GPUs, and of this one.
std::string device_of_process(std::string_view text, int process, int devices);
std::string device_of_process(std::string_view text, int process);

}  // namespace knear::detail
