// Which loops of select_k serve which level of an x86-64.
#include "knear/core/by_level.hpp"
#include "knear/select/kernels/select_kernels.hpp"

namespace knear::detail {

const SelectKernels& select_kernels(Isa isa) {
  return by_level(isa, select_kernels_scalar, select_kernels_avx2, select_kernels_avx512)();
}

}  // namespace knear::detail
