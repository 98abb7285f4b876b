// knear/quantize/plain_kernels.inl -- numbers of scalar codes, written once and compiled for each
// level: KNEAR_TABLE is the table to define. Compilers make vectors of the loops. No library code
// inside: an inline function of this file must not be merged by the linker with another level's.
#include <stdint.h>

#include "knear/quantize/plain_kernels.hpp"

namespace knear::detail {
namespace {

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
static inline int32_t larger(int32_t a, uint32_t bits) {
  const int32_t b = static_cast<int32_t>(bits & 0x7fffffffu);
  return a < b ? b : a;
}

template <bool residual>
static int32_t numbers_of(PlainRow row, PlainLevels levels, uint8_t* __restrict out) {
  int32_t largest = 0;
  for (int64_t j = 0; j < row.n; ++j) {
    const float x = residual ? row.x[j] - row.centroid[j] : row.x[j];
    largest = larger(largest, bits_of(x));
    float share = (x - levels.low[j]) / levels.span[j];
    share = share > 0 ? share : 0;
    share = share < 1 ? share : 1;
    out[j] = static_cast<uint8_t>(static_cast<int32_t>(share * levels.top[j]));
  }
  return largest;
}
static int32_t numbers(PlainRow row, PlainLevels levels, uint8_t* out) {
  return row.centroid ? numbers_of<true>(row, levels, out) : numbers_of<false>(row, levels, out);
}

// As to_halves() of core/element_type.cpp rounds.
template <bool residual>
static int32_t bf16_of(PlainRow row, uint16_t* __restrict out) {
  int32_t largest = 0;
  for (int64_t j = 0; j < row.n; ++j) {
    const uint32_t bits = bits_of(residual ? row.x[j] - row.centroid[j] : row.x[j]);
    largest = larger(largest, bits);
    out[j] = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  return largest;
}
static int32_t bf16(PlainRow row, uint16_t* out) {
  return row.centroid ? bf16_of<true>(row, out) : bf16_of<false>(row, out);
}

template <bool residual>
static int32_t f16_of(PlainRow row, uint16_t* __restrict out) {
  int32_t largest = 0;
  for (int64_t j = 0; j < row.n; ++j) {
    const uint32_t bits = bits_of(residual ? row.x[j] - row.centroid[j] : row.x[j]);
    const uint32_t size = bits & 0x7fffffffu;
    largest = larger(largest, bits);
    const uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    // The last place of 0.5f is 2^-24, the unit of denormal f16: the sum is rounded to it.
    const uint32_t denormal = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    const uint32_t rounded = size < 0x38800000u ? denormal : normal;
    out[j] = static_cast<uint16_t>((bits >> 16 & 0x8000u) | rounded);
  }
  return largest;
}
static int32_t f16(PlainRow row, uint16_t* out) {
  return row.centroid ? f16_of<true>(row, out) : f16_of<false>(row, out);
}

}  // namespace

const PlainKernels& KNEAR_TABLE() {
  static constexpr PlainKernels table = {numbers, f16, bf16};
  return table;
}

}  // namespace knear::detail
