#include "knear/index/graph/graph_coding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "knear/core/unit_length.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {

bool GraphCoding::are_numbers_of(const ValueRange& found) const {
  if (numbers || !traits_of(metric).squared || !found.integer || scale != 1) return false;
  return std::all_of(lows.begin(), lows.end(), [&](double low) {
    return low == std::nearbyint(low) && low <= found.low && found.high <= low + 255;
  });
}

void GraphCoding::to_space(AnyMatrixView vectors, std::int64_t row, bool query, double* out) const {
  row_as_doubles(vectors, row, out);
  if (traits_of(metric).squared) return;
  const double length = safe_length(out, dim).value();
  if (traits_of(metric).lifted) out[dim] = 0;
  if (traits_of(metric).unit_rows || query) {
    const double to = traits_of(metric).unit_rows ? 1 : query_length;
    for (std::int64_t j = 0; length > 0 && j < dim; ++j) out[j] = out[j] / length * to;
  } else {
    const double share = longest > 0 ? std::min(1.0, length / longest) : 1;
    out[dim] = longest * std::sqrt(1 - share * share);
  }
}

void GraphCoding::code_row(AnyMatrixView vectors, std::int64_t row, double* scratch,
                           std::uint8_t* out) const {
  to_space(vectors, row, false, scratch);
  if (numbers) {
    std::fill(out, out + stride(), std::uint8_t{0});
    // A zero has one sign, so that equal rows have equal bytes.
    for (std::int64_t j = 0; j < columns(); ++j)
      if (const double x = scratch[j] + 0.0; *numbers == ElementType::f64) {
        reinterpret_cast<double*>(out)[j] = x;
      } else {
        constexpr double most = std::numeric_limits<float>::max();
        reinterpret_cast<float*>(out)[j] = static_cast<float>(std::clamp(x, -most, most)) + 0.0f;
      }
    return;
  }
  for (std::int64_t j = 0; j < columns(); ++j) {
    const double code = (scratch[j] - lows[j]) * scale;
    out[j] = static_cast<std::uint8_t>(std::nearbyint(std::clamp(code, 0.0, 255.0)));
  }
  std::fill(out + columns(), out + stride(), std::uint8_t{0});
}

bool GraphCoding::code_query(AnyMatrixView vectors, std::int64_t row, double* scratch,
                             std::int16_t* out) const {
  to_space(vectors, row, true, scratch);
  // As far beyond the rows as sums of 32 bits allow.
  const double beyond = stride() <= 16384 ? 255 : 0;
  bool exact = true;
  for (std::int64_t j = 0; j < columns(); ++j) {
    const double code = (scratch[j] - lows[j]) * scale;
    out[j] = static_cast<std::int16_t>(std::nearbyint(std::clamp(code, -beyond, 255 + beyond)));
    // Of a number beside a much larger low nothing may be left.
    exact &= out[j] == code && lows[j] + out[j] / scale == scratch[j];
  }
  std::fill(out + columns(), out + stride(), std::int16_t{0});
  return exact;
}

}  // namespace knear::detail
