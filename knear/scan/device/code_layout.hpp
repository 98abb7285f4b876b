// knear/scan/device/code_layout.hpp -- the order of codes in device memory, and what the test needs
// of a query: shared by the kernels and the code that packs for them.
//
// A product of mma.sync takes [16 rows x 32 bytes] and [32 bytes x 8 queries], and of these each
// lane a few words (knear/simt/thread.hpp). Codes are stored so that a lane next needs 16
// contiguous bytes, and a warp 512: one load without a bank conflict, and plain copies to shared
// memory. A slice is 32 bytes of every row.
//
//   base      [panels][slices][2 halves of a panel][32 lanes][16 bytes]   a[0 .. 4) of 16 rows
//   queries   [blocks][slices][8 pairs of 8 queries][32 lanes][16 bytes]  b[0 .. 2) of both
//
// Codes and heads are those of PackedBase and code_queries(): rows unsigned, queries signed; beyond
// the last column at least one of them is zero.
#pragma once
#include <cstdint>

#include "knear/scan/kernels/tile_kernels.hpp"
#include "knear/simt/warp.hpp"

namespace knear::detail {

inline constexpr int slice_bytes = 32, slice_steps = slice_bytes / step_bytes;
inline constexpr int panel_slice_bytes = panel_rows * slice_bytes;
// The queries of a block, which have one scale, and the bytes of a slice of their codes.
inline constexpr int block_queries = 128, block_slice_bytes = block_queries * slice_bytes;

KNEAR_HD inline std::int64_t slices_of(std::int64_t steps) {
  return (steps + slice_steps - 1) / slice_steps;
}

// The place of step `step` of row `row` of a panel in the panel's slices; and of step `step` of
// query `query` of a block in the block's.
KNEAR_HD inline std::int64_t panel_place(std::int64_t step, int row) {
  const int in_slice = static_cast<int>(step % slice_steps);
  const int lane = row % 8 * 4 + in_slice % 4, word = in_slice / 4 * 2 + row % 16 / 8;
  return step / slice_steps * panel_slice_bytes + row / 16 * 512 + lane * 16 + word * 4;
}
inline std::int64_t block_place(std::int64_t step, int query) {
  const int in_slice = static_cast<int>(step % slice_steps);
  const int lane = query % 8 * 4 + in_slice % 4, word = query % 16 / 8 * 2 + in_slice / 4;
  return step / slice_steps * block_slice_bytes + query / 16 * 512 + lane * 16 + word * 4;
}

// What the test needs of a query, beside its threshold.
struct DeviceQuery {
  double norm, error, squares, constant;  // as in QueryCode
  std::int32_t correction;
};

}  // namespace knear::detail
