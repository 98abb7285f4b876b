// tests/cost/merge_tree_test.cpp -- the simulation of the tree that merges, against what is known
// in closed form: maxima of many, queues, machines that are down, requests asked twice.
//
// A mean of n draws is within 5 deviations of itself but once in two million times; seeds are
// fixed, so that a test which passes once passes always.
#include "knear/cost/merge_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "knear/core/error.hpp"

namespace knear {
namespace {

// Exponential with mean 1, by its quantiles up to 1 - 1e-5.
std::vector<double> exponential() {
  std::vector<double> out;
  for (int i = 0; i <= 100000; ++i) out.push_back(-std::log(1 - std::min(i / 1e5, 1 - 1e-5)));
  return out;
}

// So few requests that none waits for another.
MergeTree idle() { return {.requests_per_second = 1e-4, .service_seconds = 1}; }

TEST(MergeTree, AloneIsTheTimeOfService) {
  const MergeTreeTimes times = simulate(idle());
  EXPECT_DOUBLE_EQ(times.p50_seconds, 1);
  EXPECT_DOUBLE_EQ(times.p999_seconds, 1);
  EXPECT_EQ(times.partial_share, 0);
  EXPECT_EQ(times.hedged_share, 0);
}

TEST(MergeTree, AddsHopsAndMergesLevelByLevel) {
  MergeTree tree = idle();
  tree.request_hop_seconds = 0.25, tree.answer_hop_seconds = 0.5, tree.merge_seconds = 0.0625;
  tree.requests = 100;
  // Groups of 4: each level 0.25 down, 0.5 and three merges up. Of 5 and of 17 the last has no
  // group to wait for: it has sent before the others are merged.
  const double level = 0.25 + 0.5 + 3 * 0.0625;
  for (const auto& [shards, seconds] :
       {std::pair(1, 1.0), std::pair(2, 1 + 0.25 + 0.5 + 0.0625), std::pair(4, 1 + level),
        std::pair(5, 1 + level + 0.25 + 0.0625), std::pair(16, 1 + 2 * level),
        std::pair(17, 1 + 2 * level + 0.25 + 0.0625)}) {
    tree.shards = shards, tree.fan_in = 4;
    EXPECT_NEAR(simulate(tree).p50_seconds, seconds, 1e-6) << shards;
  }
}

TEST(MergeTree, WaitsForTheSlowestOfMany) {
  MergeTree tree = idle();
  tree.service_quantiles = exponential();
  for (const int shards : {1, 8, 64}) {
    tree.shards = shards, tree.fan_in = 64;
    double mean = 0, variance = 0;  // of the largest of so many exponentials
    for (int i = 1; i <= shards; ++i) mean += 1.0 / i, variance += 1.0 / i / i;
    const MergeTreeTimes times = simulate(tree);
    const double tolerance = 5 * std::sqrt(variance / double(tree.requests));
    EXPECT_NEAR(times.mean_seconds, mean, tolerance + 1e-3) << shards;
    // P(max < t) = (1 - exp(-t))^shards. The deviation of a quantile q of n draws is
    // sqrt(q (1 - q) / n) over the density there, which is about 1 - q far out.
    const double p99 = -std::log(1 - std::pow(0.99, 1.0 / shards));
    EXPECT_NEAR(times.p99_seconds, p99, 5 * std::sqrt(0.99 * 0.01 / 1e4) / 0.01) << shards;
  }
}

TEST(MergeTree, DrawsLogNormalTimes) {
  MergeTree tree = idle();
  tree.service_spread = 0.5, tree.requests = 100000;
  const MergeTreeTimes times = simulate(tree);
  EXPECT_NEAR(times.p50_seconds, 1, 0.02);
  EXPECT_NEAR(times.mean_seconds, std::exp(0.125), 0.02);
  EXPECT_NEAR(times.p99_seconds, std::exp(0.5 * 2.326), 0.1);
}

TEST(MergeTree, QueuesAsOneServerDoes) {
  // M/D/1: the mean wait is busy / (2 (1 - busy)) of the service. M/M/1: busy / (1 - busy).
  for (const double busy : {0.3, 0.7}) {
    MergeTree tree{.requests_per_second = busy, .service_seconds = 1, .requests = 200000};
    MergeTreeTimes times = simulate(tree);
    EXPECT_NEAR(times.mean_seconds, 1 + busy / (2 * (1 - busy)), 0.06) << busy;
    EXPECT_NEAR(times.busy_share, busy, 0.01);
    tree.service_quantiles = exponential();
    times = simulate(tree);
    EXPECT_NEAR(times.mean_seconds, 1 / (1 - busy), 0.1) << busy;
    EXPECT_NEAR(times.p50_seconds, std::log(2) / (1 - busy), 0.1) << busy;
  }
}

TEST(MergeTree, ReplicasShareTheRequests) {
  MergeTree tree{.shards = 3, .replicas = 4, .requests_per_second = 2, .service_seconds = 1};
  const MergeTreeTimes times = simulate(tree);
  EXPECT_NEAR(times.busy_share, 0.5, 0.02);  // 2 of 4 of each shard
  // With one queue for all four the wait would be M/D/4's, some 0.09 (half of Erlang C's 0.174);
  // the shortest of four queues is a little worse, and three shards wait for the slowest.
  EXPECT_LT(times.mean_seconds, 1.4);
  tree.replicas = 3;
  EXPECT_GT(simulate(tree).mean_seconds, times.mean_seconds);
}

TEST(MergeTree, FailuresLeaveShardsOut) {
  MergeTree tree{.requests_per_second = 10,
                 .service_seconds = 1e-3,
                 .failures_per_hour = 36,
                 .recovery_seconds = 25,
                 .requests = 100000};
  // Down 25 of 125 seconds.
  EXPECT_DOUBLE_EQ(expected_partial_share(tree), 0.2);
  EXPECT_NEAR(simulate(tree).partial_share, 0.2, 0.07);  // of a hundred failures
  tree.replicas = 2;
  EXPECT_DOUBLE_EQ(expected_partial_share(tree), 0.04);
  EXPECT_NEAR(simulate(tree).partial_share, 0.04, 0.03);
  tree.shards = 10;
  EXPECT_NEAR(expected_partial_share(tree), 1 - std::pow(0.96, 10), 1e-12);
  EXPECT_NEAR(simulate(tree).partial_share, 1 - std::pow(0.96, 10), 0.05);
  tree.failures_per_hour = 0;
  EXPECT_EQ(expected_partial_share(tree), 0);
  EXPECT_EQ(simulate(tree).partial_share, 0);
}

TEST(MergeTree, WorkOfAFailedMachineGoesToAnother) {
  // A second of service, machines that fail every two: most requests are begun more than once.
  MergeTree tree{.replicas = 8,
                 .requests_per_second = 0.01,
                 .service_seconds = 1,
                 .failures_per_hour = 1800,
                 .recovery_seconds = 0,
                 .requests = 20000};
  const MergeTreeTimes times = simulate(tree);
  EXPECT_EQ(times.partial_share, 0);
  // Begun anew until one second passes without a failure: (exp(rate) - 1) / rate.
  EXPECT_NEAR(times.mean_seconds, (std::exp(0.5) - 1) / 0.5, 0.05);
}

TEST(MergeTree, HedgingCutsTheTail) {
  MergeTree tree = idle();
  tree.replicas = 2, tree.service_quantiles = exponential(), tree.requests = 100000;
  const MergeTreeTimes alone = simulate(tree);
  tree.hedge_quantile = 0.9;
  const MergeTreeTimes times = simulate(tree);
  EXPECT_NEAR(times.hedged_share, 0.1, 0.006);
  // After h = -log 0.1 the two are down at twice the rate: P(> t) = 0.1 exp(-2 (t - h)).
  const double h = -std::log(0.1);
  EXPECT_NEAR(times.p99_seconds, h + std::log(10) / 2, 0.15);
  EXPECT_NEAR(times.p999_seconds, h + std::log(100) / 2, 0.35);
  EXPECT_NEAR(alone.p999_seconds, -std::log(0.001), 0.6);
  // There is nobody else to ask.
  tree.replicas = 1;
  EXPECT_EQ(simulate(tree).hedged_share, 0);
}

TEST(MergeTree, TheDeadlineEndsARequest) {
  MergeTree tree = idle();
  tree.service_quantiles = exponential(), tree.deadline_seconds = std::log(4);
  const MergeTreeTimes times = simulate(tree);
  EXPECT_NEAR(times.partial_share, 0.25, 0.025);
  EXPECT_EQ(times.p99_seconds, tree.deadline_seconds);
}

TEST(MergeTree, IsTheSameForASeed) {
  MergeTree tree{.shards = 5,
                 .replicas = 2,
                 .requests_per_second = 1,
                 .service_seconds = 1,
                 .service_spread = 0.4,
                 .hedge_quantile = 0.9,
                 .failures_per_hour = 1,
                 .recovery_seconds = 60,
                 .requests = 2000,
                 .seed = 7};
  const MergeTreeTimes a = simulate(tree), b = simulate(tree);
  EXPECT_EQ(a.mean_seconds, b.mean_seconds);
  EXPECT_EQ(a.p999_seconds, b.p999_seconds);
  EXPECT_EQ(a.busy_share, b.busy_share);
  tree.seed = 8;
  EXPECT_NE(simulate(tree).mean_seconds, a.mean_seconds);
}

TEST(MergeTree, RefusesWhatCannotBeSimulated) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  for (const MergeTree& wrong : {MergeTree{.shards = 0},
                                 MergeTree{.replicas = 0},
                                 MergeTree{.fan_in = 1},
                                 MergeTree{.requests = 0},
                                 MergeTree{.requests_per_second = 0},
                                 MergeTree{.requests_per_second = infinite},
                                 MergeTree{.service_seconds = -1},
                                 MergeTree{.service_seconds = nan},
                                 MergeTree{.service_spread = 6},
                                 MergeTree{.service_quantiles = {2, 1}},
                                 MergeTree{.service_quantiles = {nan}},
                                 MergeTree{.answer_hop_seconds = infinite},
                                 MergeTree{.hedge_quantile = 0},
                                 MergeTree{.hedge_quantile = 1.5},
                                 MergeTree{.recovery_seconds = -1},
                                 MergeTree{.deadline_seconds = 0},
                                 MergeTree{.shards = 1000000, .requests = 1000},
                                 MergeTree{.shards = 10000, .replicas = 10000, .requests = 1},
                                 MergeTree{.replicas = 1000000, .requests = 100000},
                                 MergeTree{.requests_per_second = 1, .service_seconds = 1},
                                 MergeTree{.requests_per_second = 1e-6, .failures_per_hour = 3600}})
    EXPECT_THROW(simulate(wrong), InvalidArgument);
}

}  // namespace
}  // namespace knear
