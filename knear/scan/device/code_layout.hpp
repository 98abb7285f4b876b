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
#include <limits>

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
KNEAR_HD inline std::int64_t block_place(std::int64_t step, int query) {
  const int in_slice = static_cast<int>(step % slice_steps);
  const int lane = query % 8 * 4 + in_slice % 4, word = query % 16 / 8 * 2 + in_slice / 4;
  return step / slice_steps * block_slice_bytes + query / 16 * 512 + lane * 16 + word * 4;
}

// What the test needs of a query, beside its threshold.
struct DeviceQuery {
  double norm, error, squares, constant;  // as in QueryCode
  std::int32_t correction;
};

// ---- limits in float ---------------------------------------------------------------------------
//
// A pair is ruled out if its product in code units is below
//
//   (G - bias_max - |u| E - e N) / (scale of the query * scale of the panel).
//
// Each side keeps its own numbers over its own scale, as floats, once a base and once a scan, so
// that a limit takes four multiplications and no division. Each number is moved by 2^-20 of itself
// to the side that keeps rows: sixteen times 2^-24, where the roundings of numbers and formula take
// six times that of a term at most (docs/bounds.md, 10). Numbers that may have either sign are
// small enough that no product of theirs overflows; where they are not, every pair is kept.
inline constexpr double float_limit_margin = 0x1p-20, most_signed = 1e19;

// A panel's numbers over its scale. NaN: every pair is kept.
struct alignas(16) PanelTest {
  float inverse, bias_max, error, norm;
  float scale, spare[3];  // for the rows' terms; 0: these are 0
};
// A query's numbers over its scale, and its correction; of whole numbers the limit itself.
struct alignas(16) QueryTest {
  float threshold, norm, error;
  std::int32_t correction;
};

// Whether products with a scale and its inverse stay within floats.
KNEAR_HD inline bool has_float_inverse(double scale) { return scale > 1e-18 && scale < 1e18; }
// x as a float, NaN if it is too large.
KNEAR_HD inline float signed_float(double x) {
  return x > -most_signed && x < most_signed ? static_cast<float>(x)
                                             : std::numeric_limits<float>::quiet_NaN();
}

KNEAR_HD inline PanelTest panel_test(const PanelHead& head) {
  if (!has_float_inverse(head.scale)) {
    PanelTest all = {};
    all.inverse = std::numeric_limits<float>::quiet_NaN();
    return all;
  }
  const double inverse = 1 / head.scale, up = (1 + float_limit_margin) * inverse;
  const double size = head.bias_max < 0 ? -head.bias_max : head.bias_max;
  return {static_cast<float>(inverse),
          signed_float((head.bias_max + size * float_limit_margin) * inverse),
          static_cast<float>(head.error * up),
          static_cast<float>(head.norm * up),
          static_cast<float>(head.scale),
          {}};
}
// Of a panel without rows: nothing passes.
KNEAR_HD inline PanelTest empty_panel_test() {
  return {1, -std::numeric_limits<float>::infinity(), 0, 0, 0, {}};
}
// threshold: G, less what rounding in float64 takes.
KNEAR_HD inline QueryTest query_test(const DeviceQuery& query, double scale, double threshold) {
  const double inverse = 1 / scale, up = (1 + float_limit_margin) * inverse;
  const double size = threshold < 0 ? -threshold : threshold;
  return {signed_float((threshold - size * float_limit_margin) * inverse),
          static_cast<float>(query.norm * up), static_cast<float>(query.error * up),
          query.correction};
}
// 1 / the scale of the queries of a block. NaN: every pair is kept.
KNEAR_HD inline float query_inverse(double scale) {
  return has_float_inverse(scale) ? static_cast<float>(1 / scale)
                                  : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace knear::detail
