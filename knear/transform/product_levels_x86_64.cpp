// Which kernels of products of matrices serve which level of an x86-64.
#include "knear/core/by_level.hpp"
#include "knear/transform/product_kernels.hpp"

namespace knear::detail {

const ProductKernels& product_kernels(Isa isa) {
  return by_level(isa, product_kernels_scalar, product_kernels_avx2, product_kernels_avx512)();
}

}  // namespace knear::detail
