// knear/transform/decompositions.hpp -- decompositions of dense matrices of float64, by Eigen.
//
// The only user of Eigen is decompositions.cpp: its templates take the compiler seconds to read and
// tens of seconds to instantiate, so the rest of the library sees these functions alone. The
// results have the same bits on every processor.
#pragma once
#include <vector>

#include "knear/core/matrix.hpp"

namespace knear::detail {

// Eigenvalues in ascending order [n], and one eigenvector of unit length per row [n x n].
struct SymmetricEigen {
  std::vector<double> values;
  Matrix<double> vectors;
};

// Decomposes a symmetric matrix [n x n]; reads its lower triangle. Throws InvalidArgument if the
// solver does not converge.
SymmetricEigen symmetric_eigen(MatrixView<double> matrix);

// Returns the Moore-Penrose inverse [q x p] of a matrix [p x q].
Matrix<double> pseudo_inverse(MatrixView<double> matrix);

}  // namespace knear::detail
