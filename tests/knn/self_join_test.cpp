// The k nearest other rows of each row: the reference's answers without the row itself, whether
// pairs are scored once or each row is searched for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"
#include "tests/knn/kept_reference.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

double normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return sum;
}

// Clusters whose coordinates fall like 1 / (1 + i)^slope.
Matrix<float> clusters(std::int64_t rows, std::int64_t dim, double slope, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> centre(20, dim), out(rows, dim);
  for (std::int64_t i = 0; i < 20 * dim; ++i) centre.data()[i] = float(2 * normal(random));
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto c = static_cast<std::int64_t>(random.below(20));
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(r)[j] = float((centre.row(c)[j] + normal(random)) / std::pow(1.0 + double(j), slope));
  }
  return out;
}

// The answer of a search for every row, without the row itself.
Neighbors without_self(const Neighbors& all, std::int64_t k) {
  Neighbors out{Matrix<Id>(all.ids.rows(), k), Matrix<float>(all.ids.rows(), k)};
  for (Id row = 0; row < all.ids.rows(); ++row) {
    std::int64_t from = 0;
    for (std::int64_t j = 0; j < k; ++j, ++from) {
      if (all.ids.row(row)[from] == row) ++from;
      out.ids.row(row)[j] = all.ids.row(row)[from];
      out.distances.row(row)[j] = all.distances.row(row)[from];
    }
  }
  return out;
}

void expect_same(const Neighbors& got, const Neighbors& expected) {
  ASSERT_EQ(got.ids.rows(), expected.ids.rows());
  ASSERT_EQ(got.ids.cols(), expected.ids.cols());
  for (std::int64_t row = 0; row < got.ids.rows(); ++row)
    for (std::int64_t j = 0; j < got.ids.cols(); ++j) {
      ASSERT_EQ(got.ids.row(row)[j], expected.ids.row(row)[j]) << "row " << row << " place " << j;
      ASSERT_EQ(std::memcmp(got.distances.row(row) + j, expected.distances.row(row) + j, 4), 0)
          << "row " << row << " place " << j;
    }
}

// The share of times that pairs were scored once. Where tests are small one thread has rows of its
// own alone, and three have those that a searcher prepared.
double expect_reference(AnyMatrixView base, std::int64_t k, KnnOptions options = {}) {
  const Neighbors expected =
      without_self(test::kept_reference(base, base, k + 1, options.metric), k);
  int joined = 0, times = 0;
  ExactSearcher searcher(base, {.metric = options.metric});
  for (const int threads : {1, 3}) {
    options.threads = threads;
    for (const bool once : {true, false}) {
      if (test::small() && once != (threads == 1)) continue;
      KnnReport report;
      expect_same(
          once ? self_join(base, k, options, &report) : searcher.self_join(k, options, &report),
          expected);
      EXPECT_EQ(report.k, k);
      EXPECT_EQ(report.promise.certified_queries, base.rows());
      joined += report.scan.joined, ++times;
    }
  }
  return static_cast<double>(joined) / times;
}

class SelfJoinLevels : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { setenv("KNEAR_ISA", std::string(name_of(GetParam())).c_str(), 1); }
  void TearDown() override { unsetenv("KNEAR_ISA"); }
};

TEST_P(SelfJoinLevels, IsASearchForEveryRowWithoutTheRow) {
  const Matrix<float> base = clusters(1500, 40, 1, 1);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const std::int64_t k : {1, 32, 120})
      EXPECT_EQ(
          expect_reference(base.view(), k, {.metric = metric, .first_pass = FirstPass::prefix}), 1)
          << name_of(metric) << ' ' << k;
}

TEST_P(SelfJoinLevels, OfWholeNumbers) {
  Random random(1);
  for (const ElementType type : {ElementType::i8, ElementType::u8}) {
    AnyMatrix base(type, 1200, 48);
    for (std::int64_t i = 0; i < 1200 * 48; ++i)
      static_cast<std::uint8_t*>(base.row(0))[i] =
          static_cast<std::uint8_t>(random.below(250) >> (i % 48 / 8));
    for (const Metric metric : {Metric::l2, Metric::ip})
      for (const std::int64_t k : {1, 70})
        EXPECT_EQ(expect_reference(base, k, {.metric = metric, .first_pass = FirstPass::prefix}),
                  1);
  }
}

// The rows with the largest products are neither those of the own cluster nor the row itself. Over
// twelve decades nearly all pairs pass, and the self-join may be given up.
TEST_P(SelfJoinLevels, OfProductsWhereLengthsVary) {
  for (const int decades : {0, 1, 6}) {
    Matrix<float> base = clusters(1300, 40, 0.7, 2);
    Random random(3);
    for (std::int64_t r = 0; r < 1300; ++r) {
      const double times = std::pow(10.0, decades * (2 * random.uniform() - 1));
      for (std::int64_t j = 0; j < 40; ++j)
        base.row(r)[j] = static_cast<float>(base.row(r)[j] * times);
    }
    for (const std::int64_t k : {1, 50}) {
      const double joined =
          expect_reference(base.view(), k, {.metric = Metric::ip, .first_pass = FirstPass::prefix});
      if (decades < 6) {
        EXPECT_EQ(joined, 1) << decades << ' ' << k;
      }
    }
  }
}

// Far from the origin the products differ by much less than they are; on either side of it.
TEST_P(SelfJoinLevels, OfProductsThatAreNearlyAlike) {
  for (const float by : {-3.0f, 30.0f, 1000.0f, 1e5f}) {
    Matrix<float> base = clusters(1100, 24, 1, 4);
    for (std::int64_t i = 0; i < 1100 * 24; ++i) base.data()[i] += by;
    for (const std::int64_t k : {1, 20})
      expect_reference(base.view(), k, {.metric = Metric::ip, .first_pass = FirstPass::prefix});
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SelfJoinLevels, testing::ValuesIn(test::levels()),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

TEST(SelfJoin, CopiesAreRowsLikeAnyOther) {
  Matrix<float> base = clusters(1400, 24, 1, 1);
  for (std::int64_t i = 0; i < 1400 * 24; ++i) base.data()[i] = std::round(2 * base.data()[i]);
  // Pairs far apart, and one row that occurs more than k times.
  for (std::int64_t r = 0; r < 300; ++r) std::memcpy(base.row(r), base.row(1399 - r / 2), 96);
  for (std::int64_t r = 600; r < 640; ++r) std::memcpy(base.row(r), base.row(10), 96);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const std::int64_t k : {1, 7, 33, 60})
      expect_reference(base.view(), k, {.metric = metric, .first_pass = FirstPass::prefix});
  // All rows are one vector.
  for (std::int64_t i = 0; i < 1400 * 24; ++i) base.data()[i] = 1.5f;
  for (const Metric metric : {Metric::l2, Metric::ip})
    expect_reference(base.view(), 5, {.metric = metric, .first_pass = FirstPass::prefix});
}

TEST(SelfJoin, AllProductsWithOthersAreNegative) {
  for (const bool equal : {true, false}) {
    Matrix<float> base(40, 40);
    for (std::int64_t i = 0; i < 40; ++i)
      for (std::int64_t j = 0; j < 40; ++j)
        base.row(i)[j] = (i == j ? 1.0f : 0.0f) - 0.02f - (equal ? 0.0f : 1e-4f * float(i));
    for (const std::int64_t k : {1, 5, 39, 60}) {
      expect_reference(base.view(), k, {.metric = Metric::ip, .first_pass = FirstPass::prefix});
      const Neighbors got = self_join(base.view(), k, {.metric = Metric::ip});
      for (Id i = 0; i < 40; ++i) EXPECT_LT(got.distances.row(i)[0], 0);
    }
  }
}

TEST(SelfJoin, OfProductsOfEveryElementType) {
  const Matrix<float> floats = clusters(800, 32, 0.6, 6);
  for (const ElementType type : {ElementType::f32, ElementType::f64, ElementType::f16,
                                 ElementType::bf16, ElementType::u8, ElementType::i8}) {
    const bool whole = type == ElementType::u8 || type == ElementType::i8;
    const AnyMatrix base = test::make(type, 800, 32, [&](std::int64_t r, std::int64_t j) {
      const double x = floats.row(r)[j] * (r % 9 == 0 ? 4 : 1);
      return whole ? 5 * x + (type == ElementType::u8 ? 60 : 0) : x * 1.0000000123;
    });
    for (const std::int64_t k : {1, 15, 805})
      EXPECT_EQ(expect_reference(base, k, {.metric = Metric::ip, .first_pass = FirstPass::prefix}),
                1)
          << name_of(type) << ' ' << k;
  }
}

TEST(SelfJoin, ZeroRowsHaveTheFirstOthers) {
  Matrix<float> base = clusters(900, 24, 1, 1);
  for (const std::int64_t r : {0, 5, 400, 899})
    for (std::int64_t j = 0; j < 24; ++j) base.row(r)[j] = r == 400 ? -0.0f : 0.0f;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_reference(base.view(), 6, {.metric = metric, .first_pass = FirstPass::prefix});
}

TEST(SelfJoin, OfDataThatThePrefixDoesNotSuit) {
  expect_reference(clusters(1200, 64, 0, 1).view(), 10, {.first_pass = FirstPass::prefix});
  // Norms over many powers of ten; the same size for all rows; rows that no prefix holds.
  Matrix<float> base = clusters(1200, 32, 1, 1);
  for (std::int64_t r = 0; r < 1200; ++r)
    for (std::int64_t j = 0; j < 32; ++j) base.row(r)[j] *= std::pow(10.0f, float(r % 61 - 30));
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_reference(base.view(), 10, {.metric = metric, .first_pass = FirstPass::prefix});
  for (std::int64_t j = 0; j < 32; ++j) base.row(7)[j] = -3e38f;
  for (const Metric metric : {Metric::l2, Metric::ip})
    expect_reference(base.view(), 10, {.metric = metric, .first_pass = FirstPass::prefix});
  for (int exponent = -44; exponent <= 36; exponent += test::small() ? 16 : 4) {
    Matrix<float> scaled = clusters(400, 16, 0.3, 1);
    for (std::int64_t i = 0; i < 400 * 16; ++i)
      scaled.data()[i] = static_cast<float>(scaled.data()[i] * std::pow(10.0, exponent));
    SCOPED_TRACE(exponent);
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      expect_reference(scaled.view(), 10, {.metric = metric, .first_pass = FirstPass::prefix});
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(SelfJoin, IsUsedWhereItPays) {
  const Matrix<float> base = clusters(50000, 200, 0.6, 1);
  KnnReport report;
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    const KnnOptions options{.metric = metric};
    const Neighbors got = self_join(base.view(), 10, options, &report);
    EXPECT_TRUE(report.scan.joined);
    expect_same(got, without_self(knn(base.view(), base.view(), 11, options), 10));
  }
  const Matrix<float> flat = clusters(9000, 40, 0, 1);
  self_join(flat.view(), 10, {.memory = 64 << 20}, &report);
  EXPECT_FALSE(report.scan.joined);
  EXPECT_LE(report.memory_bytes, 64 << 20);
}

// So few rows are allowed that they are packed alone, where a self-join of all rows would pay.
TEST(SelfJoin, AFilterIsKeptWhereAJoinWouldPay) {
  Matrix<float> base(20000, 64);
  Random random(5);
  for (std::int64_t i = 0; i < 20000 * 64; ++i)
    base.data()[i] = static_cast<float>((random.uniform() - 0.5) * (i % 64 < 8 ? 10 : 0.5));
  std::vector<Id> allowed;
  for (Id id = 0; id < 20000; id += 3) allowed.push_back(id);
  const KnnOptions options{.filter = RowFilter::of_ids(allowed, 20000)};
  KnnReport report;
  const Neighbors got = self_join(base.view(), 10, options, &report);
  EXPECT_FALSE(report.scan.joined);
  expect_same(got, without_self(knn(base.view(), base.view(), 11, options), 10));
  self_join(base.view(), 10, {}, &report);
  EXPECT_TRUE(report.scan.joined);
}
#endif

TEST(SelfJoin, ReportsItsProgressAndCanBeCancelledAtAnyTime) {
  // Nearly all rows are alike: one cluster would hold them.
  const std::int64_t rows = test::small() ? 4000 : 9000;
  Matrix<float> base = clusters(rows, 16, 0, 1);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < 16; ++j)
      base.row(r)[j] = r % 20 == 0 ? 1e5f * base.row(r)[j] : 10 + 3e-6f * base.row(r)[j];
  std::string stage;
  double last = 0;
  std::int64_t calls = 0;
  KnnReport report;
  KnnOptions options{.threads = 1, .first_pass = FirstPass::prefix};
  options.progress = [&](std::string_view name, double done) {
    if (name != stage) {
      if (stage == "self-join") {
        EXPECT_GT(last, 0.9);
      }
      stage = std::string(name), last = 0;
    }
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    last = done;
    ++calls;
    return true;
  };
  const Neighbors whole = self_join(clusters(rows, 16, 1, 1).view(), 5, options, &report);
  EXPECT_TRUE(report.scan.joined);
  EXPECT_EQ(stage, "self-join");
  EXPECT_GT(last, 0.9);
  calls = 0, stage = "", last = 0;
  const Neighbors alike = self_join(base.view(), 5, options);
  const std::int64_t all = calls;
  EXPECT_GT(all, 10);
  for (const std::int64_t after : {all / 3, all / 2, all - 1}) {
    std::int64_t left = after;
    options.progress = [&](std::string_view, double) { return --left > 0; };
    EXPECT_THROW(self_join(base.view(), 5, options), Cancelled) << after << " of " << all;
  }
}

TEST(SelfJoin, HonoursFiltersShapesAndErrors) {
  const Matrix<float> base = clusters(700, 24, 1, 1);
  std::vector<Id> allowed;
  for (Id i = 0; i < 700; i += 3) allowed.push_back(i);
  const KnnOptions options{.first_pass = FirstPass::prefix,
                           .filter = RowFilter::of_ids(allowed, 700)};
  expect_same(self_join(base.view(), 9, options),
              without_self(knn(base.view(), base.view(), 10, options), 9));

  for (const std::int64_t rows : {0, 1, 2, 3}) {
    const Neighbors got = self_join(base.view().rows(0, rows), 4);
    ASSERT_EQ(got.ids.rows(), rows);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < 4; ++j) {
        EXPECT_EQ(got.ids.row(r)[j] == no_id, j >= rows - 1);
        EXPECT_NE(got.ids.row(r)[j], r);
        EXPECT_EQ(std::isinf(got.distances.row(r)[j]), j >= rows - 1);
      }
  }
  expect_reference(base.view().rows(0, 300), 299, {.first_pass = FirstPass::prefix});
  EXPECT_THROW(self_join(base.view(), 0), InvalidArgument);
  EXPECT_THROW(self_join(base.view(), std::int64_t{1} << 31), InvalidArgument);
  ExactSearcher searcher(base.view(), {});
  EXPECT_THROW(searcher.self_join(3, {.metric = Metric::ip}), InvalidArgument);
  EXPECT_THROW(self_join(base.view(), 3,
                         {.first_pass = FirstPass::prefix,
                          .progress = [](std::string_view, double) { return false; }}),
               Cancelled);
}

}  // namespace
}  // namespace knear
