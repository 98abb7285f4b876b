// The kernels for codes for AVX-512 with VBMI, which looks up bytes in two registers at once: a
// table of 8 bits is four of them. See code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"

namespace knear::detail {
namespace {

// Seven bits choose among two registers, the eighth among the two pairs.
static inline __m512i entries_of(const __m512i* table, __m512i codes) {
  const __m512i low = _mm512_permutex2var_epi8(table[0], codes, table[1]),
                high = _mm512_permutex2var_epi8(table[2], codes, table[3]);
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
}

}  // namespace
}  // namespace knear::detail

#define KNEAR_CODES8 entries_of
#include "knear/scan/kernels/code_kernels.inl"
//
#include "knear/scan/kernels/code_kernels_avx512.inl"

namespace knear::detail {

const CodeKernels& code_kernels_avx512_vbmi() {
  static const CodeKernels kernels = {bits8_avx512, bits4_avx512, fill_table, round_down};
  return kernels;
}

}  // namespace knear::detail
