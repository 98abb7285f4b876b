#include "knear/index/usual_lists.hpp"

#include <algorithm>
#include <cmath>

namespace knear {

std::int64_t usual_lists(std::int64_t rows) {
  const double power = std::round(std::log2(2.7 * std::sqrt(static_cast<double>(rows))));
  return std::min(std::int64_t{1} << std::clamp(static_cast<int>(power), 0, 24),
                  std::max<std::int64_t>(1, rows));
}

}  // namespace knear
