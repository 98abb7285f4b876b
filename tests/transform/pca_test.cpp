// Principal components of data whose components are known, and of awkward data.
#include "knear/transform/pca.hpp"
#include "knear/transform/orthonormal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "knear/core/cpu.hpp"
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
    const PrincipalComponents pca = principal_components(rows, std::min<std::int64_t>(dim, 8), 2);
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
    for (auto* rows : {&equal, &line}) {
      const PrincipalComponents pca = principal_components(*rows, 11, 2);
      expect_orthonormal(pca.basis, pca.defect);
      EXPECT_GE(pca.variances.back(), 0);
    }
    EXPECT_NEAR(std::fabs(principal_components(line, 3, 1).basis.row(0)[2]), 1, 1e-12);
  }
}

TEST(Pca, HasTheSameBitsForAnyThreadsAtEveryLevel) {
  for (const std::int64_t dim : {150, 400}) {
    Random random(3);
    Matrix<double> rows(1000, dim);
    for (std::int64_t i = 0; i < 1000 * dim; ++i)
      rows.data()[i] = normal(random) / static_cast<double>(1 + i % dim);
    std::optional<PrincipalComponents> first;
    for (Isa isa : available_isas()) {
      setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
      for (const int threads : {1, 2, 5}) {
        Matrix<double> copy(1000, dim);
        std::copy_n(rows.data(), 1000 * dim, copy.data());
        PrincipalComponents pca = principal_components(copy, 40, threads);
        if (!first)
          first = std::move(pca);
        else
          for (std::int64_t i = 0; i < 40 * dim; ++i)
            ASSERT_EQ(pca.basis.data()[i], first->basis.data()[i]) << name_of(isa);
      }
    }
    unsetenv("KNEAR_ISA");
  }
}

TEST(Pca, RefusesWhatHasNoComponents) {
  Matrix<double> rows(5, 4), one(1, 4);
  EXPECT_THROW(principal_components(rows, 0, 1), InvalidArgument);
  EXPECT_THROW(principal_components(rows, 5, 1), InvalidArgument);
  EXPECT_THROW(principal_components(one, 1, 1), InvalidArgument);
  EXPECT_THROW(random_rotation(0, 1), InvalidArgument);
}

}  // namespace
}  // namespace knear
