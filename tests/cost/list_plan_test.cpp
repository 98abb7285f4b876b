// tests/cost/list_plan_test.cpp -- predicted times of inverted lists and codes: what they grow
// with.
#include "knear/cost/list_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "knear/core/error.hpp"

namespace knear {
namespace {

MachinePeaks test_peaks() {
  MachinePeaks out;
  out.isa = Isa::avx512_vnni, out.threads = 2;
  out.fp32_flops = 232e9, out.bf16_flops = 232e9, out.int16_ops = 454e9, out.int8_ops = 927e9;
  out.cop_per_second = 199e9, out.memory_bytes_per_second = 56e9;
  return out;
}

ListShape lists() {
  return {.rows = 1000000,
          .dim = 96,
          .queries = 10000,
          .k = 10,
          .lists = 1024,
          .probes = 16,
          .probed_rows = 16000};
}

double seconds_of(const ListShape& shape) { return predict_lists(shape, test_peaks()).seconds; }

TEST(PredictLists, IsTheSumOfItsParts) {
  for (const std::int64_t parts : {0, 32}) {
    ListShape shape = lists();
    shape.code_parts = parts;
    const ListCost cost = predict_lists(shape, test_peaks());
    const double sum = cost.coarse_seconds + cost.query_seconds + cost.scoring_seconds +
                       cost.selection_seconds + cost.rescore_seconds;
    EXPECT_NEAR(cost.seconds, sum, 2e-5);
    EXPECT_GT(cost.coarse_seconds, 0);
    EXPECT_GE(cost.scoring_seconds, std::max(cost.compute_seconds, cost.memory_seconds));
    EXPECT_EQ(cost.rescore_seconds > 0, parts == 0);
  }
}

TEST(PredictLists, GrowsWithListsRowsNeighboursAndColumns) {
  const double usual = seconds_of(lists());
  ListShape shape = lists();
  shape.probes = 64, shape.probed_rows = 64000;
  EXPECT_GT(seconds_of(shape), 2 * usual);
  EXPECT_LT(seconds_of(shape), 4 * usual);
  shape = lists(), shape.k = 100;
  EXPECT_GT(seconds_of(shape), 1.5 * usual);
  shape = lists(), shape.lists = 65536, shape.probed_rows = 240;
  EXPECT_GT(predict_lists(shape, test_peaks()).coarse_seconds,
            5 * predict_lists(lists(), test_peaks()).coarse_seconds);
  EXPECT_EQ(predict_lists(shape, test_peaks()).limit, "lists");
  shape = lists(), shape.dim = 960;
  EXPECT_GT(seconds_of(shape), 2 * usual);
  shape = lists(), shape.queries = 20000;
  EXPECT_NEAR(seconds_of(shape), 2 * usual, 0.1 * usual);
  shape = lists(), shape.threads = 1;
  EXPECT_NEAR(seconds_of(shape), 2 * usual, 0.1 * usual);
}

// Of codes rows are decoded for many queries, where look-ups of that many take longer.
TEST(PredictLists, CodesOfManyQueriesAreMultiplied) {
  ListShape shape = lists();
  shape.code_parts = 96, shape.threads = 1;
  EXPECT_TRUE(products_of_codes_pay(shape, Isa::avx2));
  const ListCost products = predict_lists(shape, test_peaks());
  EXPECT_EQ(products.limit, "multiply-adds");
  ListShape other = shape;
  other.code_bits = 4;
  EXPECT_FALSE(products_of_codes_pay(other, Isa::avx2));
  other = shape, other.code_parts = 0;
  EXPECT_FALSE(products_of_codes_pay(other, Isa::avx2));
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni}) {
    other = shape, other.queries = 1;
    EXPECT_FALSE(products_of_codes_pay(other, isa));
    // Once they pay they do for more queries too.
    bool before = false;
    for (other.queries = 1; other.queries < 100000; other.queries *= 2) {
      const bool now = products_of_codes_pay(other, isa);
      EXPECT_GE(now, before);
      before = now;
    }
    EXPECT_TRUE(before) << name_of(isa);
  }
}

// Codes of 8 bits that tell few rows apart are left for tables, where enough rows follow.
TEST(PredictLists, ProductsThatLetMostRowsThroughDoNotPay) {
  ListShape shape = lists();
  shape.code_parts = 96, shape.dim = 96;
  EXPECT_TRUE(tables_of_codes_pay_instead(shape, 0.95, 5000, Isa::avx2));
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni}) {
    EXPECT_FALSE(tables_of_codes_pay_instead(shape, 0.01, 5000, isa)) << name_of(isa);
    EXPECT_FALSE(tables_of_codes_pay_instead(shape, 0.95, 10, isa)) << name_of(isa);
    EXPECT_FALSE(tables_of_codes_pay_instead(shape, 0.95, 0, isa)) << name_of(isa);
  }
}

// Of a machine with vectors that are twice as wide only the work on vectors is faster.
TEST(PredictLists, WiderVectorsAreNoHelpBesideThem) {
  MachinePeaks now = test_peaks(), wider = test_peaks(), unknown = test_peaks();
  now.cycles_per_second = wider.cycles_per_second = 7e9;
  wider.fp32_flops *= 2, wider.int16_ops *= 2, wider.int8_ops *= 2, wider.cop_per_second *= 2;
  for (const std::int64_t parts : {0, 32}) {
    ListShape shape = lists();
    shape.code_parts = parts;
    const ListCost before = predict_lists(shape, now), after = predict_lists(shape, wider);
    EXPECT_NEAR(after.query_seconds, before.query_seconds / 2, 1e-9);
    EXPECT_NEAR(after.selection_seconds, before.selection_seconds, 1e-9);
    EXPECT_GT(after.compute_seconds, before.compute_seconds / 2 + 1e-3);
    // Of a machine whose clock nobody has told 2.5 GHz a thread are assumed.
    EXPECT_NEAR(predict_lists(shape, unknown).selection_seconds * 5e9,
                before.selection_seconds * 7e9, 1e3);
  }
  const double more = predict_list_making(lists(), 262144, now).add_seconds;
  EXPECT_GT(predict_list_making(lists(), 262144, wider).add_seconds, 0.6 * more);
}

TEST(PredictLists, OneQueryIsOneThreads) {
  ListShape shape = lists();
  shape.queries = 1, shape.probes = 64, shape.probed_rows = 64000;
  const ListCost cost = predict_lists(shape, test_peaks());
  EXPECT_EQ(cost.limit, "memory");
  EXPECT_NEAR(cost.memory_seconds, 64000 * 105 / 28e9, 1e-6);
}

TEST(PredictLists, CodesAreLookedUp) {
  // AVX2: whether look-ups or products are faster does not depend there on what this processor has.
  MachinePeaks peaks = test_peaks();
  peaks.isa = Isa::avx2;
  const auto seconds = [&](const ListShape& of) { return predict_lists(of, peaks).seconds; };
  ListShape shape = lists();
  shape.code_parts = 32, shape.probes = 64, shape.probed_rows = 64000;
  shape.queries = 100;
  const ListCost bytes = predict_lists(shape, peaks);
  EXPECT_EQ(bytes.limit, "look-ups");
  shape.code_bits = 4;
  EXPECT_LT(seconds(shape), bytes.seconds);
  EXPECT_LT(predict_lists(shape, peaks).query_seconds, bytes.query_seconds / 8);
  // What is refined is kept by its code, and measured.
  ListShape refined = shape;
  refined.measured_rows = 80;
  EXPECT_GT(predict_lists(refined, peaks).selection_seconds,
            predict_lists(shape, peaks).selection_seconds);
  EXPECT_GT(predict_lists(refined, peaks).rescore_seconds, 0);
  ListShape decoded = refined;
  decoded.decoded = true;
  EXPECT_GT(seconds(decoded), seconds(refined));
  // Nothing is cheaper to keep than one row less.
  for (double rows = 11, least = 0; rows < 400; ++rows) {
    refined.measured_rows = rows;
    EXPECT_GE(seconds(refined), least);
    least = seconds(refined);
  }
  // Without lists there is nothing to put in order.
  shape.lists = 0, shape.probes = 0;
  EXPECT_EQ(predict_lists(shape, peaks).coarse_seconds, 0);
  EXPECT_GT(seconds(shape), 3 * bytes.seconds);
}

TEST(PredictLists, NothingToSearchTakesNoTime) {
  ListShape shape = lists();
  shape.queries = 0;
  EXPECT_EQ(seconds_of(shape), 0);
  shape = {.rows = 0, .dim = 4, .queries = 3, .k = 1};
  EXPECT_EQ(seconds_of(shape), 0);
}

TEST(PredictLists, RefusesWhatItCannotPredict) {
  const auto message = [](const ListShape& shape, const MachinePeaks& machine) {
    try {
      predict_lists(shape, machine);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ListShape shape = lists();
  shape.probes = 1025;
  EXPECT_EQ(message(shape, test_peaks()), "probes is 1025, but there are 1024 lists");
  shape = lists(), shape.code_bits = 5;
  EXPECT_EQ(message(shape, test_peaks()), "code_bits must be 4 or 8, but is 5");
  shape = lists(), shape.rows = -1;
  EXPECT_EQ(message(shape, test_peaks()), "rows must not be negative, but is -1");
  shape = lists(), shape.probed_rows = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message(shape, test_peaks()), "probed_rows must not be negative, but is nan");
  shape = lists(), shape.k = 0;
  EXPECT_EQ(message(shape, test_peaks()), "k must be at least 1, but is 0");
  shape = lists(), shape.dim = 0;
  EXPECT_EQ(message(shape, test_peaks()), "dim must be at least 1, but is 0");
  MachinePeaks without = test_peaks();
  without.int8_ops = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(message(lists(), without), "");
}

TEST(PredictListMaking, GrowsWithRowsListsAndCodes) {
  const auto making = [](ListShape shape, std::int64_t training = 262144) {
    return predict_list_making(shape, training, test_peaks());
  };
  const ListMakingCost usual = making(lists());
  ListShape shape = lists();
  shape.rows *= 3;
  EXPECT_NEAR(making(shape).add_seconds, 3 * usual.add_seconds, 1e-6);
  EXPECT_EQ(making(shape).train_seconds, usual.train_seconds);
  shape = lists(), shape.lists = 16384;
  EXPECT_GT(making(shape).add_seconds, 3 * usual.add_seconds);
  EXPECT_GT(making(shape).train_seconds, 3 * usual.train_seconds);
  // Two levels: fewer comparisons for one list more.
  const double one_level = making(shape).train_seconds;
  shape.lists = 16385;
  EXPECT_LT(making(shape).train_seconds, one_level);
  shape = lists(), shape.code_parts = 32;
  EXPECT_GT(making(shape).train_seconds, usual.train_seconds);
  EXPECT_EQ(making({.rows = 0, .dim = 8}).add_seconds, 0);
  EXPECT_THROW(making(lists(), -1), InvalidArgument);
}

}  // namespace
}  // namespace knear
