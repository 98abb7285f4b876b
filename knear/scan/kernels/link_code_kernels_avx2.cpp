// Estimates of links for AVX2. See link_code_kernels.hpp.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/link_code_kernels.hpp"

namespace knear::detail {
namespace {

// Sums of 16 links: those of even bytes with the odd ones above them, as they are added as 16 bits,
// and those of odd bytes.
struct Sums {
  __m256i all, odd;
};
static inline Sums plus(Sums sums, __m256i looked_up) {
  return {_mm256_add_epi16(sums.all, looked_up),
          _mm256_add_epi16(sums.odd, _mm256_srli_epi16(looked_up, 8))};
}
// Adds the sums of links 0, ..., 7 and 8, ..., 15 to 32 bits.
static inline void add_up(Sums sums, __m256i* low, __m256i* high) {
  const __m256i even = _mm256_sub_epi16(sums.all, _mm256_slli_epi16(sums.odd, 8));
  for (int half = 0; half < 2; ++half) {
    const __m128i e = half ? _mm256_extracti128_si256(even, 1) : _mm256_castsi256_si128(even);
    const __m128i o =
        half ? _mm256_extracti128_si256(sums.odd, 1) : _mm256_castsi256_si128(sums.odd);
    *low = _mm256_add_epi32(*low, _mm256_cvtepu16_epi32(_mm_unpacklo_epi16(e, o)));
    *high = _mm256_add_epi32(*high, _mm256_cvtepu16_epi32(_mm_unpackhi_epi16(e, o)));
  }
}
static inline __m256 upper_halves(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

}  // namespace

uint32_t links_below_avx2(const LinkBlock& block, const LinkQuery& query, float limit) {
  const __m256i half = _mm256_set1_epi8(15);
  const uint8_t* const signs = block.signs();
  __m256i sums[4] = {};
  // After this many bytes a sum of 16 bits could overflow.
  constexpr int64_t most = 32 * 256;
  for (int64_t begin = 0; begin < query.columns * 4; begin += most) {
    const int64_t end = begin + most < query.columns * 4 ? begin + most : query.columns * 4;
    Sums low = {_mm256_setzero_si256(), _mm256_setzero_si256()}, high = low;
    for (int64_t b = begin; b < end; b += 32) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(signs + b));
      const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query.tables + b));
      low = plus(low, _mm256_shuffle_epi8(table, _mm256_and_si256(bits, half)));
      high = plus(high,
                  _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bits, 4), half)));
    }
    add_up(low, &sums[0], &sums[1]);
    add_up(high, &sums[2], &sums[3]);
  }
  const __m256i offset = _mm256_set1_epi32(query.offset);
  const __m256 scale = _mm256_set1_ps(query.scale), limits = _mm256_set1_ps(limit);
  uint32_t below = 0;
  for (int i = 0; i < 4; ++i) {
    const __m256 sum = _mm256_mul_ps(
        scale, _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(sums[i], 1), offset)));
    const __m256 estimate = _mm256_sub_ps(upper_halves(block.bases + 8 * i),
                                          _mm256_mul_ps(upper_halves(block.slopes + 8 * i), sum));
    below |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(estimate, limits, _CMP_LT_OQ)))
             << (8 * i);
  }
  return below;
}

}  // namespace knear::detail
