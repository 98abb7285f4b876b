// Which loops of select_k serve which level of a 64-bit ARM.
#include "knear/core/cpu.hpp"
#include "knear/select/kernels/select_kernels.hpp"

namespace knear::detail {

const SelectKernels& select_kernels(Isa isa) {
  return isa == Isa::scalar ? select_kernels_scalar() : select_kernels_neon();
}

}  // namespace knear::detail
