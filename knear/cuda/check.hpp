// knear/cuda/check.hpp -- the one way in which CUDA calls are checked.
//
//   KNEAR_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
//   kernel<<<blocks, threads, 0, stream>>>(...);
//   KNEAR_CHECK(cudaGetLastError());
//
// A failure throws, with the call as written, the device and what CUDA says of it:
// DeviceUnavailable where there is no usable device or driver, MemoryBudgetError where its memory
// is full, DeviceError (knear/cuda/device_error.hpp) otherwise. Code that throws stands in
// check.cpp, so that nvcc need not read {fmt}.
#pragma once
#include <cuda_runtime_api.h>

#define KNEAR_CHECK(call) ::knear::cuda::check((call), #call)

namespace knear::cuda {

[[noreturn]] void throw_failure(cudaError_t status, const char* call);

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw_failure(status, call);
}

// Throws InvalidArgument: a check of arguments in a file that nvcc compiles. The message is
// "NAME must be MUST, but is VALUE".
[[noreturn]] void throw_invalid(const char* name, const char* must, long long value);

}  // namespace knear::cuda
