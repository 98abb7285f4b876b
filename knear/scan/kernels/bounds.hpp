// knear/scan/kernels/bounds.hpp -- the formulas by which a scan decides what may be among the
// nearest, each written once: for the tile kernels of every instruction set, for the kernels of a
// GPU and for the plain code around both. The derivation, with every rounding, is docs/bounds.md, 2
// to 6.
//
// In coding space g = <u, v> + b orders rows as the metric does, larger being nearer. A code's
// product with a query's code gives an interval that certainly holds g; a threshold on g gives the
// least product in code units that a pair needs. Whole numbers need neither: their product is the
// key.
//
// `Number` is double, or a vector of them.
#pragma once
#include <cstdint>

#include "knear/core/host_device.hpp"
#include "knear/core/metric.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {

// The interval that certainly holds a pair's g.
struct GInterval {
  double upper, lower;
};

// A row of the base that may be among the k nearest of a query, and its interval.
struct ScoreInterval {
  double upper, lower;
  std::uint32_t row;
};

// A pair of the certified formats: `dot` is the product of the codes, correction taken off, `bias`
// that of the row in units of the panel's scale squared, `slack` the query's share of float64
// rounding.
KNEAR_FORMULA GInterval panel_interval(const PanelHead& panel, float bias, double dot, double scale,
                                       double norm, double error, double slack) {
  const double b = panel.scale * panel.scale * bias;
  // What the codes leave out, by Cauchy-Schwarz.
  const double coding = norm * panel.error + error * panel.norm;
  const double upper = dot * (scale * panel.scale) + b + panel.bias_max + coding + slack;
  return {upper, upper - 2 * (coding + slack + panel.slack) + 0x1p-21 * b};
}

// A row with a scale of its own, as panel_interval() has it for panels (`scale`, `error`, `norm`,
// `bias`: of the row; `dot` in units of its scale, `query_error` what the query's codes leave out).
// slack and mean_norm: of the coding space.
KNEAR_FORMULA GInterval row_interval(Metric metric, double slack, double mean_norm, double scale,
                                     double error, double norm, double bias, double dot,
                                     double query_norm, double query_error, double query_squares) {
  const double unit = scale * scale;
  const double g = dot * scale + bias * unit;
  const double coding = query_norm * error + query_error * norm;
  double rounding = traits_of(metric).squared
                        ? 2 * slack * query_squares + (2 * slack + 0x1p-23) * norm * norm
                        : (2 * slack + 0x1p-22) * mean_norm * (norm + mean_norm);
  if (traits_of(metric).unit_rows) rounding += 2 * slack;
  rounding += 0x1p-148 * unit;  // of a bias that is denormal
  return {g + coding + rounding, g - coding - rounding};
}

// Limits of the certified test in code units: nothing passes from `highest_limit` on, everything
// down to `lowest_limit`. A limit is lowered by `limit_margin` when it becomes an integer, for the
// truncation towards zero on both sides and the rounding of the row term.
inline constexpr double lowest_limit = -2 * code_dot_bound - 8, highest_limit = code_dot_bound + 8;
inline constexpr int limit_margin = 3;
// Of a row in a self-join: its term and its reach in code units, down to which nothing passes.
inline constexpr float lowest_top = -0x1p30f - 128;

// The value of a unit of the code products, and the limit that a threshold on g becomes in it.
KNEAR_FORMULA double unit_of(const PanelHead& panel, double scale) {
  return 1.0 / (scale * panel.scale);
}
template <class Number>
KNEAR_FORMULA Number limit_of(const PanelHead& panel, double unit, Number threshold, Number norm,
                              Number error) {
  return (threshold - (panel.bias_max + norm * panel.error + error * panel.norm)) * unit;
}

// What a row's bias is multiplied by to become its term in code units: rounded down, so that the
// term, which is at most 0, stays too high. Terms are kept above `lowest_term`.
inline constexpr float lowest_term = -0x1p29f;
KNEAR_FORMULA float term_factor(const PanelHead& panel, double unit) {
  const double ratio = panel.scale * panel.scale * unit;
  return ratio > 1e-30 ? static_cast<float>(ratio < 1e30 ? ratio : 1e30) * (1.0f - 0x1p-21f) : 0.0f;
}

// ---- whole numbers ------------------------------------------------------------------------------

// The product of a row and a query from what the kernel gave: without the correction, and with the
// 128 that were taken off each value of a query that was shifted to fit a signed byte.
KNEAR_FORMULA std::int64_t integer_product(std::int32_t score, std::int32_t correction,
                                           bool shifted, std::int32_t row_sum) {
  return std::int64_t{score} - correction + (shifted ? std::int64_t{128} * row_sum : 0);
}
// And its key, exact.
KNEAR_FORMULA double integer_key(bool l2, std::int64_t product, double query_squares,
                                 std::uint32_t row_squares) {
  if (!l2) return static_cast<double>(-product);
  return query_squares + static_cast<double>(std::int64_t{row_squares} - 2 * product);
}
// The least product, less the row's term, of a pair whose key is at most `bound`; for l2 in halves,
// rounded down, of which rows with odd |y|^2 lose one.
KNEAR_FORMULA std::int64_t integer_limit_of(bool l2, std::int64_t query_squares,
                                            std::int64_t bound) {
  return l2 ? (query_squares - bound) >> 1 : -bound;
}
// A row's term: half of |y|^2, rounded up, taken off what the shift needs.
KNEAR_FORMULA std::int32_t integer_term(std::uint32_t row_squares, std::int32_t row_sum,
                                        std::uint32_t shift_mask) {
  const std::uint32_t half = (row_squares >> 1) + (row_squares & 1);
  return static_cast<std::int32_t>(((static_cast<std::uint32_t>(row_sum) << 7) & shift_mask) -
                                   half);
}

}  // namespace knear::detail
