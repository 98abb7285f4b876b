// knear/scan/kernels/row_code_kernels_avx512.inl -- what the two levels with registers of 64 bytes
// share. The including file defines KNEAR_DISTANCES and
//   __m512i plus_squares(__m512i sums, __m512i differences)   of pairs of int16, as int32
#define KNEAR_WIDTH 32

namespace knear::detail {
namespace {

typedef int Sums __attribute__((vector_size(64)));

static inline Sums add_squares(Sums sums, const int16_t* a, const uint8_t* b) {
  const __m512i row = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)));
  return (Sums)plus_squares((__m512i)sums, _mm512_sub_epi16(_mm512_loadu_si512(a), row));
}
// By masks: GCC 12 takes the plain forms for uses of what was not set.
static inline __m256i halves(Sums x) {
  return _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)x, 0),
                          _mm512_maskz_extracti64x4_epi64(0xff, (__m512i)x, 1));
}
static inline void add_up(const Sums* four, uint32_t* out) {
  const __m256i ab = _mm256_hadd_epi32(halves(four[0]), halves(four[1]));
  const __m256i cd = _mm256_hadd_epi32(halves(four[2]), halves(four[3]));
  const __m256i all = _mm256_hadd_epi32(ab, cd);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/row_code_kernels.inl"
