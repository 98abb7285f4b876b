// knear/transform/product.hpp -- products of float64 matrices, the same bits for any number of
// threads and on every machine.
//
//   Matrix<double> out(a.rows(), b.cols());
//   multiply(a, b, out, threads);                 // out = a b
//   multiply_transposed(a, b, out, threads);      // out = a^T b, out being [a.cols() x b.cols()]
//
// Each element is the sum of its products in their order, every operation rounded by itself.
#pragma once
#include "knear/core/matrix.hpp"

namespace knear {

// out [n x c] = a [n x i] b [i x c], and out [n x c] = a^T b with a [i x n]. The shapes must agree;
// `out` is overwritten and must not overlap a or b. Threads: as parallel_for.
void multiply(MatrixView<double> a, MatrixView<double> b, Matrix<double>& out, int threads);
void multiply_transposed(MatrixView<double> a, MatrixView<double> b, Matrix<double>& out,
                         int threads);

namespace detail {

// multiply() in the calling thread: out [a.rows() x b.cols()], contiguous.
void multiply_on_host(MatrixView<double> a, MatrixView<double> b, double* out);

}  // namespace detail
}  // namespace knear
