// Awkward data: ties, copies, extreme sizes, and rows that the bounds of a first pass hardly
// separate. The answers stay those of the reference, and a pass that cannot pay is given up.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using namespace test;

TEST(KnnNasty, AllVectorsEqual) {
  const AnyMatrix base =
      make(ElementType::f32, 9000, 20, [](auto, auto c) { return 0.1 * c + 0.3; });
  const AnyMatrix queries = gaussians(30, 20, 1);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "all equal");
  check_all(base.view().rows(0, 14), base, 10, Metric::l2, "queries equal too");
}

TEST(KnnNasty, ThousandsOfDuplicates) {
  Random random(4);
  const AnyMatrix kinds = gaussians(5, 24, 5);
  const AnyMatrix base = make(ElementType::f32, 8000, 24, [&](std::int64_t r, std::int64_t c) {
    return static_cast<const float*>(kinds.view().row(r * 7 % 11 % 5))[c];
  });
  const AnyMatrix queries = gaussians(26, 24, 6);
  for (Metric metric : metrics) check_all(queries, base, 15, metric, "duplicates");
}

TEST(KnnNasty, OneHugeOutlier) {
  const AnyMatrix base = [&] {
    Random random(9);
    return make(ElementType::f32, 3000, 48,
                [&](std::int64_t r, auto) { return gaussian(random) * (r == 1234 ? 1e15 : 1); });
  }();
  for (Metric metric : metrics) check_all(gaussians(20, 48, 10), base, 10, metric, "outlier");
}

// The rows beside them still lie far apart in the units of the first pass.
TEST(KnnNasty, AFewRowsOfTheLargestFloatsDoNotSpoilTheFirstPass) {
  AnyMatrix base = gaussians(30000, 32, 14);
  for (const std::int64_t row : {7, 12345, 29999}) set(base, row * 32, 3e38);
  const AnyMatrix queries = gaussians(40, 32, 15);
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    // Which pass is the fastest depends on the instruction set.
    KnnReport report, without;
    knn(queries, gaussians(30000, 32, 14), 10, {.metric = metric}, &without);
    Neighbors found = knn(queries, base, 10, {.metric = metric}, &report);
    EXPECT_TRUE(same(found, reference_knn(queries, base, 10, metric)));
    EXPECT_EQ(report.scan.first_pass, without.scan.first_pass);
    found = knn(queries, base, 10, {.metric = metric, .first_pass = FirstPass::int8}, &report);
    EXPECT_TRUE(same(found, reference_knn(queries, base, 10, metric)));
    EXPECT_EQ(report.scan.first_pass, "int8");
    EXPECT_EQ(report.scan.fallback_queries, 0);
    EXPECT_LT(report.scan.survivors_per_query, 300);
  }
}

TEST(KnnNasty, NormsFromTinyToHuge) {
  for (double decades : {30.0, 70.0}) {
    Random random(11);
    const std::int64_t rows = test::small() ? 1200 : 3000;
    std::vector<double> scale(static_cast<std::size_t>(rows));
    for (double& s : scale) s = std::pow(10.0, (random.uniform() - 0.5) * decades);
    const auto value = [&](std::int64_t r, auto) { return gaussian(random) * scale[r]; };
    const AnyMatrix base = make(ElementType::f32, rows, 40, value);
    const AnyMatrix queries = make(ElementType::f32, 25, 40, value);
    for (Metric metric : metrics) check_all(queries, base, 10, metric, "norms");
  }
}

TEST(KnnNasty, LargestFloats) {
  Random random(12);
  const auto value = [&](auto, auto) {
    return (random.uniform() - 0.5) * 2 * std::numeric_limits<float>::max();
  };
  const AnyMatrix base = make(ElementType::f32, 1000, 17, value);
  const AnyMatrix queries = make(ElementType::f32, 13, 17, value);
  for (Metric metric : metrics) check_all(queries, base, 5, metric, "largest floats");
}

TEST(KnnNasty, SmallDifferencesOnALargeOffset) {
  // The expanded form loses everything here; 1e6 has a spacing of 1/16 in float.
  Random random(13);
  const auto value = [&](auto, auto) { return 1e6 + gaussian(random) * 0.2; };
  const AnyMatrix base = make(ElementType::f32, 4000, 32, value);
  const AnyMatrix queries = make(ElementType::f32, 20, 32, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "offset");
  const auto fine = [&](auto, auto) { return 1e4 + gaussian(random) * 1e-3; };
  const AnyMatrix base2 = make(ElementType::f32, 4000, 32, fine);
  check_all(make(ElementType::f32, 20, 32, fine), base2, 10, Metric::l2, "fine offset");
}

TEST(KnnNasty, TwoFarClustersOfCloseRows) {
  // No single centre helps: the first pass must give up, and the answer must not change.
  Random random(14);
  const auto value = [&](std::int64_t r, auto) {
    return (r % 2 ? 1e3 : -1e3) + gaussian(random) * 1e-2;
  };
  const AnyMatrix base = make(ElementType::f32, 6000, 40, value);
  const AnyMatrix queries = make(ElementType::f32, 30, 40, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "two clusters");
}

TEST(KnnNasty, Denormals) {
  Random random(15);
  const auto value = [&](auto, auto) { return gaussian(random) * 1e-42; };
  const AnyMatrix base = make(ElementType::f32, 2000, 24, value);
  const AnyMatrix queries = make(ElementType::f32, 20, 24, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "denormals");
}

TEST(KnnNasty, BaseSortedByDistanceBothWays) {
  const AnyMatrix queries = make(ElementType::f32, 13, 16, [](auto, auto) { return 0.0; });
  for (int direction : {1, -1}) {
    const AnyMatrix base = make(ElementType::f32, 7000, 16, [&](std::int64_t r, std::int64_t c) {
      return (direction > 0 ? r + 1 : 7001 - r) * 0.001 * (c + 1.1);
    });
    for (Metric metric : metrics) check_all(queries, base, 10, metric, "sorted");
    check_all(gaussians(14, 16, 3), base, 10, Metric::l2, "sorted, other queries");
  }
}

TEST(KnnNasty, ClustersOfNearDuplicates) {
  Random random(16);
  const AnyMatrix centres = gaussians(8, 40, 17);
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return static_cast<const float*>(centres.view().row(r % 8))[c] + 1e-5 * gaussian(random);
  };
  const AnyMatrix base = make(ElementType::f32, 6000, 40, value);
  const AnyMatrix queries = make(ElementType::f32, 25, 40, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "near-duplicates");
}

// 1 - cos of parallel vectors is 0, or 2, but for rounding: many rows are about as near.
TEST(KnnNasty, ParallelAndOppositeVectors) {
  const AnyMatrix queries = gaussians(40, 3, 5);
  const AnyMatrix base = make(ElementType::f32, 6000, 3, [&](std::int64_t r, std::int64_t c) {
    const double factor = static_cast<double>(1 + r) * (r % 3 == 0 ? -1 : 1);
    return factor * static_cast<const float*>(queries.view().row(r % 40))[c];
  });
  for (std::int64_t k : {7, 300})
    check_all(queries, base, k, Metric::cosine, "parallel " + std::to_string(k));
  const Neighbors found = knn(queries, base, 6000, {.metric = Metric::cosine});
  for (std::int64_t i = 0; i < 40 * 6000; ++i) {
    ASSERT_GE(found.distances.data()[i], 0);
    ASSERT_LE(found.distances.data()[i], 2);
  }
}

TEST(KnnNasty, ZeroVectorsAndEmptySides) {
  AnyMatrix base = gaussians(2000, 12, 18), queries = gaussians(9, 12, 19);
  for (std::int64_t c = 0; c < 12; ++c) set(base, 7 * 12 + c, 0), set(queries, 3 * 12 + c, 0);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "zeros");
  for (Metric metric : metrics) {
    EXPECT_EQ(knn(queries.view().rows(0, 0), base, 3, {.metric = metric}).ids.rows(), 0);
    const Neighbors none = knn(queries, base.view().rows(0, 0), 2, {.metric = metric});
    EXPECT_EQ(none.ids.row(8)[1], no_id);
    EXPECT_EQ(none.distances.row(8)[1], no_distance(metric));
  }
}

// Zero queries by cosine are as far from every row: they say nothing about codes.
TEST(KnnNasty, ZeroVectorsAmongOthersDoNotSpoilTheFirstPass) {
  Random random(77);
  const auto some_zero = [&](std::int64_t rows) {
    Matrix<float> out(rows, 24);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float size = random.below(5) == 0 ? 0.0f : 1.0f;
      for (int j = 0; j < 24; ++j) out.row(i)[j] = size * static_cast<float>(gaussian(random));
    }
    return out;
  };
  const Matrix<float> base = some_zero(6000), queries = some_zero(200);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Neighbors wanted = reference_knn(queries.view(), base.view(), 12, metric);
    KnnReport report;
    const Neighbors found = knn(queries.view(), base.view(), 12, {.metric = metric}, &report);
    EXPECT_TRUE(std::equal(found.ids.data(), found.ids.data() + 200 * 12, wanted.ids.data()));
    EXPECT_TRUE(same_bits(found.distances.view(), wanted.distances.view()));
    EXPECT_EQ(report.scan.first_pass, "int8") << name_of(metric);
    EXPECT_LT(report.scan.survivors_per_query, 40) << name_of(metric);
  }
}

TEST(KnnNasty, OneHotRowsTieEverywhere) {
  const AnyMatrix base =
      make(ElementType::f32, 600, 600, [](auto r, auto c) { return r == c ? 0.37 : 0.0; });
  check_all(base.view().rows(5, 30), base, 10, Metric::l2, "one-hot");
  check_all(base.view().rows(5, 30), base, 10, Metric::ip, "one-hot");
}

// A vector [d] that codes of `pass` represent badly in a chosen direction: whole code units n plus
// `fraction` of a unit along the signs t (t_0 = 0), with <n, t> = dot. v_0 makes a code unit 2^-10.
std::vector<double> badly_coded(Random& random, FirstPass pass, const std::vector<int>& t,
                                double fraction, std::int64_t dot) {
  const std::int64_t d = static_cast<std::int64_t>(t.size());
  const std::int64_t reach = pass == FirstPass::int8 ? 100 : 4000;
  std::vector<std::int64_t> n(d, 0);
  std::int64_t missing = dot;
  for (std::int64_t i = 1; i < d; ++i) {
    n[i] = std::llround((random.uniform() * 2 - 1) * static_cast<double>(reach));
    missing -= n[i] * t[i];
  }
  for (std::int64_t i = 1; missing != 0; i = i + 1 < d ? i + 1 : 1) {
    const std::int64_t step = missing > 0 ? 1 : -1;
    n[i] += step * t[i], missing -= step;
  }
  std::vector<double> v(d);
  double squares = 0;
  for (std::int64_t i = 1; i < d; ++i) {
    v[i] = static_cast<double>(n[i]) + fraction * t[i];
    squares += v[i] * v[i];
  }
  v[0] = pass == FirstPass::int8 ? 127 : std::sqrt(22000.0 * 22000.0 - squares);
  if (random.next() % 2) v[0] = -v[0];  // or the mean of many would be subtracted
  for (double& x : v) x *= 0x1p-10;
  return v;
}

// The true neighbour looks worse than others by four fifths of what the bound allows, since the
// rounding of the codes points straight at it: a bound that is a fifth too small gives a wrong
// answer.
TEST(KnnNasty, RoundingThatMisleadsAsFarAsTheBoundAllows) {
  constexpr std::int64_t d = 65, rows = 900;
  for (FirstPass pass : {FirstPass::int8, FirstPass::int16})
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      Random random(seed);
      std::vector<int> s(d);
      for (std::int64_t i = 1; i < d; ++i) s[i] = random.next() % 2 ? 1 : -1;
      // The query is badly coded: rows +s and -s, of which +s is truly nearer.
      const std::vector<double> u = badly_coded(random, pass, s, 0.49, -26);
      std::vector<std::vector<double>> rows_of_signs(rows, std::vector<double>(d));
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<double>& row = rows_of_signs[r];
        const bool far = r != rows - 1 && r % 100 != 7;
        double product = 0;
        do {
          product = 0;
          for (std::int64_t i = 1; i < d; ++i) {
            row[i] = far ? (random.next() % 2 ? 1 : -1) : r == rows - 1 ? s[i] : -s[i];
            product += u[i] * row[i];
          }
        } while (far && std::fabs(product) < 0.1);
        if (far && product > 0)
          for (double& x : row) x = -x;
      }
      const AnyMatrix signs =
          make(ElementType::f32, rows, d, [&](auto r, auto c) { return rows_of_signs[r][c]; });
      const AnyMatrix query = make(ElementType::f32, 13, d, [&](auto, auto c) { return u[c]; });
      // The rows are badly coded: the nearest has 0.49 of a unit along the query's signs, the
      // others against them.
      std::vector<std::vector<double>> coded;
      for (std::int64_t r = 0; r < rows; ++r)
        coded.push_back(r == rows - 1
                            ? badly_coded(random, pass, s, 0.49, 0)
                            : badly_coded(random, pass, s, -0.49, r % 100 == 7 ? 51 : -300));
      const AnyMatrix base =
          make(ElementType::f32, rows, d, [&](auto r, auto c) { return coded[r][c]; });
      const AnyMatrix sign_query =
          make(ElementType::f32, 13, d, [&](auto, auto c) { return double(s[c]); });
      for (Isa isa : test::levels()) {
        ForcedIsa forced(isa);
        SCOPED_TRACE(std::string(name_of(isa)) + " " + std::string(name_of(pass)) + " seed " +
                     std::to_string(seed));
        for (std::int64_t queries : {1, 3, 13}) {
          const KnnOptions options = {.metric = Metric::ip, .first_pass = pass};
          EXPECT_EQ(knn(query.view().rows(0, queries), signs, 1, options).ids.row(0)[0], rows - 1);
          EXPECT_EQ(knn(sign_query.view().rows(0, queries), base, 1, options).ids.row(0)[0],
                    rows - 1);
        }
      }
    }
}

TEST(KnnNasty, TiesOfWholeNumbersAreNoWork) {
  // Thousands of rows are as far as the k-th, and only the first few of them are wanted: the test
  // in registers must drop the others.
  const std::int64_t rows = 30000, d = 36;
  for (Metric metric : {Metric::l2, Metric::ip})
    for (std::int64_t odd : {0, 1}) {
      const AnyMatrix equal = make(ElementType::u8, rows, d,
                                   [&](auto, auto c) { return c == 0 ? 2 + odd : 3 + c % 2; });
      const AnyMatrix few_ones = make(ElementType::u8, rows, d, [&](auto r, auto c) {
        return c == r % 7 || c == r % 11 + 8 || (odd && c == r % 13 + 20) ? 1.0 : 0.0;
      });
      const AnyMatrix queries = make(ElementType::u8, 30, d, [&](auto r, auto c) {
        return r % 2 == 0 ? double(3 + c % 2) : c == r % 7 || c == 9 || c == 30 ? 1.0 : 0.0;
      });
      for (const AnyMatrix* base : {&equal, &few_ones})
        for (std::int64_t k : {1, 10, 100}) {
          if (test::small() && k == 10) continue;
          const Neighbors expected = reference_knn(queries, *base, k, metric);
          for (Isa isa : test::levels()) {
            ForcedIsa forced(isa);
            KnnReport report;
            EXPECT_TRUE(same(knn(queries, *base, k, {.metric = metric}, &report), expected));
            EXPECT_EQ(report.scan.first_pass, "integer");
            EXPECT_LT(report.scan.hits_per_query, 1500 + 20 * k)
                << name_of(metric) << ' ' << odd << ' ' << k << (base == &equal ? " equal" : "");
          }
        }
    }
}

TEST(KnnNasty, TiesInThePanelOfEvenAndOddRows) {
  // Whole numbers are packed with even |y|^2 first. Where both kinds share a panel its first row
  // need not have the smallest id, unless the panel is sorted; the nearest rows here are odd ones
  // in it.
  for (const auto& [rows, dim] : {std::pair<std::int64_t, std::int64_t>{5000, 1}, {300, 4096}})
    for (std::int64_t first : {1, 6, 40})
      for (std::int64_t second : {46, 100, 231}) {
        const AnyMatrix base = make(ElementType::u8, rows, dim, [&](auto r, auto c) {
          return c > 0 ? 0.0 : r == first || r == second ? 1.0 : 2.0;
        });
        const AnyMatrix queries = make(ElementType::u8, 5, dim, [](auto, auto) { return 0.0; });
        for (std::int64_t k : {1, 2, 5}) {
          if (test::small() && k == 1) continue;
          const Neighbors expected = reference_knn(queries, base, k, Metric::l2);
          for (Isa isa : test::levels()) {
            ForcedIsa forced(isa);
            for (int threads : {1, 2}) {
              if (test::small() && threads == 1) continue;
              EXPECT_TRUE(same(knn(queries, base, k, {.threads = threads}), expected))
                  << rows << ' ' << first << ' ' << second << ' ' << k << ' ' << threads;
            }
          }
        }
      }
}

TEST(KnnNasty, ProductsBeyondTheRangeOfFloats) {
  const AnyMatrix queries =
      make(ElementType::f32, 5, 2, [](auto, auto c) { return c == 0 ? 1e20 : 0.0; });
  const AnyMatrix base = make(ElementType::f32, 300, 2, [](std::int64_t r, auto c) {
    return c == 1 ? (r == 1 ? 2e19 : 0.0) : r == 0 ? 1e19 : r == 1 ? 1e18 : 1e14 * double(r);
  });
  for (Metric metric : metrics) check_all(queries, base, 5, metric, "1e39");
}

TEST(KnnNasty, AnyScaleIsAsFast) {
  // The first pass that serves at scale 1 serves at every scale.
  for (Metric metric : {Metric::l2, Metric::ip}) {
    KnnReport at_one;
    knn(gaussians(60, 40, 42), gaussians(9000, 40, 41), 10, {.metric = metric}, &at_one);
    for (double scale : {1e20, 1e-20}) {
      const AnyMatrix base = gaussians(9000, 40, 41, scale), queries = gaussians(60, 40, 42, scale);
      KnnReport report;
      const Neighbors got = knn(queries, base, 10, {.metric = metric}, &report);
      EXPECT_TRUE(same(got, reference_knn(queries, base, 10, metric))) << scale;
      EXPECT_EQ(report.scan.first_pass, at_one.scan.first_pass) << scale;
      EXPECT_NEAR(report.scan.survivors_per_query, at_one.scan.survivors_per_query, 3) << scale;
    }
  }
}

// Two far clusters with differences of `spread` inside, and every `loose`-th row far from all.
AnyMatrix two_clusters(std::int64_t rows, double spread, std::int64_t loose, std::uint64_t seed,
                       std::int64_t dim = 24) {
  Random random(seed);
  return make(ElementType::f32, rows, dim, [&](std::int64_t r, auto) {
    const double noise = gaussian(random);
    return r % loose == 0 ? 300 * noise : (r % 2 ? 1e2 : -1e2) + spread * noise;
  });
}

// Searches, compares with the reference, and returns the report.
KnnReport search_and_compare(const AnyMatrix& queries, const AnyMatrix& base,
                             const KnnOptions& options = {}) {
  KnnReport report;
  const Neighbors got = knn(queries, base, 5, options, &report);
  EXPECT_TRUE(same(got, reference_knn(queries, base, 5, Metric::l2)));
  return report;
}

constexpr std::int64_t none_loose = 1 << 30;

TEST(KnnNasty, BoundsThatPruneNothingAreGivenUpWhileRunning) {
  // Too few rows for a sample; many queries, so that some are answered before the others.
  const KnnReport report = search_and_compare(two_clusters(300, 1e-3, none_loose, 21, 1024),
                                              two_clusters(1900, 1e-3, none_loose, 22, 1024));
  EXPECT_GT(report.scan.fallback_queries, 250);
  EXPECT_EQ(report.scan.first_pass, "direct");  // not even floats tell these rows apart
}

TEST(KnnNasty, BoundsThatPruneNothingAreNotBegunWith) {
  KnnOptions without_tree;  // in which each cluster would have codes of its own
  without_tree.tuning.guess = false;
  const KnnReport direct =
      search_and_compare(two_clusters(300, 1e-3, none_loose, 21),
                         two_clusters(12000, 1e-3, none_loose, 22), without_tree);
  EXPECT_EQ(direct.scan.fallback_queries, 0);
  EXPECT_EQ(direct.scan.first_pass, "direct");
  const KnnReport floats =
      search_and_compare(two_clusters(300, 0.5, none_loose, 21),
                         two_clusters(12000, 0.5, none_loose, 22), without_tree);
  EXPECT_EQ(floats.scan.fallback_queries, 0);
  EXPECT_EQ(floats.scan.first_pass, "fp32");
}

TEST(KnnNasty, FarClustersHaveCodesOfTheirOwn) {
  const KnnReport report = search_and_compare(two_clusters(300, 1e-3, none_loose, 21),
                                              two_clusters(12000, 1e-3, none_loose, 22));
  EXPECT_EQ(report.scan.first_pass, "int8");
  EXPECT_GE(report.scan.leaves, 2);  // a far row may be one by itself
  EXPECT_EQ(report.scan.fallback_queries, 0);
  EXPECT_LT(report.scan.survivors_per_query, 20);
}

TEST(KnnNasty, ASampleOfQueriesUnlikeTheRest) {
  // The sample takes every 20th query, which are the easy ones.
  const KnnReport report =
      search_and_compare(two_clusters(1000, 1e-3, 20, 21), two_clusters(12000, 1e-3, 10, 22));
  if (has_byte_products(active_isa())) {
    EXPECT_GT(report.scan.fallback_queries, 900);
  }
}

}  // namespace
}  // namespace knear
