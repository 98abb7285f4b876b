// Which kernels of products of matrices serve which level of an x86-64.
#include "knear/core/cpu.hpp"
#include "knear/transform/product_kernels.hpp"

namespace knear::detail {

const ProductKernels& product_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return product_kernels_avx512();
    case Isa::avx2:
      return product_kernels_avx2();
    default:
      return product_kernels_scalar();
  }
}

}  // namespace knear::detail
