// knear/cost/graph_plan.hpp -- how long a search along a graph will take.
//
//   predict_graph({.rows = 100000, .dim = 256, .queries = 1, .scored_rows = 1000}, peaks)
//
// A walk scores nodes one after another, wherever they are: each takes cycles of a core, and the
// time to read its codes from the cache or the memory that holds all of them. With 64 columns and
// 24 links or more it estimates most of them, which takes a quarter of the time. Queries share
// nothing. The constants were measured for 4,000 to 137,770 rows of 64 to 784 columns on one
// machine (docs/measurements/lists.md).
#pragma once
#include <cstdint>

#include "knear/cost/peaks.hpp"

namespace knear {

struct GraphShape {
  std::int64_t rows = 0, dim = 0, links = 32, queries = 0;
  double scored_rows = 0;  // nodes that a query estimates or measures, on average

  // Returns whether a walk estimates how far nodes are before it measures them
  // (index/graph/node_runs.hpp).
  bool estimates() const { return dim >= 64 && links >= 24; }
};

// Seconds of one core for all queries. Throws InvalidArgument for a negative number.
double predict_graph(const GraphShape& shape, const MachinePeaks& peaks);

}  // namespace knear
