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

// ---- pairs of a self-join ----------------------------------------------------------------------
//
// A pair is scored once, of a query and a row, and may be wanted for the row, too, which is a query
// elsewhere. Its key is the same both ways, so for the row the query's threshold is the one of the
// row's k-th key: top - reach (key_scale.hpp), of the query and of the row. In code units
//
//   product + row term + number  >=  lowered
//   number  = (reach of the row + bias_max - most) / (scales)      of a row and a block of queries
//   lowered = (top - most - |u| E - e N) / (scales)                of a query and a panel
//
// with most the largest top of the block, so that `lowered` is negative, and both are as small as
// the numbers let them be. Each side is moved by 2^-20 of its terms, and clamped, to the side that
// keeps pairs (docs/bounds.md, 10).

// Of a query, for `lowered`: over its scale. most: of its block.
KNEAR_HD inline float pair_top(double top, double most, double scale) {
  return signed_float((top - most) * (1 + float_limit_margin) / scale);
}
// `most` of a block, for `number`: over its scale.
KNEAR_HD inline float pair_most(double most, double scale) {
  const double size = most < 0 ? -most : most;
  return signed_float((most - size * float_limit_margin) / scale);
}
// The reach of a row, over the scale of its panel. NaN, from infinity on: everything is kept for
// it.
KNEAR_HD inline float pair_reach(double reach, double scale) {
  const double size = reach < 0 ? -reach : reach;
  return signed_float((reach + size * float_limit_margin) / scale);
}
// Of whole numbers `number` itself, from a key that the k-th one does not exceed; no key is beyond
// 2^30.
KNEAR_HD inline std::int32_t whole_pair_number(bool l2, double bound) {
  constexpr double most = 0x1p30;
  const auto key = static_cast<std::int32_t>(bound < most ? bound > -most ? bound : -most : most);
  return l2 ? (key >> 1) + 1 : key;
}
// And `lowered` of a query.
KNEAR_HD inline std::int32_t whole_pair_limit(bool l2, const DeviceQuery& query) {
  return (l2 ? static_cast<std::int32_t>(static_cast<std::int64_t>(query.squares) >> 1) : 0) +
         query.correction;
}

}  // namespace knear::detail
