// Distances of 8-bit codes for AVX2. See row_code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/row_code_kernels.hpp"

#define KNEAR_DISTANCES row_code_distances_avx2
#define KNEAR_WIDTH 16

namespace knear::detail {
namespace {

typedef int Sums __attribute__((vector_size(32)));

static inline __m256i widened(const uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Sums add_squares(Sums sums, const int16_t* a, const uint8_t* b) {
  const __m256i x =
      _mm256_sub_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)), widened(b));
  return (Sums)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16(x, x));
}
static inline void add_up(const Sums* four, uint32_t* out) {
  const __m256i ab = _mm256_hadd_epi32((__m256i)four[0], (__m256i)four[1]);
  const __m256i cd = _mm256_hadd_epi32((__m256i)four[2], (__m256i)four[3]);
  const __m256i all = _mm256_hadd_epi32(ab, cd);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/row_code_kernels.inl"
