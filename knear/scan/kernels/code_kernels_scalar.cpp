// The kernels for codes for what every processor has. See code_kernels.inl.
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"

#define KNEAR_BYTES 16
#include "knear/scan/kernels/code_kernels.inl"

namespace knear::detail {

const CodeKernels& code_kernels_scalar() {
  static const CodeKernels kernels = {plain_bits8,   plain_bits4, kth_value,  values_up_to,
                                      plain_sums8,   plain_sums4, fill_table, round_down,
                                      plain_decode8, direct_sums8};
  return kernels;
}

}  // namespace knear::detail
