// The kernels for few rows for AVX-512. See few_rows_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/few_rows_kernels.hpp"

#define KNEAR_TABLE few_rows_kernels_avx512
#define KNEAR_WIDTH 16
#define KNEAR_CHUNK 16

namespace knear::detail {
namespace {

typedef float Floats __attribute__((vector_size(64)));

static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return (Floats)_mm512_fmadd_ps((__m512)rows, (__m512)query, (__m512)sum);
}
// The masks are all ones: for the plain intrinsics GCC 12 warns of a variable of its own header.
static inline Floats smaller(Floats a, Floats b) {
  return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
}
static inline float least(Floats x) {
  const __m512 y = (__m512)x;
  const __m256 halves = _mm256_min_ps(_mm512_maskz_extractf32x8_ps(0xff, y, 0),
                                      _mm512_maskz_extractf32x8_ps(0xff, y, 1));
  const __m128 quarters =
      _mm_min_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  const __m128 pairs = _mm_min_ps(quarters, _mm_movehl_ps(quarters, quarters));
  return _mm_cvtss_f32(_mm_min_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}
static inline uint32_t not_above(Floats x, Floats limit) {
  return _mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_NGT_UQ);
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
