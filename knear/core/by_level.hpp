// knear/core/by_level.hpp -- which of several kernels serves a level of an x86-64.
#pragma once
#include "knear/core/cpu.hpp"

namespace knear::detail {

// Returns the kernel of the level, or that of the next lower level that has one of its own.
template <class Kernel>
Kernel by_level(Isa isa, Kernel scalar, Kernel avx2, Kernel avx512, Kernel avx512_vnni) {
  switch (isa) {
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return avx512_vnni;
    case Isa::avx512:
      return avx512;
    case Isa::avx2:
      return avx2;
    default:
      return scalar;
  }
}
template <class Kernel>
Kernel by_level(Isa isa, Kernel scalar, Kernel avx2, Kernel avx512) {
  return by_level(isa, scalar, avx2, avx512, avx512);
}

}  // namespace knear::detail
