// Which kernels of the scan serve which level of a 64-bit ARM. See levels.hpp.
#include "knear/scan/kernels/levels.hpp"

namespace knear::detail {

const ScanKernels& scan_kernels(Isa isa) {
  switch (isa) {
    case Isa::neon_i8mm:
      return scan_kernels_neon_i8mm();
    case Isa::neon_dot:
      return scan_kernels_neon_dot();
    case Isa::neon:
      return scan_kernels_neon();
    default:
      return scan_kernels_scalar();
  }
}

// What more the higher levels have is of no use to these.
const CodeKernels& code_kernels(Isa isa) {
  return isa == Isa::scalar ? code_kernels_scalar() : code_kernels_neon();
}

const FewRowsKernels& few_rows_kernels(Isa isa) {
  return isa == Isa::scalar ? few_rows_kernels_scalar() : few_rows_kernels_neon();
}

const BitKernels& bit_kernels(Isa isa) {
  return isa == Isa::scalar ? bit_kernels_scalar() : bit_kernels_neon();
}

LinkCodeKernel link_code_kernel(Isa isa) {
  return isa == Isa::scalar ? links_below_scalar : links_below_neon;
}

RowCodeKernel row_code_kernel(Isa isa) {
  return isa == Isa::scalar ? row_code_distances_scalar : row_code_distances_neon;
}

}  // namespace knear::detail
