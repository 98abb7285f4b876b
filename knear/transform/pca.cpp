#include "knear/transform/pca.hpp"

#include <Eigen/Dense>
#include <cmath>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"

namespace knear {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The Frobenius norm of q q^T - 1, plus the rounding of computing it.
double defect_of(const RowMajor& q) {
  const double n = static_cast<double>(q.cols());
  const RowMajor gram = q * q.transpose();
  return (gram - RowMajor::Identity(q.rows(), q.rows())).norm() * 1.01 +
         (n + 8) * 0x1p-52 * std::sqrt(static_cast<double>(q.rows())) * 4;
}

// Roughly normal numbers: sums of twelve uniform ones, the same everywhere, where a library's
// logarithm may differ.
Eigen::MatrixXd normal_numbers(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Random random(seed);
  Eigen::MatrixXd out(rows, cols);
  for (std::int64_t j = 0; j < cols; ++j)
    for (std::int64_t i = 0; i < rows; ++i) {
      double sum = -6;
      for (int part = 0; part < 12; ++part) sum += random.uniform();
      out(i, j) = sum;
    }
  return out;
}

// Orthonormal columns that span those of `x`, which may be of deficient rank.
Eigen::MatrixXd orthonormal(const Eigen::MatrixXd& x) {
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(x);
  return qr.householderQ() * Eigen::MatrixXd::Identity(x.rows(), x.cols());
}

Matrix<double> copy_of(const RowMajor& from) {
  Matrix<double> out(from.rows(), from.cols());
  for (std::int64_t i = 0; i < from.rows(); ++i)
    for (std::int64_t j = 0; j < from.cols(); ++j) out.row(i)[j] = from(i, j);
  return out;
}

}  // namespace

PrincipalComponents principal_components(MatrixView<double> rows, std::int64_t components,
                                         const Progress& progress) {
  const std::int64_t n = rows.rows(), dim = rows.cols();
  if (n < 2) throw InvalidArgument("rows must be at least 2, but are {}", n);
  if (components < 1 || components > dim)
    throw InvalidArgument("components must be from 1 to {}, but is {}", dim, components);
  const Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> all(
      rows.data(), n, dim, Eigen::OuterStride<>(rows.stride()));
  Reporter reporter(progress, "principal components", 6);
  PrincipalComponents out;
  const Eigen::VectorXd mean = all.colwise().sum().transpose() / static_cast<double>(n);
  out.mean.assign(mean.data(), mean.data() + dim);
  const RowMajor x = all.rowwise() - mean.transpose();
  out.total_variance = x.squaredNorm() / static_cast<double>(n);

  // The time of the solver grows with dim^3, too much for a few components.
  constexpr std::int64_t widest_solved = 1024;
  RowMajor basis;
  Eigen::VectorXd variances;
  if (dim <= widest_solved) {
    Eigen::MatrixXd covariance = Eigen::MatrixXd::Zero(dim, dim);
    covariance.selfadjointView<Eigen::Lower>().rankUpdate(x.transpose(),
                                                          1.0 / static_cast<double>(n));
    reporter.add(2);
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(covariance);
    if (solver.info() != Eigen::Success)
      throw InvalidArgument("rows have no principal components: the solver does not converge");
    basis = solver.eigenvectors().rowwise().reverse().leftCols(components).transpose();
    variances = solver.eigenvalues().reverse().head(components);
  } else {
    // Subspace iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4) on a few more directions
    // than wanted, then the solver within the subspace.
    const std::int64_t width = std::min(dim, components + 16);
    Eigen::MatrixXd q = orthonormal(normal_numbers(dim, width, 1));
    for (int round = 0; round < 4; ++round) {
      q = orthonormal(x.transpose() * (x * q));
      reporter.add(1);
    }
    const Eigen::MatrixXd inside = x * q;
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
        (inside.transpose() * inside / static_cast<double>(n)).eval());
    if (solver.info() != Eigen::Success)
      throw InvalidArgument("rows have no principal components: the solver does not converge");
    basis = (q * solver.eigenvectors().rowwise().reverse().leftCols(components)).transpose();
    variances = solver.eigenvalues().reverse().head(components);
  }
  for (std::int64_t i = 0; i < components; ++i)
    out.variances.push_back(std::max(0.0, variances[i]));
  out.defect = defect_of(basis);
  out.basis = copy_of(basis);
  return out;
}

Rotation random_rotation(std::int64_t n, std::uint64_t seed) {
  if (n < 1) throw InvalidArgument("n must be at least 1, but is {}", n);
  const RowMajor q = orthonormal(normal_numbers(n, n, seed));
  return {copy_of(q), defect_of(q)};
}

}  // namespace knear
