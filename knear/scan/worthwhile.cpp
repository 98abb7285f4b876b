#include "knear/scan/worthwhile.hpp"

#include <algorithm>

#include "knear/cost/plan.hpp"

namespace knear::detail {

double worthwhile_survivors(Format format, std::int64_t dim, const MachinePeaks& peaks) {
  const double measuring = measured_row_seconds(dim, peaks);
  if (format == format_fp32) return std::min(direct_row_seconds(dim, peaks) / measuring, 0.25);
  // The next pass takes as long as one in fp32 does at most, and has to be packed.
  return std::clamp(3 * pair_seconds(ScanOp::fp32, dim, peaks) / measuring, 0.002, 0.04);
}

}  // namespace knear::detail
