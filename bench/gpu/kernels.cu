#include "bench/gpu/kernels.hpp"

#include <cuda_bf16.h>

#include "bench/gpu/hash.hpp"
#include "knear/cuda/check.hpp"

namespace knear::bench {
namespace {

constexpr int threads = 256, blocks_per_multiprocessor = 4;

__global__ void fill_kernel(void* data, std::int64_t count, Random kind, std::uint64_t seed) {
  const std::int64_t step = std::int64_t(gridDim.x) * blockDim.x;
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t bits = hash(seed, std::uint64_t(i));
    switch (kind) {
      case Random::unit_f32:
        static_cast<float*>(data)[i] = unit_float(bits);
        break;
      case Random::signed_f32:
        static_cast<float*>(data)[i] = 2 * unit_float(bits) - 1;
        break;
      case Random::signed_bf16:
        static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(2 * unit_float(bits) - 1);
        break;
      case Random::any_i8:
        static_cast<signed char*>(data)[i] = static_cast<signed char>(bits & 255);
        break;
    }
  }
}

__device__ std::int64_t thread_number() {
  return std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}

// 16 independent sums hide the latency of 4 cycles on 4 schedulers with warps to spare.
__global__ void __launch_bounds__(threads) fma_kernel(int rounds, float* sink) {
  const float a = unit_float(hash(1, thread_number())), b = unit_float(hash(2, thread_number()));
  float sums[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i] = unit_float(hash(3 + i, thread_number()));
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 16; ++i) sums[i] = fmaf(sums[i], a, b);
  float total = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) total += sums[i];
  sink[thread_number()] = total;
}

// Compares, selects and adds on 32-bit lanes. The select takes neither of the compared values, so
// that it cannot become a minimum.
__global__ void __launch_bounds__(threads) cop_kernel(int rounds, float* sink) {
  const float a = unit_float(hash(1, thread_number())), b = unit_float(hash(2, thread_number()));
  const float c = unit_float(hash(4, thread_number())) - 0.5f;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = unit_float(hash(5 + i, thread_number()));
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 16; ++i) x[i] = (x[i] < c ? a : b) + x[(i + 1) % 16];
  float total = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) total += x[i];
  sink[thread_number()] = total;
}

constexpr int products = 8;  // independent ones per warp

// bf16 pairs with magnitudes in [0.5, 1) and random signs and mantissas.
__device__ unsigned bf16_pair(std::uint64_t bits) {
  return (unsigned(bits) & 0x807f807fu) | 0x3f003f00u;
}

__global__ void __launch_bounds__(threads) mma_bf16_kernel(int rounds, float* sink) {
  unsigned a[4], b[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = bf16_pair(hash(i, thread_number()));
#pragma unroll
  for (int i = 0; i < 2; ++i) b[i] = bf16_pair(hash(4 + i, thread_number()));
  float c[products][4] = {};
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int p = 0; p < products; ++p)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[p][0]), "+f"(c[p][1]), "+f"(c[p][2]), "+f"(c[p][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  float total = 0;
#pragma unroll
  for (int p = 0; p < products; ++p) total += c[p][0] + c[p][1] + c[p][2] + c[p][3];
  sink[thread_number()] = total;
}

__global__ void __launch_bounds__(threads) mma_int8_kernel(int rounds, float* sink) {
  unsigned a[4], b[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = unsigned(hash(i, thread_number()));
#pragma unroll
  for (int i = 0; i < 2; ++i) b[i] = unsigned(hash(4 + i, thread_number()));
  int c[products][4] = {};
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int p = 0; p < products; ++p)
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+r"(c[p][0]), "+r"(c[p][1]), "+r"(c[p][2]), "+r"(c[p][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  unsigned total = 0;
#pragma unroll
  for (int p = 0; p < products; ++p)
    total += unsigned(c[p][0]) + unsigned(c[p][1]) + unsigned(c[p][2]) + unsigned(c[p][3]);
  sink[thread_number()] = float(total);
}

// Four 16-byte loads in flight per thread; a grid of a few blocks per multiprocessor that strides.
constexpr int in_flight = 4;

__global__ void __launch_bounds__(threads)
    copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to, std::int64_t count) {
  const std::int64_t block = std::int64_t(threads) * in_flight;
  for (std::int64_t begin = blockIdx.x * block; begin < count; begin += gridDim.x * block) {
    uint4 x[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (const std::int64_t at = begin + i * threads + threadIdx.x; at < count) x[i] = from[at];
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (const std::int64_t at = begin + i * threads + threadIdx.x; at < count) to[at] = x[i];
  }
}

__global__ void __launch_bounds__(threads)
    read_kernel(const uint4* __restrict__ from, std::int64_t count, float* sink) {
  const std::int64_t block = std::int64_t(threads) * in_flight;
  unsigned sum = 0;
  for (std::int64_t begin = blockIdx.x * block; begin < count; begin += gridDim.x * block) {
    uint4 x[in_flight] = {};
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (const std::int64_t at = begin + i * threads + threadIdx.x; at < count) x[i] = from[at];
#pragma unroll
    for (int i = 0; i < in_flight; ++i) sum += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  sink[thread_number()] = float(sum);
}

int grid(int multiprocessors) { return multiprocessors * blocks_per_multiprocessor; }

template <class Kernel>
Launch launch(Kernel kernel, int multiprocessors, int rounds, float* sink, double per_thread_round,
              cudaStream_t stream) {
  kernel<<<grid(multiprocessors), threads, 0, stream>>>(rounds, sink);
  KNEAR_CHECK(cudaGetLastError());
  return {double(grid(multiprocessors)) * threads * rounds * per_thread_round};
}

}  // namespace

std::int64_t sink_size(int multiprocessors) {
  return std::int64_t(grid(multiprocessors)) * threads;
}

void fill_random(void* data, std::int64_t count, Random kind, std::uint64_t seed,
                 cudaStream_t stream) {
  fill_kernel<<<4096, threads, 0, stream>>>(data, count, kind, seed);
  KNEAR_CHECK(cudaGetLastError());
}

Launch launch_fma(int multiprocessors, int rounds, float* sink, cudaStream_t stream) {
  return launch(fma_kernel, multiprocessors, rounds, sink, 2.0 * 8 * 16, stream);
}
Launch launch_cop(int multiprocessors, int rounds, float* sink, cudaStream_t stream) {
  return launch(cop_kernel, multiprocessors, rounds, sink, 3.0 * 8 * 16, stream);
}
Launch launch_mma_bf16(int multiprocessors, int rounds, float* sink, cudaStream_t stream) {
  return launch(mma_bf16_kernel, multiprocessors, rounds, sink, 2.0 * 16 * 8 * 16 * products / 32,
                stream);
}
Launch launch_mma_int8(int multiprocessors, int rounds, float* sink, cudaStream_t stream) {
  return launch(mma_int8_kernel, multiprocessors, rounds, sink, 2.0 * 16 * 8 * 32 * products / 32,
                stream);
}

void launch_copy(const void* from, void* to, std::int64_t bytes, int multiprocessors,
                 cudaStream_t stream) {
  copy_kernel<<<grid(multiprocessors) * 2, threads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16);
  KNEAR_CHECK(cudaGetLastError());
}

void launch_read(const void* from, std::int64_t bytes, int multiprocessors, float* sink,
                 cudaStream_t stream) {
  read_kernel<<<grid(multiprocessors), threads, 0, stream>>>(static_cast<const uint4*>(from),
                                                             bytes / 16, sink);
  KNEAR_CHECK(cudaGetLastError());
}

}  // namespace knear::bench
