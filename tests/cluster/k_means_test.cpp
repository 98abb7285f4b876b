// k-means against plain loops: what it assigns, and that its sum of squares falls.
#include "knear/cluster/k_means.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"

namespace knear {
namespace {

Matrix<float> blobs(std::int64_t rows, std::int64_t dim, int count, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> centres(count, dim), out(rows, dim);
  for (std::int64_t i = 0; i < count * dim; ++i)
    centres.data()[i] = static_cast<float>(20 * random.uniform());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(r)[j] = centres.row(r % count)[j] + static_cast<float>(random.uniform());
  return out;
}

double cost(const Matrix<float>& rows, const Matrix<float>& centroids) {
  const Neighbors near = reference_knn(rows.view(), centroids.view(), 1, Metric::l2);
  double sum = 0;
  for (std::int64_t i = 0; i < rows.rows(); ++i) sum += near.distances.data()[i];
  return sum;
}

TEST(KMeans, AssignsToTheNearestTiesToTheSmallerNumber) {
  const Matrix<float> rows = blobs(500, 5, 7, 1), centroids = blobs(40, 5, 7, 2);
  Matrix<float> twice(80, 5);
  std::memcpy(twice.row(0), centroids.row(0), 40 * 5 * 4);
  std::memcpy(twice.row(40), centroids.row(0), 40 * 5 * 4);
  const Neighbors near = reference_knn(rows.view(), twice.view(), 3, Metric::l2);
  const NearestCentroid nearest(twice.view());
  for (int threads : {1, 2, 3}) {
    const std::vector<std::uint32_t> group = nearest.of(rows.view(), threads);
    const Matrix<Id> three = nearest.of(rows.view(), 3, threads);
    for (std::int64_t i = 0; i < 500; ++i) {
      ASSERT_EQ(group[static_cast<std::size_t>(i)], near.ids.row(i)[0]);
      ASSERT_LT(group[static_cast<std::size_t>(i)], 40u);
      for (int j = 0; j < 3; ++j) ASSERT_EQ(three.row(i)[j], near.ids.row(i)[j]);
    }
  }
}

TEST(KMeans, EveryIterationLowersTheSumOfSquares) {
  const Matrix<float> rows = blobs(2000, 6, 30, 3);
  double before = cost(rows, k_means(rows.view(), 25, {.iterations = 0}));
  for (int iterations : {1, 2, 3, 8}) {
    const double now = cost(rows, k_means(rows.view(), 25, {.iterations = iterations}));
    EXPECT_LE(now, before * 1.000001) << iterations;
    before = now;
  }
  const Matrix<float> one = k_means(rows.view(), 1, {.iterations = 1});
  for (std::int64_t j = 0; j < 6; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < 2000; ++i) sum += rows.row(i)[j];
    EXPECT_NEAR(one.row(0)[j], sum / 2000, 1e-5);
  }
}

TEST(KMeans, IsTheSameForAnyThreadsAndLosesNoCentroid) {
  const Matrix<float> rows = blobs(600, 4, 3, 4);
  const Matrix<float> a = k_means(rows.view(), 50, {.iterations = 5, .threads = 1});
  const Matrix<float> b = k_means(rows.view(), 50, {.iterations = 5, .threads = 3});
  EXPECT_EQ(std::memcmp(a.data(), b.data(), 50 * 4 * 4), 0);
  const Matrix<float> c = k_means(rows.view(), 50, {.iterations = 5, .seed = 2});
  EXPECT_NE(std::memcmp(a.data(), c.data(), 50 * 4 * 4), 0);
  // Equal rows: all but one centroid lose theirs.
  Matrix<float> equal(100, 4);
  const Matrix<float> still = k_means(equal.view(), 10, {.iterations = 3});
  for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(still.data()[i], 0);
}

TEST(KMeans, RefusesCountsThatRowsCannotFill) {
  const Matrix<float> rows = blobs(10, 4, 3, 4);
  EXPECT_THROW(k_means(rows.view(), 11), InvalidArgument);
  EXPECT_THROW(k_means(rows.view(), 0), InvalidArgument);
  EXPECT_THROW(k_means(rows.view(), 2, {.iterations = -1}), InvalidArgument);
}

}  // namespace
}  // namespace knear
