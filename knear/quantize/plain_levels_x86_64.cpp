// Which kernels of plain codes serve which level of an x86-64.
#include "knear/core/by_level.hpp"
#include "knear/quantize/plain_kernels.hpp"

namespace knear::detail {

const PlainKernels& plain_kernels(Isa isa) {
  return by_level(isa, plain_kernels_scalar, plain_kernels_avx2, plain_kernels_avx512)();
}

}  // namespace knear::detail
