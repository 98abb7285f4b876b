// knear/core/value_range.hpp -- one pass over a caller's vectors: are they such as a search
// takes, and are they whole numbers of which range?
#pragma once
#include <algorithm>
#include <string_view>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"

namespace knear {

struct ValueRange {
  bool integer = true;         // every element is a whole number in [-128, 255]
  int low = 255, high = -128;  // the range, if integer and not empty
};

namespace detail {

// That of both.
inline ValueRange united(const ValueRange& a, const ValueRange& b) {
  return {a.integer && b.integer, std::min(a.low, b.low), std::max(a.high, b.high)};
}

}  // namespace detail

// Throws InvalidArgument naming `argument`, the row (counted from first_row) and the column of the
// first NaN or infinity, and of the first f64 value beyond the range of float, in which distances
// are. For cosine an f64 row must be zero or have a coordinate of shortest_for_cosine at least:
// squares of all smaller ones vanish, or lose their digits.
ValueRange find_value_range(AnyMatrixView data, Metric metric, std::string_view argument,
                            int threads, std::int64_t first_row = 0);
inline constexpr double shortest_for_cosine = 0x1p-200;

// Throws InvalidArgument for f64 rows [n x dim] that float32 cannot tell apart, since they lie far
// from 0 beside their differences, as times in seconds since 1970 do: where rounding adds more than
// a hundredth to their variance, as a sample of them has it. `made` is what is float32 and would
// be made of them ("centroids"). Rows of other types are float32 already, or coarser.
void check_float32_tells_apart(AnyMatrixView rows, std::string_view argument,
                               std::string_view made);

}  // namespace knear
