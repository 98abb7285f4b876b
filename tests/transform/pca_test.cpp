// Principal components of data whose components are known, and of awkward data.
#include "knear/transform/pca.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"

namespace knear {
namespace {

double normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return sum;
}

void expect_orthonormal(const Matrix<double>& basis, double defect) {
  double squares = 0;
  for (std::int64_t a = 0; a < basis.rows(); ++a)
    for (std::int64_t b = 0; b < basis.rows(); ++b) {
      double product = 0;
      for (std::int64_t i = 0; i < basis.cols(); ++i) product += basis.row(a)[i] * basis.row(b)[i];
      squares += (product - (a == b)) * (product - (a == b));
    }
  EXPECT_LE(std::sqrt(squares), defect);
  EXPECT_LE(defect, 1e-10);
}

TEST(Pca, FindsTheDirectionsInWhichVectorsDiffer) {
  // Coordinate i of `dim` has deviation 1 / (1 + i); then all are rotated.
  for (const std::int64_t dim : {3, 40, 1100}) {
    Random random(1);
    const std::int64_t n = dim == 1100 ? 400 : 3000;
    const Rotation turn = random_rotation(dim, 9);
    expect_orthonormal(turn.matrix, turn.defect);
    Matrix<double> rows(n, dim);
    std::vector<double> x(dim);
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t i = 0; i < dim; ++i)
        x[i] = normal(random) / static_cast<double>(1 + i) + (i == 1 ? 5 : 0);
      for (std::int64_t i = 0; i < dim; ++i)
        for (std::int64_t j = 0; j < dim; ++j) rows.row(r)[i] += turn.matrix.row(j)[i] * x[j];
    }
    const PrincipalComponents pca =
        principal_components(rows.view(), std::min<std::int64_t>(dim, 8));
    expect_orthonormal(pca.basis, pca.defect);
    double along = 0;
    for (std::int64_t i = 0; i < dim; ++i) along += pca.basis.row(0)[i] * turn.matrix.row(0)[i];
    EXPECT_GT(std::fabs(along), 0.98) << dim;
    EXPECT_NEAR(pca.variances[0], 1, 0.2);
    EXPECT_NEAR(pca.variances[1], 0.25, 0.06);
    EXPECT_NEAR(pca.total_variance, 1.6, 0.25);
    double offset = 0;
    for (std::int64_t i = 0; i < dim; ++i) offset += pca.mean[i] * turn.matrix.row(1)[i];
    EXPECT_NEAR(offset, 5, 0.15);
  }
}

TEST(Pca, CompletesABasisOfRowsThatSpanLess) {
  for (const std::int64_t dim : {12, 1200}) {
    Matrix<double> equal(50, dim);
    for (std::int64_t i = 0; i < 50 * dim; ++i) equal.data()[i] = 3;
    Matrix<double> line(50, dim);
    for (std::int64_t r = 0; r < 50; ++r) line.row(r)[2] = static_cast<double>(r) * 1e15;
    for (const auto* rows : {&equal, &line}) {
      const PrincipalComponents pca = principal_components(rows->view(), 11);
      expect_orthonormal(pca.basis, pca.defect);
      EXPECT_GE(pca.variances.back(), 0);
    }
    EXPECT_NEAR(std::fabs(principal_components(line.view(), 3).basis.row(0)[2]), 1, 1e-12);
  }
}

TEST(Pca, RefusesWhatHasNoComponents) {
  const Matrix<double> rows(5, 4), one(1, 4);
  EXPECT_THROW(principal_components(rows.view(), 0), InvalidArgument);
  EXPECT_THROW(principal_components(rows.view(), 5), InvalidArgument);
  EXPECT_THROW(principal_components(one.view(), 1), InvalidArgument);
  EXPECT_THROW(random_rotation(0, 1), InvalidArgument);
}

}  // namespace
}  // namespace knear
