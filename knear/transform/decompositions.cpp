#include "knear/transform/decompositions.hpp"

#include <algorithm>
#include <cstdint>

// Eigen's order of sums depends on the width of vector registers and on the cache sizes of the
// machine, and on 64-bit ARM it fuses products and sums. Without vector registers and with fixed
// cache sizes its results are the same everywhere.
//
// Eigen is renamed here. Otherwise a program that uses both the library and Eigen with other
// settings would link two different definitions of the same functions.
#define Eigen EigenWithTheSameBits
#define EIGEN_DONT_VECTORIZE
#include <Eigen/Eigenvalues>
#include <Eigen/QR>

#include "knear/core/error.hpp"

namespace knear::detail {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

[[maybe_unused]] const bool eigen_cache_sizes_are_set = [] {
  Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 512 << 10);
  return true;
}();

}  // namespace

SymmetricEigen symmetric_eigen(MatrixView<double> matrix) {
  const std::int64_t n = matrix.rows();
  const Eigen::Map<const RowMajor> map(matrix.data(), n, n);
  const Eigen::SelfAdjointEigenSolver<RowMajor> solver(map);
  if (solver.info() != Eigen::Success)
    throw InvalidArgument("rows have no principal components: the solver does not converge");
  SymmetricEigen out{{}, Matrix<double>(n, n)};
  for (std::int64_t c = 0; c < n; ++c) {
    out.values.push_back(solver.eigenvalues()[c]);
    for (std::int64_t i = 0; i < n; ++i) out.vectors.row(c)[i] = solver.eigenvectors()(i, c);
  }
  return out;
}

Matrix<double> pseudo_inverse(MatrixView<double> matrix) {
  const Eigen::Map<const RowMajor> map(matrix.data(), matrix.rows(), matrix.cols());
  const RowMajor inverse = map.completeOrthogonalDecomposition().pseudoInverse();
  Matrix<double> out(matrix.cols(), matrix.rows());
  std::copy_n(inverse.data(), out.rows() * out.cols(), out.data());
  return out;
}

}  // namespace knear::detail
