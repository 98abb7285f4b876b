// Which kernels of exact distances serve which level of a 64-bit ARM.
#include "knear/core/cpu.hpp"
#include "knear/distance/exact_kernels.hpp"

namespace knear::detail {

const ExactKernels& exact_kernels(Isa) { return exact_kernels_scalar(); }

}  // namespace knear::detail
