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
static inline Floats least(Floats x) {
  __m128 m = (__m128)x;
  m = _mm_min_ps(m, _mm_shuffle_ps(m, m, 0x4e));
  return (Floats)_mm_min_ps(m, _mm_shuffle_ps(m, m, 0xb1));
}
static inline uint32_t not_above(Floats x, Floats limit) {
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpngt_ps((__m128)x, (__m128)limit)));
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
