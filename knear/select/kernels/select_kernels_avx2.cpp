// The loops of select_k for AVX2. See select_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/select/kernels/select_kernels.hpp"

#define KNEAR_TABLE select_kernels_avx2

namespace knear::detail {
namespace {

static inline uint32_t at_most(const float* p, uint32_t flip, float bound) {
  const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(flip)));
  const __m256 value = _mm256_xor_ps(_mm256_loadu_ps(p), sign);
  return static_cast<uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(value, _mm256_set1_ps(bound), _CMP_LE_OQ)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/select/kernels/select_loops.inl"
// Included after the loops that it calls.
#include "knear/select/kernels/select_kernels.inl"
