// knear/quantize/plain_kernels.hpp -- the table behind plain_codes.hpp: plain pointers, one per
// level.
#pragma once
#include <cstdint>

namespace knear {
enum class Isa : std::uint8_t;  // core/cpu.hpp
}
namespace knear::detail {

// A row [n] of which a centroid [n] is taken first; nullptr: none.
struct PlainRow {
  const float* x;
  const float* centroid;
  std::int64_t n;
};
// Columns of levels [n]: number trunc(clamp((x - low) / span, 0, 1) * top), each step rounded to
// float.
struct PlainLevels {
  const float *low, *span, *top;
};

// All return the bits of the largest absolute value that was coded, which a number at least as
// large as those of infinity shows to be infinite or NaN; codes of such rows mean nothing.
struct PlainKernels {
  std::int32_t (*numbers)(PlainRow row, PlainLevels levels, std::uint8_t* out);
  std::int32_t (*f16)(PlainRow row, std::uint16_t* out);
  std::int32_t (*bf16)(PlainRow row, std::uint16_t* out);
};

// Those that serve a level; one source for each kind of processor knows which there are.
const PlainKernels& plain_kernels(Isa isa);

const PlainKernels& plain_kernels_scalar();
const PlainKernels& plain_kernels_avx2();
const PlainKernels& plain_kernels_avx512();

}  // namespace knear::detail
