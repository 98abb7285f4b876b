// Numbers of scalar codes for the level avx512. See plain_kernels.inl. The forms with a mask keep
// GCC 12 from a false warning.
#include <immintrin.h>

#define KNEAR_BYTES 64
#define KNEAR_ALL static_cast<__mmask16>(-1)
#define KNEAR_WIDEN_BYTES(p)                                                                \
  __builtin_convertvector(                                                                  \
      (Numbers)_mm512_maskz_cvtepu8_epi32(KNEAR_ALL, _mm_loadu_si128((const __m128i*)(p))), \
      Floats)
#define KNEAR_WIDEN_F16(p) _mm512_maskz_cvtph_ps(KNEAR_ALL, _mm256_loadu_si256((const __m256i*)(p)))
#define KNEAR_WIDEN_BF16(p) \
  ((Words)_mm512_maskz_cvtepu16_epi32(KNEAR_ALL, _mm256_loadu_si256((const __m256i*)(p))) << 16)
#define KNEAR_ADD_PRODUCT(sum, a, b) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(sum))
#define KNEAR_TABLE plain_kernels_avx512
#include "knear/quantize/plain_kernels.inl"
