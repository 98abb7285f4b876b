// The tile kernels for what every x86-64 has: SSE2. See tile_kernels.inl.
#include <emmintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

#define KNEAR_TABLE scan_kernels_scalar
#define KNEAR_WIDTH 4
#define KNEAR_BLOCK 4

namespace knear::detail {
namespace {

typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));

// Sums wrap around modulo 2^32 (tile_kernels.hpp): unsigned, where that is defined.
static inline Ints add(Ints a, Ints b) { return (Ints)((Words)a + (Words)b); }
static inline Ints subtract(Ints a, Ints b) { return (Ints)((Words)a - (Words)b); }

// There is no u8 x s8 product: even and odd bytes are widened to int16 in place.
static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  const __m128i y = (__m128i)rows, x = (__m128i)query;
  const __m128i y_even = _mm_and_si128(y, _mm_set1_epi16(255)), y_odd = _mm_srli_epi16(y, 8);
  const __m128i x_even = _mm_srai_epi16(_mm_slli_epi16(x, 8), 8), x_odd = _mm_srai_epi16(x, 8);
  return add(add(sum, (Ints)_mm_madd_epi16(y_even, x_even)), (Ints)_mm_madd_epi16(y_odd, x_odd));
}
static inline Ints dot_int16(Ints sum, Ints rows, Ints query) {
  return add(sum, (Ints)_mm_madd_epi16((__m128i)rows, (__m128i)query));
}
static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return sum + rows * query;
}
static inline uint32_t sign_bits(Ints x) {
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)x));
}
// For NaN these instructions return their second operand.
static inline Doubles clamp(Doubles x, double low, double high) {
  const __m128d bounded = _mm_max_pd((__m128d)x, _mm_set1_pd(low));
  return (Doubles)_mm_min_pd(bounded, _mm_set1_pd(high));
}
static inline Floats at_least(Floats x, float low) {
  return (Floats)_mm_max_ps((__m128)x, _mm_set1_ps(low));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/tile_kernels.inl"
