// Which kernels of the scan serve which level of an x86-64. See levels.hpp.
#include "knear/scan/kernels/levels.hpp"

#include "knear/core/by_level.hpp"

namespace knear::detail {

const ScanKernels& scan_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512_amx:
      return scan_kernels_avx512_amx();
    case Isa::avx512_vnni:
      return scan_kernels_avx512_vnni();
    case Isa::avx512:
      return scan_kernels_avx512();
    case Isa::avx2:
      return scan_kernels_avx2();
    default:
      return scan_kernels_scalar();
  }
}

const CodeKernels& code_kernels(Isa isa) {
  return by_level(isa, code_kernels_scalar, code_kernels_avx2, code_kernels_avx512,
                  has_byte_permutes() ? code_kernels_avx512_vbmi : code_kernels_avx512)();
}

const FewRowsKernels& few_rows_kernels(Isa isa) {
  return by_level(isa, few_rows_kernels_scalar, few_rows_kernels_avx2, few_rows_kernels_avx512)();
}

const BitKernels& bit_kernels(Isa isa) {
  return by_level(isa, bit_kernels_scalar, bit_kernels_avx2, bit_kernels_avx512,
                  has_bit_counts() ? bit_kernels_avx512_popcnt : bit_kernels_avx512)();
}

LinkCodeKernel link_code_kernel(Isa isa) {
  return by_level(isa, links_below_scalar, links_below_avx2, links_below_avx512);
}

RowCodeKernel row_code_kernel(Isa isa) {
  return by_level(isa, row_code_distances_scalar, row_code_distances_avx2,
                  row_code_distances_avx512, row_code_distances_avx512_vnni);
}

}  // namespace knear::detail
