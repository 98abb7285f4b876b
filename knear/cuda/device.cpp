#include "knear/cuda/device.hpp"

#include "knear/core/error.hpp"
#include "knear/cuda/check.hpp"

namespace knear::cuda {
namespace {

// 0 where the driver does not know it.
double attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, index) == cudaSuccess) return value;
  (void)cudaGetLastError();
  return 0;
}

}  // namespace

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
  // Not of the properties, which CUDA 13 has without clocks. In kHz and bits; the memory transfers
  // twice a cycle.
  info.cycles_per_second = 1e3 * attribute(cudaDevAttrClockRate, index);
  info.memory_bytes_per_second = 2 * 1e3 * attribute(cudaDevAttrMemoryClockRate, index) *
                                 attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
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
