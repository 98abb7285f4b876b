// knear/knn/device/present_devices.hpp -- the GPUs that searches are given to.
//
//   if (const DeviceMaker* maker = device_maker()) maker->engine(1, 0)   // of cuda:1
#pragma once
#include "knear/knn/device/device_maker.hpp"

namespace knear::detail {

// nullptr: there is no code for any GPU.
const DeviceMaker* device_maker();
// Has these searched by instead, which are then also the GPUs that are here, for a test that is
// alone; nullptr: by those that are here again.
void use_devices(const DeviceMaker* others);

}  // namespace knear::detail
