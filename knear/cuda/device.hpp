// knear/cuda/device.hpp -- which GPUs are here, and what one of them is.
#pragma once
#include <cstddef>
#include <string>

namespace knear::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0, free_bytes = 0, l2_bytes = 0;
  // The highest clock of the multiprocessors, and the rate of the memory by its clock and width; 0
  // where the driver does not say.
  double cycles_per_second = 0, memory_bytes_per_second = 0;
};

// The number of usable devices; 0 without a driver. Throws nothing for "none here".
int device_count();
// Why device_count() is 0, in one line.
std::string why_no_device();

// Throws DeviceUnavailable, naming both numbers, unless 0 <= index < device_count().
DeviceInfo device_info(int index);

// Throws like device_info(), which asks for more and so takes longer.
void check_device(int index);

// Makes the device current for the calling thread.
void use_device(int index);

}  // namespace knear::cuda
