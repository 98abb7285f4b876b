// Which kernels of plain codes serve which level of an x86-64.
#include "knear/core/cpu.hpp"
#include "knear/quantize/plain_kernels.hpp"

namespace knear::detail {

const PlainKernels& plain_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return plain_kernels_avx512();
    case Isa::avx2:
      return plain_kernels_avx2();
    default:
      return plain_kernels_scalar();
  }
}

}  // namespace knear::detail
