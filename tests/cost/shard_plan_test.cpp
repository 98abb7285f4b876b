// tests/cost/shard_plan_test.cpp -- what the merge of shards is forecast to take.
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

}  // namespace
}  // namespace knear
