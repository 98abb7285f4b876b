#include "knear/cuda/check.hpp"

#include "knear/core/error.hpp"
#include "knear/cuda/device_error.hpp"

namespace knear::cuda {

void throw_failure(cudaError_t status, const char* call) {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) device = -1;
  (void)cudaGetLastError();  // the error is reported here; leave none behind for the next check
  const std::string message =
      fmt::format("{} on device {}: {} ({})", call, device < 0 ? "none" : std::to_string(device),
                  cudaGetErrorString(status), cudaGetErrorName(status));
  switch (status) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorInitializationError:
    case cudaErrorNoKernelImageForDevice:
      throw DeviceUnavailable("{}", message);
    case cudaErrorMemoryAllocation:
      throw MemoryBudgetError("{}", message);
    default:
      throw DeviceError(message);
  }
}

void throw_invalid(const char* name, const char* must, long long value) {
  throw InvalidArgument("{} must be {}, but is {}", name, must, value);
}

}  // namespace knear::cuda
