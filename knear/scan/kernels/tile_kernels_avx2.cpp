// The tile kernels for AVX2 with FMA. See tile_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

#define KNEAR_TABLE scan_kernels_avx2
#define KNEAR_WIDTH 8
#define KNEAR_BLOCK 6

namespace knear::detail {
namespace {

typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(32)));

// Sums wrap around modulo 2^32 (tile_kernels.hpp): unsigned, where that is defined.
static inline Ints add(Ints a, Ints b) { return (Ints)((Words)a + (Words)b); }
static inline Ints subtract(Ints a, Ints b) { return (Ints)((Words)a - (Words)b); }

// vpmaddubsw would saturate: even and odd bytes are widened to int16 in place. Two products and two
// additions for 32 multiply-adds: the rate of fp32 from a quarter of the bytes.
static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  const __m256i y = (__m256i)rows, x = (__m256i)query;
  const __m256i y_even = _mm256_and_si256(y, _mm256_set1_epi16(255));
  const __m256i y_odd = _mm256_srli_epi16(y, 8);
  const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
  const __m256i x_odd = _mm256_srai_epi16(x, 8);
  return add(add(sum, (Ints)_mm256_madd_epi16(y_even, x_even)),
             (Ints)_mm256_madd_epi16(y_odd, x_odd));
}
static inline Ints dot_int16(Ints sum, Ints rows, Ints query) {
  return add(sum, (Ints)_mm256_madd_epi16((__m256i)rows, (__m256i)query));
}
static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return (Floats)_mm256_fmadd_ps((__m256)rows, (__m256)query, (__m256)sum);
}
static inline uint32_t sign_bits(Ints x) {
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)x));
}
// For NaN these instructions return their second operand.
static inline Doubles clamp(Doubles x, double low, double high) {
  const __m256d bounded = _mm256_max_pd((__m256d)x, _mm256_set1_pd(low));
  return (Doubles)_mm256_min_pd(bounded, _mm256_set1_pd(high));
}
static inline Floats at_least(Floats x, float low) {
  return (Floats)_mm256_max_ps((__m256)x, _mm256_set1_ps(low));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/tile_kernels.inl"
