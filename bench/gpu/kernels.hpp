// bench/gpu/kernels.hpp -- loops that each measure one unit of the device, and random data.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace knear::bench {

// How random bits become the elements of an array.
enum class Random {
  unit_f32,     // [0, 1)
  signed_f32,   // [-1, 1)
  signed_bf16,  // [-1, 1), in bf16
  any_i8        // [-128, 127]
};

// Fills data [count]. The values are the same for the same seed on any device.
void fill_random(void* data, std::int64_t count, Random kind, std::uint64_t seed,
                 cudaStream_t stream);

// The operations of one launch: a multiply-add counts two, a compare, select or add one.
struct Launch {
  double operations = 0;
};

// Uses registers only and fills every multiprocessor. `rounds` sets the length; sink holds one
// float for each of the sink_size(...) threads, which write it so that no work can be optimised
// away.
std::int64_t sink_size(int multiprocessors);
Launch launch_fma(int multiprocessors, int rounds, float* sink, cudaStream_t stream);
Launch launch_cop(int multiprocessors, int rounds, float* sink, cudaStream_t stream);
// mma.sync, the warp-wide product of sm_80: m16n8k16 in bf16, m16n8k32 in int8. On sm_90 the
// warpgroup's wgmma is faster (the library products use it).
Launch launch_mma_bf16(int multiprocessors, int rounds, float* sink, cudaStream_t stream);
Launch launch_mma_int8(int multiprocessors, int rounds, float* sink, cudaStream_t stream);

// Copies `bytes` (a multiple of 16) by 16-byte loads and stores.
void launch_copy(const void* from, void* to, std::int64_t bytes, int multiprocessors,
                 cudaStream_t stream);
// Reads `bytes` (a multiple of 16); sink as above.
void launch_read(const void* from, std::int64_t bytes, int multiprocessors, float* sink,
                 cudaStream_t stream);

}  // namespace knear::bench
