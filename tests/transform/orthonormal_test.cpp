// Matrices with orthonormal rows: that they are, and that the nearest one is the nearest.
#include "knear/transform/orthonormal.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/transform/product.hpp"

namespace knear {
namespace {

using detail::nearest_orthonormal, detail::transposed;

Matrix<double> product(MatrixView<double> a, MatrixView<double> b) {
  Matrix<double> out(a.rows(), b.cols());
  multiply(a, b, out, 1);
  return out;
}

// The first p rows of a random rotation of q dimensions.
Matrix<double> orthonormal_rows(std::int64_t p, std::int64_t q, std::uint64_t seed) {
  const Rotation turn = random_rotation(q, seed);
  Matrix<double> out(p, q);
  std::copy_n(turn.matrix.data(), p * q, out.data());
  return out;
}

// U diag(values) V for random U [p x p] and V [p x q]; U V is the matrix nearest to it.
struct Known {
  Known(std::int64_t p, std::int64_t q, const std::vector<double>& values)
      : u(orthonormal_rows(p, p, 1)), v(orthonormal_rows(p, q, 2)) {
    Matrix<double> scaled(p, q);
    for (std::int64_t i = 0; i < p; ++i)
      for (std::int64_t j = 0; j < q; ++j)
        scaled.row(i)[j] = values[static_cast<std::size_t>(i)] * v.row(i)[j];
    matrix = product(u.view(), scaled.view());
  }
  Matrix<double> nearest() const { return product(u.view(), v.view()); }
  Matrix<double> u, v, matrix;
};

double largest_difference(const Matrix<double>& a, const Matrix<double>& b) {
  double out = 0;
  for (std::int64_t i = 0; i < a.rows() * a.cols(); ++i)
    out = std::max(out, std::abs(a.data()[i] - b.data()[i]));
  return out;
}

TEST(NearestOrthonormal, IsTheKnownOneWhateverTheSingularValues) {
  for (const auto& [p, q] : {std::pair{1, 1}, {1, 7}, {5, 5}, {6, 16}, {40, 40}, {33, 70}})
    for (const double least : {1.0, 0.1, 1e-4, 1e-8})
      for (const double scale : {1.0, 1e-20, 1e20}) {
        std::vector<double> values;
        for (std::int64_t i = 0; i < p; ++i)
          values.push_back(scale * (p == 1 ? 1 : std::pow(least, double(i) / double(p - 1))));
        const Known known(p, q, values);
        const Matrix<double> found = nearest_orthonormal(known.matrix.view(), 2);
        EXPECT_LT(detail::defect_of(found.view()), 1e-11) << p << " " << q << " " << least;
        // Singular values of `least` of the largest lose that many digits to rounding.
        EXPECT_LT(largest_difference(found, known.nearest()), 1e-13 / least + 1e-12)
            << p << " " << q << " " << least << " " << scale;
      }
}

// The sum of products with the matrix is the sum of its singular values: none is larger.
TEST(NearestOrthonormal, HasTheLargestSumOfProducts) {
  const Known known(12, 20, {9, 8, 7, 6, 5, 4, 3, 2, 1, 1e-3, 1e-6, 1e-9});
  const Matrix<double> found = nearest_orthonormal(known.matrix.view(), 1);
  double sum = 0;
  for (std::int64_t i = 0; i < 12 * 20; ++i) sum += found.data()[i] * known.matrix.data()[i];
  EXPECT_NEAR(sum, 45 + 1e-3 + 1e-6 + 1e-9, 1e-11);
}

TEST(NearestOrthonormal, CompletesRowsWhereTheRankIsLower) {
  std::vector<double> values(10, 0.0);
  for (const std::int64_t rank : {0, 1, 4, 9}) {
    for (std::int64_t i = 0; i < rank; ++i)
      values[static_cast<std::size_t>(i)] = 3 - 0.1 * double(i);
    const Known known(10, 14, values);
    const Matrix<double> found = nearest_orthonormal(known.matrix.view(), 1);
    EXPECT_LT(detail::defect_of(found.view()), 1e-11) << rank;
    double sum = 0, expected = 0;
    for (const double value : values) expected += value;
    for (std::int64_t i = 0; i < 10 * 14; ++i) sum += found.data()[i] * known.matrix.data()[i];
    EXPECT_NEAR(sum, expected, 1e-10) << rank;
  }
  Matrix<double> one_row(3, 3);
  one_row.row(1)[2] = 5;
  EXPECT_LT(detail::defect_of(nearest_orthonormal(one_row.view(), 1).view()), 1e-11);
}

TEST(NearestOrthonormal, HasTheSameBitsForAnyThreads) {
  const Known known(50, 64, std::vector<double>(50, 2.0));
  const Matrix<double> one = nearest_orthonormal(known.matrix.view(), 1);
  for (const int threads : {2, 3, 8}) {
    const Matrix<double> other = nearest_orthonormal(known.matrix.view(), threads);
    EXPECT_EQ(std::memcmp(one.data(), other.data(), sizeof(double) * 50 * 64), 0);
  }
}

}  // namespace
}  // namespace knear
