// The kernels for few rows for what every x86-64 has: SSE2. See few_rows_kernels.inl.
#include <emmintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/few_rows_kernels.hpp"

#define KNEAR_TABLE few_rows_kernels_scalar
#define KNEAR_WIDTH 4
#define KNEAR_CHUNK 4

namespace knear::detail {
namespace {

typedef float Floats __attribute__((vector_size(16)));

static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return sum + rows * query;
}
static inline Floats smaller(Floats a, Floats b) {
  return (Floats)_mm_min_ps((__m128)a, (__m128)b);
}
static inline float least(Floats x) {
  const __m128 pairs = _mm_min_ps((__m128)x, _mm_movehl_ps((__m128)x, (__m128)x));
  return _mm_cvtss_f32(_mm_min_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}
static inline uint32_t not_above(Floats x, Floats limit) {
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpngt_ps((__m128)x, (__m128)limit)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
