// The kernels for codes for AVX-512: 4 bits by byte shuffles. See code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"

#define KNEAR_BYTES 64
#include "knear/scan/kernels/code_kernels.inl"
//
#include "knear/scan/kernels/code_kernels_avx512.inl"

namespace knear::detail {

const CodeKernels& code_kernels_avx512() {
  static const CodeKernels kernels = {plain_bits8,   bits4_avx512, kth_value,  values_up_to,
                                      plain_sums8,   plain_sums4,  fill_table, round_down,
                                      plain_decode8, direct_sums8};
  return kernels;
}

}  // namespace knear::detail
