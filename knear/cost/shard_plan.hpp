// knear/cost/shard_plan.hpp -- what it costs to divide a search between shards and replicas, and
// what that gains.
//
//   predict_merge({.shards = 8, .queries = 10000, .k = 10}, peaks)       // seconds
//   predict_speed_up(one_part_seconds, predict_merge(...), 8)            // at most 8
//
// Amdahl's law with what is not divided: what shards find for a query, k neighbours each, is merged
// pair by pair, (shards - 1) k steps of a comparison and a move of 16 bytes, on one thread for each
// 65,536 of them. Rows are divided between shards, queries between replicas, both between threads;
// what is done once for a query, packing it, putting lists in order, making tables, every shard
// does again (`repeated_seconds`).
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

// Of so many parts on a thread each, over one on one thread that takes `seconds`, beside which they
// take merge_seconds, and each of them repeated_seconds more. Throws InvalidArgument for no parts.
double predict_speed_up(double seconds, double merge_seconds, std::int64_t parts,
                        double repeated_seconds = 0);

}  // namespace knear
