// knear/transform/orthonormal.hpp -- matrices with orthonormal rows or columns: random ones, the
// one nearest to a given matrix, and how far one is from orthonormal.
//
//   const Rotation turn = random_rotation(128, seed);
//   turn.matrix.row(0)                          // of unit length, orthogonal to the other rows
//
// Computed in float64; the same bits for any number of threads and on every machine.
#pragma once
#include <cstdint>

#include "knear/core/matrix.hpp"

namespace knear {

// A random orthonormal matrix [n x n], the same for the same seed.
struct Rotation {
  Matrix<double> matrix;
  // matrix matrix^T differs from the identity by no more than this, as the root of the sum of
  // squares.
  double defect = 0;
};

// Returns a random rotation; n >= 1. Throws InvalidArgument.
Rotation random_rotation(std::int64_t n, std::uint64_t seed);

namespace detail {

// Returns the matrix with orthonormal rows [p x q] that is nearest to `matrix` [p x q], p <= q, in
// the Frobenius norm. It has the largest sum of products with `matrix` (the orthogonal Procrustes
// problem). If the rank of `matrix` is below p, the result is one of several nearest matrices.
// Squares of the elements must be within the range of float64.
Matrix<double> nearest_orthonormal(MatrixView<double> matrix, int threads);

// Makes the columns of x [n x c], c <= n, orthonormal. The first j columns then span the space that
// they spanned before. A column in the span of those before it is replaced by a random one.
void make_orthonormal(Matrix<double>& x, int threads);

// Returns a bound on the Frobenius norm of q q^T - 1 that includes the rounding of computing it.
double defect_of(MatrixView<double> q);

// Returns the transpose [c x r] of a matrix [r x c].
Matrix<double> transposed(MatrixView<double> from);

// Returns the sum of n products, added up in four interleaved sums.
double dot(const double* a, const double* b, std::int64_t n);

}  // namespace detail
}  // namespace knear
