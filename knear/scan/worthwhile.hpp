// knear/scan/worthwhile.hpp -- how many rows a pass may leave to the next.
#pragma once
#include <cstdint>

#include "knear/cost/peaks.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {

// The share of the rows that a first pass may leave to be measured before the next stage of the
// precision cascade, one of wider codes or after fp32 the direct one, costs less.
double worthwhile_survivors(Format format, std::int64_t dim, const MachinePeaks& peaks);

}  // namespace knear::detail
