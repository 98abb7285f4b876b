// Which kernels of plain codes serve which level of a 64-bit ARM.
#include "knear/core/cpu.hpp"
#include "knear/quantize/plain_kernels.hpp"

namespace knear::detail {

const PlainKernels& plain_kernels(Isa) { return plain_kernels_scalar(); }

}  // namespace knear::detail
