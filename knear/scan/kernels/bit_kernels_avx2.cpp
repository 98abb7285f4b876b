// Differing bits for AVX2: those of half a byte are looked up. See bit_kernels.inl.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "knear/scan/kernels/bit_kernels.hpp"

#define KNEAR_TABLE bit_kernels_avx2
#define KNEAR_ADDS_BYTES 1

namespace knear::detail {
namespace {

constexpr int64_t lanes = 4;
using Words = __m256i;

static inline Words differing(const uint64_t* rows, uint64_t word) {
  return _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)rows),
                          _mm256_set1_epi64x((long long)word));
}
static inline Words bits_of(Words x) {
  const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2,
                                         1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i half = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, half));
  const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), half));
  return _mm256_add_epi8(low, high);
}
static inline Words plus_bytes(Words a, Words b) { return _mm256_add_epi8(a, b); }
static inline Words totals(Words bytes) { return _mm256_sad_epu8(bytes, _mm256_setzero_si256()); }
static inline Words plus(Words a, Words b) { return _mm256_add_epi64(a, b); }
static inline int64_t keep_near(Words bits, uint64_t limit, uint32_t first, BitHit* out) {
  const __m256i far = _mm256_cmpgt_epi64(bits, _mm256_set1_epi64x((long long)limit));
  unsigned mask = 15u & ~(unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(far));
  if (mask == 0) return 0;
  uint64_t of[4];
  _mm256_storeu_si256((__m256i*)of, bits);
  int64_t found = 0;
  for (; mask != 0; mask &= mask - 1) {
    const unsigned lane = (unsigned)__builtin_ctz(mask);
    out[found++] = {first + lane, (uint32_t)of[lane]};
  }
  return found;
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/bit_kernels.inl"
