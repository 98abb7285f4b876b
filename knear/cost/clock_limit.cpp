#include "knear/cost/clock_limit.hpp"

#include <algorithm>

namespace knear::detail {

double clock_limit(const ProcessorClocks& clocks) {
  double limit = highest_clock;
  if (clocks.highest > 0)
    limit = 1.25 * clocks.highest;
  else if (clocks.nominal > 0)
    limit = std::max(4e9, 2.5 * clocks.nominal);
  return std::min(limit, highest_clock);
}

double clock_limit() {
  static const double limit = clock_limit(processor_clocks());
  return limit;
}

}  // namespace knear::detail
