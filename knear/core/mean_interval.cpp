#include "knear/core/mean_interval.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace knear {

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
  const double size = n / std::max(ratio, 1e-12), z = 1.959964;
  const double centre = mean + z * z / (2 * size), scale = 1 + z * z / size;
  const double half = z * std::sqrt(mean * (1 - mean) / size + z * z / (4 * size * size));
  // Rounding must not leave the mean outside, where that is 0 or 1.
  return {std::clamp((centre - half) / scale, 0.0, mean),
          std::clamp((centre + half) / scale, mean, 1.0)};
}

}  // namespace knear
