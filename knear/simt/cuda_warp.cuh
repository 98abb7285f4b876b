// knear/simt/cuda_warp.cuh -- the warp of the GPU: a value is a register, a member an instruction.
//
// All 32 lanes call each member together.
#pragma once
#include "knear/simt/warp.hpp"

namespace knear {

struct CudaWarp {
  template <class T>
  using Lanes = T;
  using Mask = bool;

  static constexpr unsigned all = 0xffffffffu;

  __device__ __forceinline__ bool any(bool m) const { return __any_sync(all, m); }
  template <class T>
  __device__ __forceinline__ T select(bool m, T a, T b) const {
    return m ? a : b;
  }
  __device__ __forceinline__ float minimum(float a, float b) const { return fminf(a, b); }
  template <class T>
  __device__ __forceinline__ T shuffle_xor(T x, int distance) const {
    return __shfl_xor_sync(all, x, distance);
  }
  template <class T>
  __device__ __forceinline__ T broadcast(T x, int source) const {
    return __shfl_sync(all, x, source);
  }
  template <class T>
  __device__ __forceinline__ T fill(T x) const {
    return x;
  }
  // Blocks are one-dimensional with a multiple of 32 threads.
  template <class T>
  __device__ __forceinline__ T lane() const {
    return T(threadIdx.x % warp_size);
  }
  __device__ __forceinline__ bool lanes_with(int bit) const { return (threadIdx.x & bit) != 0; }
  template <class T>
  __device__ __forceinline__ T load(const T* from) const {
    return from[lane<int>()];
  }
  template <class T>
  __device__ __forceinline__ T load(const T* from, int count, T otherwise) const {
    return lane<int>() < count ? from[lane<int>()] : otherwise;
  }
  template <class T>
  __device__ __forceinline__ void store(T* to, int count, T x) const {
    if (lane<int>() < count) to[lane<int>()] = x;
  }
};

static_assert(Warp<CudaWarp>);

}  // namespace knear
