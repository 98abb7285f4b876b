// knear/knn/device_peaks.hpp -- what a GPU can do, for plans (cost/device_plan.hpp).
//
//   const DevicePeaks gpu = peaks_of_device("cuda:1");
//   const FasterPlace where = faster_place(shape, gpu, estimated_peaks(active_isa(), 0));
//
// What CUDA reports and what data sheets say; nothing is measured. It takes as long as a process's
// first use of the device does.
#pragma once
#include <string_view>

#include "knear/cost/device_plan.hpp"

namespace knear {

// device: "cuda" or "cuda:N". Throws InvalidArgument for any other word, and DeviceUnavailable
// where there is no such GPU, or knear was built without CUDA.
DevicePeaks peaks_of_device(std::string_view device);

}  // namespace knear
