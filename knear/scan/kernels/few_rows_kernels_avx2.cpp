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
static inline Floats least(Floats x) {
  __m256 m = (__m256)x;
  m = _mm256_min_ps(m, _mm256_permute2f128_ps(m, m, 1));
  m = _mm256_min_ps(m, _mm256_permute_ps(m, 0x4e));
  return (Floats)_mm256_min_ps(m, _mm256_permute_ps(m, 0xb1));
}
static inline uint32_t not_above(Floats x, Floats limit) {
  return static_cast<uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)limit, _CMP_NGT_UQ)));
}
static inline uint64_t sixty_four(const Floats* x, Floats limit) {
  uint64_t bits = 0;
  for (int v = 0; v < 64 / KNEAR_WIDTH; ++v)
    bits |= static_cast<uint64_t>(not_above(x[v], limit)) << (v * KNEAR_WIDTH);
  return bits;
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
