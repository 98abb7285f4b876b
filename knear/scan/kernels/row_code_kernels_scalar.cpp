// Distances of 8-bit codes for what every x86-64 has: SSE2. See row_code_kernels.inl.
#include <emmintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/row_code_kernels.hpp"

#define KNEAR_DISTANCES row_code_distances_scalar
#define KNEAR_WIDTH 16

namespace knear::detail {
namespace {

typedef int Sums __attribute__((vector_size(16)));

static inline __m128i load(const int16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline Sums add_squares(Sums sums, const int16_t* a, const uint8_t* b) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
  const __m128i low = _mm_sub_epi16(load(a), _mm_unpacklo_epi8(y, zero));
  const __m128i high = _mm_sub_epi16(load(a + 8), _mm_unpackhi_epi8(y, zero));
  return (Sums)_mm_add_epi32((__m128i)sums,
                             _mm_add_epi32(_mm_madd_epi16(low, low), _mm_madd_epi16(high, high)));
}
static inline void add_up(const Sums* four, uint32_t* out) {
  const __m128i a = (__m128i)four[0], b = (__m128i)four[1], c = (__m128i)four[2],
                d = (__m128i)four[3];
  const __m128i ab = _mm_add_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
  const __m128i cd = _mm_add_epi32(_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_add_epi32(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/row_code_kernels.inl"
