// tests/index/flat_test.cpp -- flat indexes against the float64 reference, its growth, types,
// errors.

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"

namespace knear {
namespace {

Matrix<float> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Matrix<float> out(rows, cols);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    out.data()[i] = static_cast<float>(random.uniform() - 0.5);
  return out;
}

// Whole numbers in [0, bound), so that ties are frequent and every element type can hold them.
Matrix<float> whole_matrix(std::int64_t rows, std::int64_t cols, int bound, std::uint64_t seed) {
  Matrix<float> out(rows, cols);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    out.data()[i] = static_cast<float>(random.below(bound));
  return out;
}

template <class T>
Matrix<T> as_type(const Matrix<float>& in) {
  Matrix<T> out(in.rows(), in.cols());
  for (std::int64_t i = 0; i < in.rows() * in.cols(); ++i) {
    if constexpr (std::is_same_v<T, f16>)
      out.data()[i] = to_f16(in.data()[i]);
    else if constexpr (std::is_same_v<T, bf16>)
      out.data()[i] = to_bf16(in.data()[i]);
    else
      out.data()[i] = static_cast<T>(in.data()[i]);
  }
  return out;
}

void expect_same(const Neighbors& got, const Neighbors& want) {
  ASSERT_EQ(got.ids.rows(), want.ids.rows());
  ASSERT_EQ(got.ids.cols(), want.ids.cols());
  for (std::int64_t i = 0; i < want.ids.rows() * want.ids.cols(); ++i) {
    ASSERT_EQ(got.ids.data()[i], want.ids.data()[i]) << "place " << i;
    ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]) << "place " << i;
  }
}

TEST(FlatIndex, AnswersAsTheReferenceForEveryMetric) {
  const auto base = random_matrix(300, 19, 1), queries = random_matrix(7, 19, 2);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Index index = make_index("Flat", 19, metric);
    index.add(base.view());
    for (std::int64_t k : {1, 10, 300, 305})
      expect_same(index.search(queries.view(), k),
                  reference_knn(queries.view(), base.view(), k, metric));
  }
}

TEST(FlatIndex, ManySmallAddsEqualOneLargeOne) {
  const auto base = whole_matrix(500, 6, 4, 3), queries = whole_matrix(11, 6, 4, 4);
  Index index = make_index("Flat", 6);
  for (std::int64_t begin = 0, step = 1; begin < 500; begin += step, step = step % 17 + 1) {
    index.add(base.view().rows(begin, std::min<std::int64_t>(begin + step, 500)));
    if (step % 5 == 0) {  // a search between adds makes codes that the next add outdates
      const auto part = base.view().rows(0, index.size());
      expect_same(index.search(queries.view(), 9), reference_knn(queries.view(), part, 9, {}));
    }
  }
  EXPECT_EQ(index.size(), 500);
  expect_same(index.search(queries.view(), 20), reference_knn(queries.view(), base.view(), 20, {}));
}

TEST(FlatIndex, KeepsTheElementTypeOfTheFirstRowsAndConvertsLaterOnes) {
  const auto base = whole_matrix(40, 5, 100, 5), queries = whole_matrix(3, 5, 100, 6);
  const auto want = reference_knn(queries.view(), base.view(), 12, Metric::l2);
  const auto check = [&]<class First>(First) {
    Index index = make_index("Flat", 5);
    index.add(as_type<First>(base).view().rows(0, 10));
    index.add(as_type<float>(base).view().rows(10, 20));
    index.add(as_type<f16>(base).view().rows(20, 26));
    index.add(as_type<std::int8_t>(base).view().rows(26, 33));
    index.add(as_type<std::uint8_t>(base).view().rows(33, 36));
    index.add(as_type<bf16>(base).view().rows(36, 40));
    EXPECT_EQ(index.element_type(), element_type_of<First>());
    expect_same(index.search(queries.view(), 12), want);
  };
  check(float{});
  check(f16{});
  check(bf16{});
  check(std::uint8_t{});
  check(std::int8_t{});
}

TEST(FlatIndex, RefusesValuesThatTheElementTypeCannotHoldAndAddsNothing) {
  for (float bad : {0.5f, -1.0f, 256.0f, 1e30f, -1e30f}) {
    Index index = make_index("Flat", 2);
    index.add(Matrix<std::uint8_t>(3, 2).view());
    Matrix<float> later(2, 2);
    later.row(1)[0] = bad;
    EXPECT_THROW(index.add(later.view()), InvalidArgument) << bad;
    EXPECT_EQ(index.size(), 3);
    EXPECT_EQ(index.search(Matrix<float>(1, 2).view(), 4).ids.row(0)[3], no_id);
  }
}

TEST(FlatIndex, RefusesNanAndInfinityAndNamesTheRow) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    auto vectors = random_matrix(6, 4, 7);
    vectors.row(5)[3] = bad;
    Index index = make_index("Flat", 4);
    try {
      index.add(vectors.view());
      FAIL() << "no exception for " << bad;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("row 5"), std::string::npos) << error.what();
    }
    EXPECT_EQ(index.size(), 0);
  }
}

TEST(FlatIndex, RefusesWrongShapesAndArguments) {
  EXPECT_THROW(make_index("Flat", 0), InvalidArgument);
  EXPECT_THROW(make_index("Flat", 65537), InvalidArgument);
  Index index = make_index("Flat", 4);
  EXPECT_THROW(index.add(Matrix<float>(1, 5).view()), ShapeMismatch);
  index.add(Matrix<float>(1, 4).view());
  EXPECT_THROW(index.search(Matrix<float>(1, 5).view(), 1), ShapeMismatch);
  EXPECT_THROW(index.search(Matrix<float>(1, 4).view(), 0), InvalidArgument);
  EXPECT_THROW(index.search(Matrix<float>(1, 4).view(), 1, {.threads = -1}), InvalidArgument);
}

TEST(FlatIndex, AnEmptyOneGivesPaddingOnly) {
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Index index = make_index("Flat", 3, metric);
    index.add(Matrix<float>(0, 3).view());
    const auto near = index.search(Matrix<float>(2, 3).view(), 2);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(near.ids.data()[i], no_id);
      EXPECT_EQ(near.distances.data()[i], no_distance(metric));
    }
  }
}

TEST(FlatIndex, SearchesRowsThatLieApart) {
  const auto wide = random_matrix(50, 12, 8);
  const MatrixView<float> base(wide.data() + 1, 50, 7, 12);
  const MatrixView<float> queries(wide.data() + 3, 4, 7, 12);
  Index index = make_index("Flat", 7, Metric::cosine);
  index.add(base);
  expect_same(index.search(queries, 5), reference_knn(queries, base, 5, Metric::cosine));
}

TEST(FlatIndex, ReportSaysWhatWasSearched) {
  Index index = make_index("Flat", 4, Metric::ip);
  index.add(random_matrix(30, 4, 9).view());
  KnnReport report;
  index.search(random_matrix(3, 4, 10).view(), 2, {.threads = 1}, &report);
  EXPECT_EQ(report.rows, 30);
  EXPECT_EQ(report.dim, 4);
  EXPECT_EQ(report.version, index.version());
  EXPECT_GT(report.seconds, 0);
  EXPECT_EQ(report.queries, 3);
  EXPECT_EQ(report.k, 2);
  EXPECT_EQ(report.metric, Metric::ip);
}

TEST(FlatIndex, SearchesAndAddsFromManyThreadsAtOnce) {
  const auto base = whole_matrix(400, 8, 6, 11), queries = whole_matrix(5, 8, 6, 12);
  Index index = make_index("Flat", 8);
  index.add(base.view().rows(0, 100));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        if (t == 0 && i < 6) index.add(base.view().rows(100 + 50 * i, 150 + 50 * i));
        const auto near = index.search(queries.view(), 3, {.threads = 1 + t % 2});
        // Whatever rows were there: the first 100 were, so no neighbour may be farther than among
        // them.
        const auto first = reference_knn(queries.view(), base.view().rows(0, 100), 3, Metric::l2);
        for (int j = 0; j < 15; ++j) EXPECT_LE(near.distances.data()[j], first.distances.data()[j]);
      }
    });
  for (auto& thread : threads) thread.join();
  expect_same(index.search(queries.view(), 10),
              reference_knn(queries.view(), base.view(), 10, Metric::l2));
}

}  // namespace
}  // namespace knear
