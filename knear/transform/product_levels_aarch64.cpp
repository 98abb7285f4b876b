// Which kernels of products of matrices serve which level of a 64-bit ARM.
#include "knear/core/cpu.hpp"
#include "knear/transform/product_kernels.hpp"

namespace knear::detail {

const ProductKernels& product_kernels(Isa) { return product_kernels_scalar(); }

}  // namespace knear::detail
