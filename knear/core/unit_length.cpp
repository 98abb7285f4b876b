#include "knear/core/unit_length.hpp"

#include <algorithm>
#include <cmath>

namespace knear::detail {

SafeLength safe_length(const double* x, std::int64_t dim) {
  double largest = 0, squares = 0;
  for (std::int64_t j = 0; j < dim; ++j) largest = std::max(largest, std::abs(x[j]));
  for (std::int64_t j = 0; largest > 0 && j < dim; ++j)
    squares += (x[j] / largest) * (x[j] / largest);
  return {largest, std::sqrt(squares)};
}

bool give_unit_length(double* x, std::int64_t dim) {
  const SafeLength length = safe_length(x, dim);
  if (!(length.largest > 0) || !std::isfinite(length.largest)) return false;
  for (std::int64_t j = 0; j < dim; ++j) x[j] = x[j] / length.largest / length.root;
  return true;
}

}  // namespace knear::detail
