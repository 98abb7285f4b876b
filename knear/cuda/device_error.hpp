// knear/cuda/device_error.hpp -- a CUDA call failed on a device that is there.
#pragma once
#include "knear/core/error.hpp"

namespace knear::cuda {

// A bug or a broken device; after most of these the process can't use the device any more.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace knear::cuda
