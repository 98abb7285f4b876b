// The kernels for few rows for AVX2 with FMA. See few_rows_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/few_rows_kernels.hpp"

#define KNEAR_TABLE few_rows_kernels_avx2
#define KNEAR_WIDTH 8
#define KNEAR_CHUNK 8

namespace knear::detail {
namespace {

typedef float Floats __attribute__((vector_size(32)));

static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return (Floats)_mm256_fmadd_ps((__m256)rows, (__m256)query, (__m256)sum);
}
static inline Floats smaller(Floats a, Floats b) {
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
}
static inline float least(Floats x) {
  const __m128 halves =
      _mm_min_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  const __m128 pairs = _mm_min_ps(halves, _mm_movehl_ps(halves, halves));
  return _mm_cvtss_f32(_mm_min_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}
static inline uint32_t not_above(Floats x, Floats limit) {
  return static_cast<uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)limit, _CMP_NGT_UQ)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
