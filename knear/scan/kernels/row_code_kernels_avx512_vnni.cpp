// Distances of 8-bit codes for AVX-512 with VNNI. See row_code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/row_code_kernels.hpp"

#define KNEAR_DISTANCES row_code_distances_avx512_vnni

namespace knear::detail {
namespace {

static inline __m512i plus_squares(__m512i sums, __m512i differences) {
  return _mm512_dpwssd_epi32(sums, differences, differences);
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/row_code_kernels_avx512.inl"
