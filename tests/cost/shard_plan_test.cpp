// tests/cost/shard_plan_test.cpp -- what the merge of shards is forecast to take, and the speed-up
// that leaves.
#include "knear/cost/shard_plan.hpp"

#include <gtest/gtest.h>

#include "knear/core/error.hpp"

namespace knear {
namespace {

MachinePeaks peaks() {
  MachinePeaks out;
  out.threads = 2, out.cop_per_second = 200e9;
  return out;
}

TEST(PredictMerge, GrowsWithShardsQueriesAndNeighbours) {
  const double usual = predict_merge({.shards = 3, .queries = 100000, .k = 10}, peaks());
  EXPECT_GT(usual, 0);
  EXPECT_DOUBLE_EQ(predict_merge({.shards = 5, .queries = 100000, .k = 10}, peaks()), 2 * usual);
  EXPECT_DOUBLE_EQ(predict_merge({.shards = 3, .queries = 200000, .k = 10}, peaks()), 2 * usual);
  EXPECT_DOUBLE_EQ(predict_merge({.shards = 3, .queries = 100000, .k = 20}, peaks()), 2 * usual);
  EXPECT_DOUBLE_EQ(predict_merge({.shards = 3, .queries = 100000, .k = 10, .threads = 1}, peaks()),
                   2 * usual);
  EXPECT_EQ(predict_merge({.shards = 1, .queries = 1000, .k = 10}, peaks()), 0);
  // So few that one thread merges them.
  EXPECT_DOUBLE_EQ(predict_merge({.shards = 3, .queries = 1000, .k = 10}, peaks()), usual / 50);
}

TEST(PredictMerge, RefusesWhatIsNotKnown) {
  EXPECT_THROW(predict_merge({.shards = -1}, peaks()), InvalidArgument);
  EXPECT_THROW(predict_merge({.queries = -1}, peaks()), InvalidArgument);
  EXPECT_THROW(predict_merge({.queries = 1}, MachinePeaks{}), InvalidArgument);
}

TEST(PredictSpeedUp, IsThatOfAmdahl) {
  EXPECT_DOUBLE_EQ(predict_speed_up(8, 0, 4), 4);
  EXPECT_DOUBLE_EQ(predict_speed_up(8, 2, 4), 2);
  EXPECT_DOUBLE_EQ(predict_speed_up(8, 0, 1), 1);
  EXPECT_LT(predict_speed_up(8, 1, 1000000), 8);
  EXPECT_EQ(predict_speed_up(0, 1, 4), 1);
  EXPECT_DOUBLE_EQ(predict_speed_up(8, 1, 4, 1), 2);
  EXPECT_THROW(predict_speed_up(8, 1, 0), InvalidArgument);
}

}  // namespace
}  // namespace knear
