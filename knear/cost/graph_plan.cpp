#include "knear/cost/graph_plan.hpp"

#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cost/machine_rates.hpp"

namespace knear {
namespace {

// Per node that is scored, beside its products; and seconds per query and per call.
constexpr double node_cycles = 80;
constexpr double query_seconds = 4e-6, call_seconds = 5e-6;
// Products of one query reach this share of the rate of many.
constexpr double single_efficiency = 0.3;
// Nodes are read one at a time, wherever they are, at this share of the rate of reading ahead.
constexpr double random_reading = 0.3;
// Bytes of a node beside its codes, with 32 links.
constexpr double bytes_of_links = 144;

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
  const double base = double(shape.rows) * (double(shape.dim) + bytes_of_links);
  const double products = 2 * double(shape.dim) * threads / (single_efficiency * peaks.int8_ops);
  const double node = node_cycles / cycles + products +
                      double(shape.dim) / (random_reading * reading_rate(base, 1 / threads, peaks));
  return call_seconds + double(shape.queries) * (query_seconds + shape.scored_rows * node);
}

}  // namespace knear
