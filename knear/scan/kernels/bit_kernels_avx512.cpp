// Differing bits for AVX-512 without counts of words: those of half a byte are looked up. See
// bit_kernels.inl.
// GCC 12 warns of a variable of its own header that is left unset on purpose.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "knear/scan/kernels/bit_kernels.hpp"

#define KNEAR_TABLE bit_kernels_avx512
#define KNEAR_ADDS_BYTES 1

#include "knear/scan/kernels/bit_kernels_avx512_words.inl"

namespace knear::detail {
namespace {

static inline Words bits_of(Words x) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m512i half = _mm512_set1_epi8(15);
  const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(x, half));
  const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(x, 4), half));
  return _mm512_add_epi8(low, high);
}
static inline Words plus_bytes(Words a, Words b) { return _mm512_add_epi8(a, b); }
static inline Words totals(Words bytes) { return _mm512_sad_epu8(bytes, _mm512_setzero_si512()); }

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/bit_kernels.inl"
