#include "knear/core/mean_interval.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace knear {

Interval wilson_interval(double mean, double answers, double z) {
  const double centre = mean + z * z / (2 * answers), scale = 1 + z * z / answers;
  const double half = z * std::sqrt(mean * (1 - mean) / answers + z * z / (4 * answers * answers));
  return {(centre - half) / scale, (centre + half) / scale};
}

Interval mean_interval(std::span<const double> values) {
  if (values.empty()) return {};
  const double n = double(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double ratio = 1;
  if (n > 1 && mean > 0 && mean < 1) {
    double squares = 0;
    for (double value : values) squares += (value - mean) * (value - mean);
    ratio = squares / (n - 1) / (mean * (1 - mean));
  }
  // No spread at all between 0 and 1 would make the sample infinitely large.
  const Interval ends = wilson_interval(mean, n / std::max(ratio, 1e-12), 1.959964);
  // Rounding must not leave the mean outside, where that is 0 or 1.
  return {std::clamp(ends.low, 0.0, mean), std::clamp(ends.high, mean, 1.0)};
}

}  // namespace knear
