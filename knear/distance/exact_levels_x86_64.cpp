// Which kernels of exact distances serve which level of an x86-64.
#include "knear/core/by_level.hpp"
#include "knear/distance/exact_kernels.hpp"

namespace knear::detail {

const ExactKernels& exact_kernels(Isa isa) {
  return by_level(isa, exact_kernels_scalar, exact_kernels_avx2, exact_kernels_avx512)();
}

}  // namespace knear::detail
