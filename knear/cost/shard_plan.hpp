// knear/cost/shard_plan.hpp -- what it costs to divide a search between shards and replicas.
//
//   predict_merge({.shards = 8, .queries = 10000, .k = 10}, peaks)       // seconds
//
// What shards find for a query, k neighbours each, is merged pair by pair, (shards - 1) k steps of
// a comparison and a move of 16 bytes, on one thread for each 65,536 of them. That is not divided,
// nor is what every shard does again for a query: packing it, putting lists in order, making
// tables.
#pragma once
#include <cstdint>

#include "knear/cost/peaks.hpp"

namespace knear {

struct MergeShape {
  std::int64_t shards = 1, queries = 0, k = 1;
  int threads = 0;  // 0: as many as were measured
};

// Throws InvalidArgument for a negative number or peaks that are not known.
double predict_merge(const MergeShape& shape, const MachinePeaks& peaks);

}  // namespace knear
