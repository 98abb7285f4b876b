// Which loops of select_k serve which level of an x86-64.
#include "knear/core/cpu.hpp"
#include "knear/select/kernels/select_kernels.hpp"

namespace knear::detail {

const SelectKernels& select_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return select_kernels_avx512();
    case Isa::avx2:
      return select_kernels_avx2();
    default:
      return select_kernels_scalar();
  }
}

}  // namespace knear::detail
