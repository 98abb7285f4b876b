// The cost model against sums done by hand on round peaks.
#include "knear/cost/plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "knear/core/error.hpp"
#include "knear/cost/scan_cost_model.hpp"

namespace knear {
namespace {

constexpr ScanCostModel model;

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
constexpr double row_bytes = 1009;  // bytes of a packed row and the numbers beside its codes

TEST(PredictScan, ManyQueriesAreLimitedByMultiplyAdds) {
  const ScanCost cost = predict_scan(batch, round_peaks());
  EXPECT_DOUBLE_EQ(cost.multiply_adds, 1e12);
  // 84 groups of 12 queries.
  EXPECT_DOUBLE_EQ(cost.multiply_add_seconds, 2e12 * 1.008 / (800e9 * model.scan_efficiency));
  EXPECT_DOUBLE_EQ(cost.bytes, 1e6 * row_bytes * 10);
  EXPECT_DOUBLE_EQ(cost.cops, 1008e6 * model.score_operations);
  const double hits = 10 * (1 + std::log(1e5)) * model.interval_hits;
  const double panels = 1e6 / 32, found = panels * (1 - std::exp(-hits / panels));
  EXPECT_NEAR(cost.coefficient_wise_seconds,
              (cost.cops + 1000 * found * model.found_operations) / 100e9, 1e-9);
  EXPECT_NEAR(
      cost.scoring_seconds,
      std::hypot(cost.multiply_add_seconds + cost.coefficient_wise_seconds, cost.memory_seconds),
      1e-9);
  EXPECT_EQ(cost.limit, "int8 multiply-adds");
  EXPECT_DOUBLE_EQ(cost.seconds, cost.query_seconds + cost.scoring_seconds +
                                     cost.selection_seconds + cost.rescore_seconds +
                                     model.call_seconds);
  EXPECT_NEAR(cost.rate, 2e12 / cost.scoring_seconds, 1e3);
  EXPECT_NEAR(
      cost.selection_seconds,
      1000 * hits * (model.hit_operations * std::log2(11) + model.interval_operations) / 100e9,
      1e-9);
  const double survivors = 10 + 6 * std::sqrt(10);
  EXPECT_NEAR(cost.rescore_seconds,
              1000 * survivors *
                  (model.rescore_operations + 1000 * model.rescore_column_operations +
                   model.far_operations) /
                  100e9,
              1e-9);
  EXPECT_NEAR(cost.query_seconds,
              1000 * (model.query_operations + 1000 * model.query_column_operations) / 100e9, 1e-9);
  EXPECT_EQ(cost.packing_seconds, 0);
}

TEST(PredictScan, WholeNumbersAreNotMeasuredAgainAndTheBaseIsPackedOnce) {
  ScanShape shape = batch;
  shape.whole = true;
  const ScanCost whole = predict_scan(shape, round_peaks());
  EXPECT_EQ(whole.rescore_seconds, 0);
  EXPECT_LT(whole.selection_seconds, predict_scan(batch, round_peaks()).selection_seconds);
  shape.packing = true;
  EXPECT_NEAR(predict_scan(shape, round_peaks()).seconds - whole.seconds,
              model.whole_packing * 1e6 *
                  (model.packing_operations + 1000 * model.packing_column_operations) / 100e9,
              1e-9);
}

TEST(PredictScan, OneQueryIsLimitedByMemoryOrTheCacheThatHoldsTheBase) {
  ScanShape shape = batch;
  shape.queries = 1;
  MachinePeaks peaks = round_peaks();
  const ScanCost cost = predict_scan(shape, peaks);
  EXPECT_EQ(cost.limit, "memory");
  EXPECT_DOUBLE_EQ(cost.memory_seconds, 1e6 * row_bytes / 20e9);
  peaks.caches[2] = {2000 << 20, 40e9};
  EXPECT_DOUBLE_EQ(predict_scan(shape, peaks).memory_seconds, 1e6 * row_bytes / 40e9);
  peaks.caches[1] = {1 << 20, 400e9};  // too small
  EXPECT_DOUBLE_EQ(predict_scan(shape, peaks).memory_seconds, 1e6 * row_bytes / 40e9);
  peaks.caches[2].bytes = 1009e6 / 1.5;  // half of it stays
  EXPECT_NEAR(predict_scan(shape, peaks).memory_seconds,
              1e6 * row_bytes / 2 * (1 / 40e9 + 1 / 20e9), 1e-6);
}

TEST(PredictScan, AMatrixUnitWorksBesideTheOthers) {
  MachinePeaks peaks = round_peaks();
  peaks.matrix_unit = true;
  const ScanCost cost = predict_scan(batch, peaks);
  EXPECT_DOUBLE_EQ(cost.rate, 800e9 * model.scan_efficiency);  // no padding either
}

TEST(PredictScan, ShortRowsAndManyNeighboursAreLimitedBySelection) {
  const ScanCost cost = predict_scan({.rows = 100000,
                                      .dim = 1,
                                      .queries = 1000,
                                      .k = 1000,
                                      .bytes_per_element = 1,
                                      .op = ScanOp::int8,
                                      .whole = true},
                                     round_peaks());
  EXPECT_EQ(cost.limit, "selection");
  EXPECT_GE(cost.seconds, cost.selection_seconds);
}

TEST(PredictScan, HalfTheThreadsTakeTwiceTheTime) {
  ScanShape shape = batch;
  shape.threads = 1;
  EXPECT_NEAR(predict_scan(shape, round_peaks()).seconds,
              2 * predict_scan(batch, round_peaks()).seconds,
              model.call_seconds + 1e-9);  // the call costs the same
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
  refused([](ScanShape& s) { s.queries_per_pass = -1; });
  refused([](ScanShape& s) { s.bytes_per_element = -1; });
  refused([](ScanShape& s) { s.op = ScanOp::bf16; });  // NaN in round_peaks
  EXPECT_THROW(predict_scan(batch, MachinePeaks{}), InvalidArgument);
}

TEST(PredictScan, RowsThatAFilterForbidsPassAsWell) {
  ScanShape tenth = batch;
  tenth.allowed = tenth.rows / 10;
  const double all = predict_scan(batch, round_peaks()).selection_seconds;
  const double hits = 10 * (1 + std::log(1e5)), fewer = 10 * (1 + std::log(1e4));
  EXPECT_NEAR(predict_scan(tenth, round_peaks()).selection_seconds, all * 10 * fewer / hits, 1e-9);
}

TEST(PredictScan, APrefixIsScoredInsteadOfAllColumns) {
  ScanShape shape = batch;
  shape.prefix = 50, shape.second_rows = 3000, shape.seed_rows = 500;
  const ScanCost cost = predict_scan(shape, round_peaks());
  EXPECT_NEAR(cost.multiply_add_seconds,
              predict_scan(batch, round_peaks()).multiply_add_seconds / 20, 1e-9);
  EXPECT_NEAR(cost.second_stage_seconds,
              1000 * 3000 * second_stage_seconds(1000, round_peaks()) / 2, 1e-9);
  EXPECT_GT(cost.seed_seconds, 0);
  EXPECT_LT(cost.seconds, predict_scan(batch, round_peaks()).seconds);
}

TEST(PredictDirect, IsRowsTimesQueriesAndBeatsPackingForAFew) {
  ScanShape shape = batch;
  shape.bytes_per_element = 4, shape.k = 1;
  const ScanCost many = predict_direct(shape, round_peaks());
  EXPECT_NEAR(many.rescore_seconds, 1e9 * direct_row_seconds(1000, round_peaks()) / 2, 1e-6);
  EXPECT_EQ(many.limit, "rescoring");
  ScanShape packed = batch;
  packed.packing = true;
  EXPECT_GT(many.seconds, predict_scan(packed, round_peaks()).seconds);
  shape.queries = packed.queries = 1;
  EXPECT_LT(predict_direct(shape, round_peaks()).seconds,
            predict_scan(packed, round_peaks()).seconds);
  shape.rows = 0;
  EXPECT_EQ(predict_direct(shape, round_peaks()).seconds, 0);
}

TEST(SparedByRefining, GrowsWithTheRowsThatAreLeftAndIsALossForFew) {
  const MachinePeaks peaks = round_peaks();
  EXPECT_LT(spared_by_refining(15, 10, 784, peaks), 0);
  EXPECT_GT(spared_by_refining(200, 10, 784, peaks), 0);
  EXPECT_GT(spared_by_refining(200, 10, 784, peaks), spared_by_refining(200, 10, 128, peaks));
  // The k answers are measured in any case.
  for (const double rows : {1e3, 1e6})
    EXPECT_LT(spared_by_refining(rows, 10, 784, peaks),
              (rows - 10) * measured_row_seconds(784, peaks));
}

TEST(PrefixMakingSeconds, CountsRowsColumnsAndClusters) {
  const MachinePeaks peaks = round_peaks();
  const double some = prefix_making_seconds(100000, 100, 100, peaks);
  EXPECT_NEAR(some,
              (1e5 * (model.making_operations + 100 * model.making_column_operations) +
               (1e5 + 2e4) * (model.nearest_operations + 100 * model.nearest_cluster_operations)) /
                  100e9,
              1e-9);
  // No row looks up its cluster more than five times.
  EXPECT_NEAR(prefix_making_seconds(100000, 100, 5000, peaks) -
                  prefix_making_seconds(100000, 100, 2000, peaks),
              5e5 * 3000 * model.nearest_cluster_operations / 100e9, 1e-9);
}

TEST(ScanOp, HasNames) {
  EXPECT_EQ(name_of(ScanOp::fp32), "fp32");
  EXPECT_EQ(name_of(ScanOp::bf16), "bf16");
  EXPECT_EQ(name_of(ScanOp::int16), "int16");
  EXPECT_EQ(name_of(ScanOp::int8), "int8");
}

}  // namespace
}  // namespace knear
