// The loops of select_k for what every x86-64 has: SSE2. See select_kernels.inl.
#include <emmintrin.h>
#include <stdint.h>

#include "knear/select/kernels/select_kernels.hpp"

#define KNEAR_TABLE select_kernels_scalar

namespace knear::detail {
namespace {

static inline uint32_t at_most(const float* p, uint32_t flip, float bound) {
  const __m128 sign = _mm_castsi128_ps(_mm_set1_epi32(static_cast<int>(flip)));
  const __m128 bounds = _mm_set1_ps(bound);
  const __m128 low = _mm_cmple_ps(_mm_xor_ps(_mm_loadu_ps(p), sign), bounds);
  const __m128 high = _mm_cmple_ps(_mm_xor_ps(_mm_loadu_ps(p + 4), sign), bounds);
  return static_cast<uint32_t>(_mm_movemask_ps(low) | _mm_movemask_ps(high) << 4);
}

}  // namespace
}  // namespace knear::detail

#include "knear/select/kernels/select_loops.inl"
// Included after the loops that it calls.
#include "knear/select/kernels/select_kernels.inl"
