#include "knear/cuda/device.hpp"

#include "knear/core/error.hpp"
#include "knear/cuda/check.hpp"

namespace knear::cuda {
int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  return status == cudaSuccess && count == 0 ? "CUDA counts none" : cudaGetErrorString(status);
}

void check_device(int index) {
  const int count = device_count();
  if (count == 0)
    throw DeviceUnavailable("device is cuda:{}, but no GPU is usable: {}", index, why_no_device());
  if (index < 0 || index >= count)
    throw DeviceUnavailable("device must be between cuda:0 and cuda:{}, but is cuda:{}", count - 1,
                            index);
}

DeviceInfo device_info(int index) {
  check_device(index);
  cudaDeviceProp properties;
  KNEAR_CHECK(cudaGetDeviceProperties(&properties, index));
  DeviceInfo info;
  info.index = index;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.l2_bytes = std::size_t(properties.l2CacheSize);
  int before = 0;
  KNEAR_CHECK(cudaGetDevice(&before));
  KNEAR_CHECK(cudaSetDevice(index));
  KNEAR_CHECK(cudaMemGetInfo(&info.free_bytes, &info.memory_bytes));
  KNEAR_CHECK(cudaSetDevice(before));
  return info;
}

void use_device(int index) {
  check_device(index);
  KNEAR_CHECK(cudaSetDevice(index));
}

}  // namespace knear::cuda
