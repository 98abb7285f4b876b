// The cost model against sums done by hand on round peaks.
#include "knear/cost/plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "knear/core/error.hpp"

namespace knear {
namespace {

MachinePeaks round_peaks() {
  return {.isa = Isa::avx512_vnni,
          .threads = 2,
          .fp32_flops = 200e9,
          .bf16_flops = std::numeric_limits<double>::quiet_NaN(),
          .int16_ops = 400e9,
          .int8_ops = 800e9,
          .memory_bytes_per_second = 20e9,
          .cop_per_second = 100e9,
          .caches = {}};
}

constexpr ScanShape batch = {.rows = 1000000,
                             .dim = 1000,
                             .queries = 1000,
                             .k = 10,
                             .bytes_per_element = 1,
                             .op = ScanOp::int8,
                             .queries_per_pass = 100};

TEST(PredictScan, ManyQueriesAreLimitedByMultiplyAdds) {
  const ScanCost cost = predict_scan(batch, round_peaks());
  EXPECT_DOUBLE_EQ(cost.multiply_adds, 1e12);
  EXPECT_DOUBLE_EQ(cost.multiply_add_seconds, 2e12 / (800e9 * scan_efficiency));
  EXPECT_DOUBLE_EQ(cost.bytes, 1e9 * 10 + 4e3 * 10 * 1000);
  EXPECT_EQ(cost.limit, "int8 multiply-adds");
  EXPECT_DOUBLE_EQ(cost.seconds, cost.multiply_add_seconds + cost.selection_seconds);
  EXPECT_GT(cost.selection_seconds, 2e9 / 100e9);  // each score is compared
  EXPECT_LT(cost.selection_seconds, 0.1 * cost.seconds);
}

TEST(PredictScan, OneQueryIsLimitedByMemory) {
  ScanShape shape = batch;
  shape.queries = 1;
  const ScanCost cost = predict_scan(shape, round_peaks());
  EXPECT_EQ(cost.limit, "memory");
  EXPECT_DOUBLE_EQ(cost.seconds, (1e9 + 40e3) / 20e9);
}

TEST(PredictScan, ShortRowsAndManyNeighboursAreLimitedBySelection) {
  const ScanCost cost = predict_scan({.rows = 100000,
                                      .dim = 1,
                                      .queries = 1000,
                                      .k = 1000,
                                      .bytes_per_element = 1,
                                      .op = ScanOp::int8},
                                     round_peaks());
  EXPECT_EQ(cost.limit, "selection");
  EXPECT_GE(cost.seconds, cost.selection_seconds);
}

TEST(PredictScan, HalfTheThreadsTakeTwiceTheTime) {
  ScanShape shape = batch;
  shape.threads = 1;
  EXPECT_DOUBLE_EQ(predict_scan(shape, round_peaks()).seconds,
                   2 * predict_scan(batch, round_peaks()).seconds);
}

TEST(PredictScan, NothingToScanTakesNoTime) {
  ScanShape shape = batch;
  shape.rows = 0;
  EXPECT_EQ(predict_scan(shape, round_peaks()).seconds, 0);
  shape = batch;
  shape.queries = 0;
  EXPECT_EQ(predict_scan(shape, round_peaks()).seconds, 0);
}

TEST(PredictScan, MoreNeighboursThanRowsAreNoMoreWork) {
  ScanShape all = batch, beyond = batch;
  all.k = all.rows;
  beyond.k = 10 * beyond.rows;
  EXPECT_EQ(predict_scan(all, round_peaks()).seconds, predict_scan(beyond, round_peaks()).seconds);
}

TEST(PredictScan, RefusesWhatItCannotPredict) {
  const auto refused = [](auto change) {
    ScanShape shape = batch;
    change(shape);
    EXPECT_THROW(predict_scan(shape, round_peaks()), InvalidArgument);
  };
  refused([](ScanShape& s) { s.rows = -1; });
  refused([](ScanShape& s) { s.queries = -1; });
  refused([](ScanShape& s) { s.dim = 0; });
  refused([](ScanShape& s) { s.k = 0; });
  refused([](ScanShape& s) { s.threads = -1; });
  refused([](ScanShape& s) { s.queries_per_pass = 0; });
  refused([](ScanShape& s) { s.bytes_per_element = -1; });
  refused([](ScanShape& s) { s.op = ScanOp::bf16; });  // NaN in round_peaks
  EXPECT_THROW(predict_scan(batch, MachinePeaks{}), InvalidArgument);
}

TEST(ScanOp, HasNames) {
  EXPECT_EQ(name_of(ScanOp::fp32), "fp32");
  EXPECT_EQ(name_of(ScanOp::bf16), "bf16");
  EXPECT_EQ(name_of(ScanOp::int16), "int16");
  EXPECT_EQ(name_of(ScanOp::int8), "int8");
}

}  // namespace
}  // namespace knear
