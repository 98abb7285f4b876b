#include "knear/cost/shard_plan.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cost/scan_cost_model.hpp"

namespace knear {

double predict_merge(const MergeShape& shape, const MachinePeaks& peaks) {
  constexpr ScanCostModel model;
  for (const auto& [name, value] :
       {std::pair("shards", shape.shards), std::pair("queries", shape.queries),
        std::pair("k", shape.k), std::pair("threads", std::int64_t{shape.threads})})
    if (value < 0) throw InvalidArgument("{} must not be negative, but is {}", name, value);
  if (!(peaks.cop_per_second > 0) || peaks.threads < 1)
    throw InvalidArgument("the peaks of the machine are not known: cop_per_second is {}",
                          peaks.cop_per_second);
  // distance/exact_neighbors.cpp has so many neighbours in a task.
  const double tasks = std::ceil(double(shape.queries) * double(shape.k) / 65536);
  const double threads =
      std::clamp(tasks, 1.0, double(shape.threads == 0 ? peaks.threads : shape.threads));
  const double lanes = peaks.cop_per_second * threads / peaks.threads;
  const double steps =
      double(std::max<std::int64_t>(0, shape.shards - 1)) * double(shape.queries) * double(shape.k);
  return steps * model.merged_operations / lanes;
}

}  // namespace knear
