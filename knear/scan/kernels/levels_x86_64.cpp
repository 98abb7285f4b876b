// Which kernels of the scan serve which level of an x86-64. See levels.hpp.
#include "knear/scan/kernels/levels.hpp"

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
  switch (isa) {
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return has_byte_permutes() ? code_kernels_avx512_vbmi() : code_kernels_avx512();
    case Isa::avx512:
      return code_kernels_avx512();
    case Isa::avx2:
      return code_kernels_avx2();
    default:
      return code_kernels_scalar();
  }
}

const FewRowsKernels& few_rows_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return few_rows_kernels_avx512();
    case Isa::avx2:
      return few_rows_kernels_avx2();
    default:
      return few_rows_kernels_scalar();
  }
}

const BitKernels& bit_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return has_bit_counts() ? bit_kernels_avx512_popcnt() : bit_kernels_avx512();
    case Isa::avx512:
      return bit_kernels_avx512();
    case Isa::avx2:
      return bit_kernels_avx2();
    default:
      return bit_kernels_scalar();
  }
}

RowCodeKernel row_code_kernel(Isa isa) {
  switch (isa) {
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      return row_code_distances_avx512_vnni;
    case Isa::avx512:
      return row_code_distances_avx512;
    case Isa::avx2:
      return row_code_distances_avx2;
    default:
      return row_code_distances_scalar;
  }
}

}  // namespace knear::detail
