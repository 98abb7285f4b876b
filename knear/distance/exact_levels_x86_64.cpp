// Which kernels of exact distances serve which level of an x86-64.
#include "knear/core/cpu.hpp"
#include "knear/distance/exact_kernels.hpp"

namespace knear::detail {

const ExactKernels& exact_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return exact_kernels_avx512();
    case Isa::avx2:
      return exact_kernels_avx2();
    default:
      return exact_kernels_scalar();
  }
}

}  // namespace knear::detail
