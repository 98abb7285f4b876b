// Numbers of scalar codes for the level avx2. See plain_kernels.inl.
#include <immintrin.h>

#define KNEAR_BYTES 32
#define KNEAR_WIDEN_BYTES(p) \
  _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p))))
#define KNEAR_WIDEN_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p)))
#define KNEAR_WIDEN_BF16(p) \
  _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p))), 16)
#define KNEAR_ADD_PRODUCT(sum, a, b) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(sum))
#define KNEAR_TABLE plain_kernels_avx2
#include "knear/quantize/plain_kernels.inl"
