// Estimates of links for AVX-512. See link_code_kernels.hpp.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/link_code_kernels.hpp"

namespace knear::detail {
namespace {

// Sums of 16 links: those of even bytes with the odd ones above them, as they are added as 16 bits,
// and those of odd bytes.
struct Sums {
  __m512i all, odd;
};
static inline Sums plus(Sums sums, __m512i looked_up) {
  return {_mm512_add_epi16(sums.all, looked_up),
          _mm512_add_epi16(sums.odd, _mm512_maskz_srli_epi16(~0u, looked_up, 8))};
}
// By masks: GCC 12 takes the plain forms for uses of what was not set.
static inline __m512i widened(__m128i even, __m128i odd) {
  return _mm512_maskz_cvtepu16_epi32(
      0xffff, _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd)));
}
// Returns the sums of 16 links as 32 bits.
static inline __m512i added_up(Sums sums) {
  const __m512i even = _mm512_sub_epi16(sums.all, _mm512_maskz_slli_epi16(~0u, sums.odd, 8));
  const __m512i quarters[4] = {widened(_mm512_maskz_extracti32x4_epi32(15, even, 0),
                                       _mm512_maskz_extracti32x4_epi32(15, sums.odd, 0)),
                               widened(_mm512_maskz_extracti32x4_epi32(15, even, 1),
                                       _mm512_maskz_extracti32x4_epi32(15, sums.odd, 1)),
                               widened(_mm512_maskz_extracti32x4_epi32(15, even, 2),
                                       _mm512_maskz_extracti32x4_epi32(15, sums.odd, 2)),
                               widened(_mm512_maskz_extracti32x4_epi32(15, even, 3),
                                       _mm512_maskz_extracti32x4_epi32(15, sums.odd, 3))};
  return _mm512_add_epi32(_mm512_add_epi32(quarters[0], quarters[1]),
                          _mm512_add_epi32(quarters[2], quarters[3]));
}
static inline __m512 upper_halves(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16));
}
static inline uint32_t below(__m512i sums, const LinkBlock& block, int first,
                             const LinkQuery& query, float limit) {
  const __m512i whole =
      _mm512_add_epi32(_mm512_maskz_slli_epi32(0xffff, sums, 1), _mm512_set1_epi32(query.offset));
  const __m512 sum =
      _mm512_mul_ps(_mm512_set1_ps(query.scale), _mm512_maskz_cvtepi32_ps(0xffff, whole));
  const __m512 estimate = _mm512_sub_ps(upper_halves(block.bases + first),
                                        _mm512_mul_ps(upper_halves(block.slopes + first), sum));
  return _mm512_cmp_ps_mask(estimate, _mm512_set1_ps(limit), _CMP_LT_OQ);
}

}  // namespace

uint32_t links_below_avx512(const LinkBlock& block, const LinkQuery& query, float limit) {
  const __m512i half = _mm512_set1_epi8(15);
  const uint8_t* const signs = block.signs();
  __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  // After this many bytes a sum of 16 bits could overflow.
  constexpr int64_t most = 64 * 256;
  for (int64_t begin = 0; begin < query.columns * 4; begin += most) {
    const int64_t end = begin + most < query.columns * 4 ? begin + most : query.columns * 4;
    Sums low = {_mm512_setzero_si512(), _mm512_setzero_si512()}, high = low;
    for (int64_t b = begin; b < end; b += 64) {
      const __m512i bits = _mm512_loadu_si512(signs + b);
      const __m512i table = _mm512_loadu_si512(query.tables + b);
      low = plus(low, _mm512_shuffle_epi8(table, _mm512_and_si512(bits, half)));
      high = plus(high, _mm512_shuffle_epi8(
                            table, _mm512_and_si512(_mm512_maskz_srli_epi16(~0u, bits, 4), half)));
    }
    sums[0] = _mm512_add_epi32(sums[0], added_up(low));
    sums[1] = _mm512_add_epi32(sums[1], added_up(high));
  }
  return below(sums[0], block, 0, query, limit) | below(sums[1], block, 16, query, limit) << 16;
}

}  // namespace knear::detail
