// Limits and terms of the device's test, in float: never on the side that loses rows, against the
// formulas in float64, and close to them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "knear/core/random.hpp"
#include "knear/scan/device/scan_kernels.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Pair {
  PanelHead head;
  DeviceQuery query;
  double scale, threshold;
};

// The limit in float64, and the sum of the sizes of its terms.
double wide_limit(const Pair& p, double* size = nullptr) {
  const double unit = unit_of(p.head, p.scale);
  if (size)
    *size = unit * (std::fabs(p.threshold) + std::fabs(p.head.bias_max) +
                    p.query.norm * p.head.error + p.query.error * p.head.norm);
  return limit_of(p.head, unit, p.threshold, p.query.norm, p.query.error);
}
int limit(const Pair& p) {
  return certified_limit(panel_test(p.head), query_test(p.query, p.scale, p.threshold),
                         query_inverse(p.scale));
}
int term(const Pair& p, float bias) {
  return certified_term(panel_test(p.head).scale, bias, query_inverse(p.scale));
}
// The limit of a value that is one in code units.
double as_limit(const Pair& p, double value) {
  return std::trunc(std::min(std::max(value, lowest_limit), highest_limit)) - limit_margin +
         p.query.correction;
}

// A pair of vectors of these lengths, coded in 8 bits, whose threshold is `share` of the product of
// the lengths.
Pair pair_of(Random& random, double rows, double queries, double share) {
  const double codes = 127 * (2 + 8 * random.uniform());
  Pair p;
  p.head.scale = rows / codes, p.head.norm = rows;
  p.head.error = rows * 0.02 * random.uniform();
  p.head.bias_max = (random.below(2) ? -0.5 : 0.1) * rows * rows * random.uniform();
  p.head.slack = 0;
  p.scale = queries / codes;
  p.query = {queries, queries * 0.02 * random.uniform(), queries * queries, 0,
             static_cast<std::int32_t>(random.below(1 << 20)) - (1 << 19)};
  p.threshold = share * rows * queries + p.head.bias_max;
  return p;
}

TEST(DeviceLimits, AreNeverHigherThanInFloat64AndHardlyLower) {
  Random random(5);
  int close = 0;
  const double sizes[] = {1e-30, 1e-12, 1e-3, 1, 37, 1e6, 1e15, 1e30};
  for (const double rows : sizes)
    for (const double queries : sizes)
      for (int i = 0; i < 2000; ++i) {
        const Pair p = pair_of(random, rows, queries, 2.2 * random.uniform() - 1.1);
        double size;
        const double exact = wide_limit(p, &size);
        const double most = as_limit(p, exact);
        ASSERT_LE(limit(p), most) << rows << ' ' << queries << ' ' << exact;
        const auto fits = [](double scale, double x) {
          return has_float_inverse(scale) && std::fabs(x / scale) < 0.99 * most_signed;
        };
        if (!fits(p.head.scale, p.head.bias_max) || !fits(p.scale, p.threshold)) continue;
        ++close;
        ASSERT_GE(limit(p), most - 2 - 0x1p-19 * size) << rows << ' ' << queries << ' ' << exact;
      }
  EXPECT_GT(close, 40000);
}

TEST(DeviceLimits, KeepAllWhereFloatsEnd) {
  Random random(6);
  const Pair usual = pair_of(random, 1, 1, 0.5);
  ASSERT_GT(limit(usual), -code_dot_bound);
  const auto keeps_all = [&](auto change) {
    Pair p = usual;
    change(p);
    // Sums are -2^30 at least, and the correction.
    return limit(p) <= -(1 << 30) + p.query.correction;
  };
  EXPECT_TRUE(keeps_all([](Pair& p) { p.threshold = -infinity; }));
  for (const double size : {1e-300, 1e-40, 1e40, 1e300}) {
    EXPECT_TRUE(keeps_all([&](Pair& p) { p.head.scale = size; })) << size;
    EXPECT_TRUE(keeps_all([&](Pair& p) { p.scale = size; })) << size;
  }
  EXPECT_TRUE(keeps_all([](Pair& p) { p.head.error = 1e300; }));
  EXPECT_TRUE(keeps_all([](Pair& p) { p.query.error = 1e300; }));
  EXPECT_TRUE(keeps_all([](Pair& p) { p.head.bias_max = 1e300; }));
  // As do terms: they are 0 then.
  for (const double size : {1e-300, 1e-40, 1e40, 1e300}) {
    Pair p = usual;
    p.head.scale = size;
    EXPECT_EQ(term(p, -7e5f), 0) << size;
    p = usual, p.scale = size;
    EXPECT_EQ(term(p, -7e5f), 0) << size;
  }
}

TEST(DeviceLimits, LetNothingPassWhereNothingCan) {
  Random random(7);
  Pair p = pair_of(random, 1, 1, 1e6);  // no product is as large
  EXPECT_GE(limit(p), code_dot_bound + p.query.correction);
  p = pair_of(random, 1, 1, 0.5);
  EXPECT_GE(certified_limit(empty_panel_test(), query_test(p.query, p.scale, p.threshold),
                            query_inverse(p.scale)),
            code_dot_bound + p.query.correction);
}

TEST(DeviceLimits, TermsAreNeverLowerThanInFloat64AndHardlyHigher) {
  Random random(8);
  for (const double rows : {1e-12, 1e-3, 1.0, 1e6, 1e15})
    for (const double queries : {1e-12, 1e-3, 1.0, 1e6, 1e15})
      for (int i = 0; i < 2000; ++i) {
        const Pair p = pair_of(random, rows, queries, 0);
        // In units of the panel's scale squared.
        const auto bias = static_cast<float>(-3e6 * random.uniform());
        const double exact = std::max(double{bias} * p.head.scale / p.scale, double{lowest_term});
        ASSERT_GE(term(p, bias), std::floor(exact)) << rows << ' ' << queries;
        ASSERT_LE(term(p, bias), 0);
        ASSERT_LE(term(p, bias), exact + 1 - 0x1p-19 * exact) << rows << ' ' << queries;
      }
  EXPECT_EQ(term(pair_of(random, 1e30, 1e-30, 0), 0.0f), 0);
}

}  // namespace
}  // namespace knear::detail
