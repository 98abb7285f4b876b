// The roofline of Chern et al. 2022 against the figures that the paper prints.
#include "knear/cost/roofline.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "knear/core/error.hpp"
#include "knear/cost/plan.hpp"

namespace knear {
namespace {

Roofs roofs_of(std::string_view name) {
  const MachinePeaks& peaks = known_machine(name).peaks;
  return {peaks.bf16_flops, peaks.memory_bytes_per_second, peaks.cop_per_second};
}

// The shapes of Table 2.
const PartialReduceShape glove{.rows = 1183514, .dim = 100, .queries = 10000, .metric = Metric::ip};
const PartialReduceShape sift{.rows = 1000000, .dim = 128, .queries = 10000, .metric = Metric::l2};

TEST(Roofline, CountsCoefficientWiseOperationsAsThePaper) {
  EXPECT_EQ(coefficient_wise_per_score(glove), 4);
  EXPECT_EQ(coefficient_wise_per_score(sift), 6);
  EXPECT_NEAR(intensity_of(glove).coefficient_wise, 64.0, 0.05);
  EXPECT_NEAR(intensity_of(sift).coefficient_wise, 42.7, 0.05);
  PartialReduceShape shape = glove;
  shape.padded = false;
  EXPECT_EQ(coefficient_wise_per_score(shape), 5);
  shape.rows = 1 << 20, shape.dim = 128;
  EXPECT_EQ(coefficient_wise_per_score(shape), 3);
}

TEST(Roofline, AttainableRatesAreNotBelowTheMeasuredOnes) {
  // Table 2: GFLOP/s on TPU v3 and v4, and I_MEM as the profiler reported it.
  const struct {
    const char* machine;
    PartialReduceShape shape;
    double memory, measured, attainable;
    Limit limit;
  } rows[] = {{"tpu-v3", glove, 4758, 118524e9, 126e12, Limit::multiply_adds},
              {"tpu-v3", sift, 4701, 118062e9, 126e12, Limit::multiply_adds},
              {"tpu-v4", glove, 4758, 251166e9, 274e12, Limit::multiply_adds},
              {"tpu-v4", sift, 4701, 172035e9, 183.5e12, Limit::coefficient_wise}};
  for (const auto& row : rows) {
    Intensity intensity = intensity_of(row.shape);
    intensity.memory = row.memory;
    const Attainable roof = attainable_rate(roofs_of(row.machine), intensity);
    EXPECT_GE(roof.rate, row.measured) << row.machine;
    EXPECT_NEAR(roof.rate, row.attainable, 0.0005 * row.attainable) << row.machine;
    EXPECT_EQ(roof.limit, row.limit) << row.machine;
  }
  // Section 4.3: at D = 128 a TPU v4 has room for four operations per score, an A100 for 16.
  for (const auto& [machine, most] : {std::pair("tpu-v4", 4), std::pair("a100", 16)}) {
    const Roofs roofs = roofs_of(machine);
    EXPECT_EQ(std::floor(2 * 128 * roofs.coefficient_wise / roofs.operations), most);
  }
}

TEST(Roofline, MemoryIsTheLimitOfFewQueriesPerReading) {
  PartialReduceShape shape = sift;
  shape.query_block = 1;
  const Attainable roof = attainable_rate(roofs_of("a100"), intensity_of(shape));
  EXPECT_EQ(roof.limit, Limit::memory);
  EXPECT_NEAR(roof.rate, 1555e9 / 2, 0.01 * 1555e9);  // two operations for each float read
  // Eq. 20 approaches half the queries of a block; the paper's profiler reported 4,701.
  shape.query_block = 10000;
  EXPECT_NEAR(intensity_of(shape).memory, 4854, 1);
}

TEST(Roofline, RefusesWhatIsNoRoofAndNoMachine) {
  EXPECT_THROW(attainable_rate({1, 1, 0}, {1, 1}), InvalidArgument);
  EXPECT_THROW(attainable_rate({1, 1, 1}, {std::nan(""), 1}), InvalidArgument);
  EXPECT_THROW(intensity_of({.rows = 1, .dim = 0, .queries = 1}), InvalidArgument);
  try {
    known_machine("tpu");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "machine must be one of v100, a100, tpu-v3, tpu-v4, h200, but is 'tpu'");
  }
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(attainable_rate({5, 1, 1}, {inf, inf}).rate, 5);
}

TEST(Roofline, ScansOfKnownMachinesCanBePredicted) {
  for (const KnownMachine& machine : known_machines()) {
    const ScanShape shape{.rows = 1000000,
                          .dim = 128,
                          .queries = 10000,
                          .k = 10,
                          .bytes_per_element = 2,
                          .op = ScanOp::bf16};
    const ScanCost cost = predict_scan(shape, machine.peaks);
    EXPECT_GT(cost.seconds, 2.56e12 / machine.peaks.bf16_flops) << machine.name;
    EXPECT_LT(cost.seconds, 20 * 2.56e12 / machine.peaks.bf16_flops) << machine.name;
    EXPECT_FALSE(machine.title.empty() || machine.source.empty());
  }
}

}  // namespace
}  // namespace knear
