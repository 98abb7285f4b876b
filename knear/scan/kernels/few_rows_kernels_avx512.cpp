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
static inline Floats least(Floats x) {
  Floats m = smaller(x, (Floats)_mm512_maskz_shuffle_f32x4(0xffff, (__m512)x, (__m512)x, 0x4e));
  m = smaller(m, (Floats)_mm512_maskz_shuffle_f32x4(0xffff, (__m512)m, (__m512)m, 0xb1));
  m = smaller(m, (Floats)_mm512_maskz_permute_ps(0xffff, (__m512)m, 0x4e));
  return smaller(m, (Floats)_mm512_maskz_permute_ps(0xffff, (__m512)m, 0xb1));
}
static inline uint32_t not_above(Floats x, Floats limit) {
  return _mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_NGT_UQ);
}
// Masks are put together before they leave their registers.
static inline uint64_t sixty_four(const Floats* x, Floats limit) {
  const __m512 bound = (__m512)limit;
  const __mmask16 a = _mm512_cmp_ps_mask((__m512)x[0], bound, _CMP_NGT_UQ),
                  b = _mm512_cmp_ps_mask((__m512)x[1], bound, _CMP_NGT_UQ),
                  c = _mm512_cmp_ps_mask((__m512)x[2], bound, _CMP_NGT_UQ),
                  d = _mm512_cmp_ps_mask((__m512)x[3], bound, _CMP_NGT_UQ);
  return _cvtmask64_u64(_mm512_kunpackd(_mm512_kunpackw(d, c), _mm512_kunpackw(b, a)));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
