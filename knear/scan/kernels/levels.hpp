// knear/scan/kernels/levels.hpp -- the kernels of the scan that serve a level of instructions. One
// source for each kind of processor (levels_x86_64.cpp, levels_aarch64.cpp) knows which there are,
// and CMake takes the right one; a level of another kind gets the scalar ones.
#pragma once
#include "knear/core/cpu.hpp"
#include "knear/scan/kernels/bit_kernels.hpp"
#include "knear/scan/kernels/code_kernels.hpp"
#include "knear/scan/kernels/few_rows_kernels.hpp"
#include "knear/scan/kernels/link_code_kernels.hpp"
#include "knear/scan/kernels/row_code_kernels.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {

const ScanKernels& scan_kernels(Isa isa);
const CodeKernels& code_kernels(Isa isa);
const FewRowsKernels& few_rows_kernels(Isa isa);
LinkCodeKernel link_code_kernel(Isa isa);
RowCodeKernel row_code_kernel(Isa isa);
const BitKernels& bit_kernels(Isa isa);

}  // namespace knear::detail
