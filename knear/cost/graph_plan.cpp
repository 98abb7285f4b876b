#include "knear/cost/graph_plan.hpp"

#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cost/machine_rates.hpp"

namespace knear {
namespace {

// Cycles for a node that is measured, beside its products, or that is estimated first
// (index/graph/node_runs.hpp); and seconds per query and per call.
constexpr double node_cycles = 80, estimate_cycles = 22;
constexpr double query_seconds = 4e-6, call_seconds = 5e-6;
// Products of one query reach this share of the rate of many.
constexpr double single_efficiency = 0.3;
// Nodes are read one at a time, wherever they are, at this share of the rate of reading ahead.
constexpr double random_reading = 0.3;
// Bytes of a node beside its codes, with 32 links; with estimates.
constexpr double bytes_of_links = 144, bytes_of_estimates = 320;
// A graph that estimates keeps five bytes a column. For each neighbour it reads this share of a
// code: one bit a column, and now and then the code itself.
constexpr double share_read = 0.22;

}  // namespace

double predict_graph(const GraphShape& shape, const MachinePeaks& peaks) {
  for (const auto& [name, value] :
       {std::pair("rows", double(shape.rows)), std::pair("dim", double(shape.dim)),
        std::pair("queries", double(shape.queries)), std::pair("scored_rows", shape.scored_rows)})
    if (!(value >= 0)) throw InvalidArgument("{} must not be negative, but is {}", name, value);
  if (shape.queries == 0) return 0;
  const double threads = std::max(1, peaks.threads);
  const double cycles =
      peaks.cycles_per_second > 0 ? peaks.cycles_per_second / threads : assumed_cycles_per_second;
  const bool estimates = shape.estimates();
  const double dim = double(shape.dim);
  const double base =
      double(shape.rows) * (estimates ? 5 * dim + bytes_of_estimates : dim + bytes_of_links);
  const double code = 2 * dim * threads / (single_efficiency * peaks.int8_ops) +
                      dim / (random_reading * reading_rate(base, 1 / threads, peaks));
  const double node =
      estimates ? estimate_cycles / cycles + share_read * code : node_cycles / cycles + code;
  return call_seconds + double(shape.queries) * (query_seconds + shape.scored_rows * node);
}

}  // namespace knear
