// tests/cost/scale_plan_test.cpp -- plans for many machines: what they are made of, and what they
// grow with.
#include "knear/cost/scale_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "knear/core/error.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/cost/plan.hpp"
#include "knear/cost/recall_assumptions.hpp"
#include "knear/cost/shard_plan.hpp"

namespace knear {
namespace {

MachineDescription machine() {
  MachineDescription out;
  out.name = "m";
  out.peaks.isa = Isa::avx512_vnni, out.peaks.threads = 2;
  out.peaks.fp32_flops = 232e9, out.peaks.bf16_flops = 232e9, out.peaks.int16_ops = 454e9;
  out.peaks.int8_ops = 927e9, out.peaks.cop_per_second = 199e9;
  out.peaks.memory_bytes_per_second = 56e9;
  out.memory_bytes = 64e9;
  out.network_bytes_per_second = 1e9, out.network_latency_seconds = 1e-4;
  out.price_per_hour = 2;
  return out;
}

ScaleNeeds needs() { return {.rows = 1'000'000'000, .dim = 96, .queries_per_second = 1000}; }

const ScalePlan& plan_of(const std::vector<ScalePlan>& plans, const std::string& end) {
  for (const ScalePlan& plan : plans)
    if (plan.factory == end || plan.factory.ends_with("," + end)) return plan;
  ADD_FAILURE() << "no plan " << end;
  return plans.front();
}

TEST(PlanAtScale, ExactSearchIsThatOfTheScan) {
  ScaleNeeds exact = needs();
  exact.recall = 1;
  const auto plans = plan_at_scale(exact, machine());
  ASSERT_EQ(plans.size(), 1u);
  const ScalePlan& plan = plans[0];
  EXPECT_EQ(plan.factory, "Flat");
  EXPECT_EQ(plan.expected_recall, 1);
  EXPECT_NEAR(plan.row_bytes, 4 * 96 + 1.055 * 96 + 9 + 16, 1e-9);
  EXPECT_EQ(plan.shards, std::ceil(1e9 / std::floor(0.8 * 64e9 / plan.row_bytes)));
  EXPECT_EQ(plan.rows_of_shard, std::ceil(1e9 / double(plan.shards)));
  EXPECT_LE(plan.memory_bytes, 0.8 * 64e9);
  const double scan = predict_scan({.rows = std::int64_t(plan.rows_of_shard),
                                    .dim = 96,
                                    .queries = 100,
                                    .k = 10,
                                    .bytes_per_element = 1,
                                    .op = ScanOp::int8},
                                   machine().peaks)
                          .seconds;
  EXPECT_DOUBLE_EQ(plan.service_seconds, scan);
  const double of_replica = 100 / (scan + plan.merge_seconds);
  EXPECT_EQ(plan.replicas, std::ceil(1000 / (0.7 * of_replica)));
  EXPECT_EQ(plan.machines, plan.shards * plan.replicas);
  EXPECT_NEAR(plan.busy, 1000 / (of_replica * double(plan.replicas)), 1e-9);
  EXPECT_LE(plan.busy, 0.7);
  EXPECT_NEAR(plan.wait_seconds, plan.busy / (2 * (1 - plan.busy)) * (scan + plan.merge_seconds),
              1e-9);
  EXPECT_NEAR(plan.latency_seconds,
              scan + plan.merge_seconds + plan.network_seconds + plan.wait_seconds, 1e-9);
}

TEST(PlanAtScale, ListsAreThatOfTheirModel) {
  const auto plans = plan_at_scale(needs(), machine());
  EXPECT_GE(plans.size(), 3u);
  const ScalePlan& plan = plan_of(plans, "Flat");
  EXPECT_GT(plan.lists, 0);
  EXPECT_EQ(plan.factory, "IVF" + std::to_string(plan.lists) + ",Flat");
  EXPECT_DOUBLE_EQ(plan.probes, probes_for_recall(0.95, double(plan.lists)));
  EXPECT_NEAR(plan.probed_rows,
              probed_list_length * plan.probes * plan.rows_of_shard / double(plan.lists), 1e-6);
  EXPECT_DOUBLE_EQ(plan.service_seconds, predict_lists({.rows = std::int64_t(plan.rows_of_shard),
                                                        .dim = 96,
                                                        .queries = 100,
                                                        .k = 10,
                                                        .lists = plan.lists,
                                                        .probes = plan.probes,
                                                        .probed_rows = plan.probed_rows},
                                                       machine().peaks)
                                             .seconds);
  for (std::size_t i = 1; i < plans.size(); ++i)
    EXPECT_LE(plans[i - 1].machines, plans[i].machines);
  EXPECT_LT(plans[0].machines, plan_of(plans, "Flat").machines);
}

TEST(PlanAtScale, TheTreeIsPaidLevelByLevel) {
  ScaleNeeds some = needs();
  some.recall = 1, some.least_shards = 64, some.fan_in = 4;
  const ScalePlan plan = plan_at_scale(some, machine())[0];
  EXPECT_EQ(plan.shards, 64);
  EXPECT_EQ(plan.levels, 3);
  EXPECT_DOUBLE_EQ(plan.merge_seconds,
                   3 * predict_merge({.shards = 4, .queries = 100, .k = 10}, machine().peaks));
  // Queries of 384 bytes down, 160 up; 120 to who asks.
  EXPECT_DOUBLE_EQ(plan.network_bytes_of_query, 63 * (384 + 160) + 384 + 120);
  EXPECT_NEAR(plan.network_seconds, 4 * 2e-4 + 100 * (9 * (384 + 160) + 384 + 120) / 1e9, 1e-12);
  EXPECT_NEAR(plan.busiest_bytes_per_second,
              std::max(384 + 9 * 160, 120 + 9 * 384) * 1000 / double(plan.replicas), 1e-6);
  // What is chosen is no slower.
  some.fan_in = 0;
  const ScalePlan chosen = plan_at_scale(some, machine())[0];
  EXPECT_LE(chosen.merge_seconds + chosen.network_seconds,
            plan.merge_seconds + plan.network_seconds);
}

TEST(PlanAtScale, GrowsWithWhatIsAsked) {
  const auto machines = [](const ScaleNeeds& some, const MachineDescription& one) {
    return plan_at_scale(some, one)[0].machines;
  };
  const std::int64_t usual = machines(needs(), machine());
  ScaleNeeds some = needs();
  some.rows *= 10;
  EXPECT_GT(machines(some, machine()), usual);
  some = needs(), some.queries_per_second = 1e6;
  EXPECT_GT(machines(some, machine()), usual);
  some = needs(), some.recall = 0.99;
  EXPECT_GE(machines(some, machine()), usual);
  some = needs(), some.least_replicas = 3;
  EXPECT_EQ(plan_at_scale(some, machine())[0].replicas % 3, 0);
  MachineDescription large = machine();
  large.memory_bytes *= 16;
  EXPECT_LT(machines(needs(), large), usual);
}

TEST(PlanAtScale, TheNetworkMayBeTheLimit) {
  MachineDescription slow = machine();
  slow.network_bytes_per_second = 1e6;
  ScaleNeeds some = needs();
  some.least_shards = 16;
  const ScalePlan plan = plan_at_scale(some, slow)[0];
  EXPECT_EQ(plan.limit, "network");
  EXPECT_LE(plan.busiest_bytes_per_second, 0.7 * 1e6 * (1 + 1e-12));
}

TEST(PlanAtScale, MoneyFollowsFromMachinesAndHours) {
  const ScalePlan plan = plan_at_scale(needs(), machine())[0];
  EXPECT_DOUBLE_EQ(*plan.price_per_hour, 2.0 * double(plan.machines));
  EXPECT_NEAR(*plan.price_per_million_queries, *plan.price_per_hour / 3.6, 1e-9);
  EXPECT_GT(*plan.build_price, 0);
  EXPECT_NEAR(plan.build_seconds,
              plan.train_seconds + plan.add_seconds + plan.receive_seconds + plan.copy_seconds,
              1e-6);
  MachineDescription free = machine();
  free.price_per_hour.reset();
  EXPECT_FALSE(plan_at_scale(needs(), free)[0].price_per_hour);
}

// An index that was opened has each of its pages checked once.
TEST(PlanAtScale, AnOpenedIndexIsCheckedOnce) {
  MachineDescription known = machine();
  known.first_use_bytes_per_second = 4e9;
  const std::vector<ScalePlan> plans = plan_at_scale(needs(), machine()),
                               checked = plan_at_scale(needs(), known);
  ASSERT_EQ(checked.size(), plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_FALSE(plans[i].opening_seconds);
    ASSERT_TRUE(checked[i].opening_seconds);
    EXPECT_DOUBLE_EQ(*checked[i].opening_seconds, checked[i].memory_bytes / 4e9);
    EXPECT_EQ(checked[i].latency_seconds, plans[i].latency_seconds);
  }
}

// Rows are written to memory that is new to the process, at a rate of its own.
TEST(PlanAtScale, AddingWaitsForMemory) {
  MachineDescription slow = machine();
  slow.new_memory_bytes_per_second = 1e9;
  const std::vector<ScalePlan> plans = plan_at_scale(needs(), machine()),
                               waiting = plan_at_scale(needs(), slow);
  ASSERT_EQ(waiting.size(), plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(waiting[i].factory, plans[i].factory);
    const double seconds = plans[i].rows_of_shard * plans[i].row_bytes / 1e9;
    EXPECT_NEAR(waiting[i].add_seconds, plans[i].add_seconds + seconds, 1e-6 * seconds);
    EXPECT_NEAR(waiting[i].build_seconds, plans[i].build_seconds + seconds, 1e-6 * seconds);
    EXPECT_EQ(waiting[i].latency_seconds, plans[i].latency_seconds);
  }
}

TEST(PlanAtScale, SaysWhatItAssumes) {
  const auto says = [](const ScalePlan& plan, const std::string& words) {
    for (const std::string& one : plan.assumptions)
      if (one.find(words) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(says(plan_at_scale(needs(), machine())[0], "unit96"));
  EXPECT_FALSE(says(plan_at_scale(needs(), machine())[0], "network_bytes_per_second"));
  EXPECT_TRUE(says(plan_at_scale(needs(), machine())[0], "not to wait for memory"));
  MachineDescription known = machine();
  known.new_memory_bytes_per_second = 5e9;
  EXPECT_FALSE(says(plan_at_scale(needs(), known)[0], "not to wait for memory"));
  ScaleNeeds other = needs();
  other.refine_factor = 4;
  EXPECT_TRUE(says(plan_of(plan_at_scale(other, machine()), "PQ48x4,Refine(SQ8)"),
                   "4 codes refined for each neighbour find what 16 found"));
  EXPECT_FALSE(says(plan_of(plan_at_scale(needs(), machine()), "PQ48x4,Refine(SQ8)"), "what 16"));
  MachineDescription bare = machine();
  bare.network_bytes_per_second.reset(), bare.network_latency_seconds.reset();
  bare.price_per_hour.reset();
  const ScalePlan plan = plan_at_scale(needs(), bare)[0];
  EXPECT_TRUE(says(plan, "no network_bytes_per_second"));
  EXPECT_TRUE(says(plan, "no network_latency_seconds"));
  EXPECT_TRUE(says(plan, "no price_per_hour"));
}

TEST(PlanAtScale, TakesWhatWasMeasured) {
  ScaleNeeds some = needs();
  some.lists = 4096, some.probes = 33;
  const std::vector<ScalePlan> plans = plan_at_scale(some, machine());
  const ScalePlan& plan = plan_of(plans, "Flat");
  EXPECT_EQ(plan.lists, 4096);
  EXPECT_EQ(plan.probes, 33);
}

TEST(PlanAtScale, GoesTo10To12Rows) {
  ScaleNeeds some = needs();
  some.rows = 1'000'000'000'000, some.queries_per_second = 10000;
  for (const double recall : {0.5, 0.9, 0.99, 1.0}) {
    some.recall = recall;
    for (const ScalePlan& plan : plan_at_scale(some, machine())) {
      EXPECT_GT(plan.machines, 0);
      EXPECT_GT(plan.latency_seconds, 0);
      EXPECT_TRUE(std::isfinite(plan.build_seconds)) << plan.factory;
      EXPECT_LE(plan.memory_bytes, 0.8 * 64e9 * (1 + 1e-9));
      EXPECT_GE(plan.expected_recall, recall);
    }
  }
}

TEST(PlanAtScale, RefusesWhatNoPlanCanHave) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refuses = [](auto change) {
    ScaleNeeds some = needs();
    change(some);
    EXPECT_THROW(plan_at_scale(some, machine()), InvalidArgument);
  };
  refuses([](ScaleNeeds& some) { some.rows = 0; });
  refuses([](ScaleNeeds& some) { some.rows = std::int64_t{1} << 60; });
  refuses([](ScaleNeeds& some) { some.dim = 0; });
  refuses([](ScaleNeeds& some) { some.k = 0; });
  refuses([](ScaleNeeds& some) { some.rows = 5; });
  refuses([](ScaleNeeds& some) { some.recall = 0; });
  refuses([](ScaleNeeds& some) { some.recall = 1.01; });
  refuses([&](ScaleNeeds& some) { some.recall = nan; });
  refuses([](ScaleNeeds& some) { some.queries_per_second = -1; });
  refuses([](ScaleNeeds& some) { some.batch = 0; });
  refuses([](ScaleNeeds& some) { some.fan_in = 1; });
  refuses([](ScaleNeeds& some) { some.lists = -1; });
  refuses([](ScaleNeeds& some) { some.lists = 64, some.probes = 65; });
  refuses([](ScaleNeeds& some) { some.probes = 8; });
  // What no plan would go by.
  refuses([](ScaleNeeds& some) { some.recall = 1, some.lists = 64; });
  refuses([](ScaleNeeds& some) { some.recall = 1, some.refine_factor = 8; });
  refuses([](ScaleNeeds& some) { some.dim = 97, some.refine_factor = 8; });
  refuses([](ScaleNeeds& some) { some.dim = 4096, some.lists = 1 << 24; });
  refuses([](ScaleNeeds& some) { some.busy_share = 1; });
  refuses([](ScaleNeeds& some) { some.memory_share = 0; });
  refuses([](ScaleNeeds& some) { some.queries_per_second = 1e12, some.rows = 1000000000000000; });
  try {
    ScaleNeeds many = needs();
    many.queries_per_second = 1e12, many.rows = 1000000000000000;
    plan_at_scale(many, machine());
  } catch (const InvalidArgument& error) {  // which says how many
    EXPECT_EQ(std::string(error.what()).find("such a search takes "), 0u) << error.what();
    EXPECT_GT(std::stod(std::string(error.what()).substr(20)), 1e9) << error.what();
  }
  MachineDescription tiny = machine();
  tiny.memory_bytes = 1 << 20;
  ScaleNeeds wide = needs();
  wide.dim = 65536, wide.recall = 1;
  tiny.memory_bytes = 1e5;
  EXPECT_THROW(plan_at_scale(wide, tiny), InvalidArgument);
}

TEST(RecallAssumptions, ProbesGrowWithRecallAndLists) {
  double before = 0;
  for (const double recall : {0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999}) {
    const double probes = probes_for_recall(recall, 65536);
    EXPECT_GE(probes, std::max(1.0, before)) << recall;
    EXPECT_GE(probes_for_recall(recall, 1 << 20), probes) << recall;
    before = probes;
  }
  for (const auto& [probes, missed] : missed_by_probes)
    EXPECT_NEAR(probes_for_recall(1 - missed, assumed_lists), probes, 1e-6 * probes);
  EXPECT_EQ(probes_for_recall(0.999999, 16), 16);
}

TEST(RecallAssumptions, CodesFindLessAmongMore) {
  for (const CodedForm& form : coded_forms) {
    EXPECT_NEAR(recall_of_codes(form.recall, 1e6), form.recall.found, 1e-12);
    EXPECT_LE(recall_of_codes(form.recall, 1e9), form.recall.found);
    EXPECT_GT(recall_of_codes(form.recall, 1e12), 0);
  }
}

}  // namespace
}  // namespace knear
