#include "knear/cluster/row_values.hpp"

#include <algorithm>
#include <limits>

namespace knear::detail {

bool write_centroid(const std::vector<double>& from, bool spherical, float* to) {
  double length = 1;
  if (spherical) {
    double squares = 0;
    for (const double x : from) squares += x * x;
    length = std::sqrt(squares);
    if (!(length > 0)) return false;
  }
  constexpr double most = std::numeric_limits<float>::max();
  for (std::size_t j = 0; j < from.size(); ++j)
    to[j] = static_cast<float>(std::clamp(from[j] / length, -most, most));
  return true;
}

}  // namespace knear::detail
