// knear/select/warp_select_layout.hpp -- which warp of the grid selects from which row.
//
// Plain integer functions used by the kernel and, on the host, by its tests.
#pragma once
#include <cstdint>

#include "knear/simt/warp.hpp"

namespace knear::detail {

// Rows are independent and one warp takes each. Four warps a block: enough blocks per
// multiprocessor to hide the end of each, few enough threads for 128 registers each.
inline constexpr int select_warps_per_block = 4;

KNEAR_HD constexpr std::int64_t select_blocks(std::int64_t rows) {
  return (rows + select_warps_per_block - 1) / select_warps_per_block;
}
// The row of a thread; beyond the last one there may be up to three that have none.
KNEAR_HD constexpr std::int64_t select_row(std::int64_t block, int thread) {
  return block * select_warps_per_block + thread / warp_size;
}

}  // namespace knear::detail
