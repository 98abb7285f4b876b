#include "knear/transform/orthonormal.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/transform/decompositions.hpp"
#include "knear/transform/product.hpp"

namespace knear {
namespace {

// A roughly normal number: a sum of twelve uniform ones, the same everywhere, where a library's
// logarithm may differ.
double normal_number(Random& random) {
  double sum = -6;
  for (int part = 0; part < 12; ++part) sum += random.uniform();
  return sum;
}

// Subtracts from columns [begin, end) of x their components along those in front of them.
void remove_components(Matrix<double>& x, std::int64_t begin, std::int64_t end, int threads) {
  if (begin == 0) return;
  const std::int64_t n = x.rows(), count = end - begin, stride = x.cols();
  const MatrixView<double> before(x.data(), n, begin, stride),
      some(x.data() + begin, n, count, stride);
  Matrix<double> products(begin, count), along(n, count);
  multiply_transposed(before, some, products, threads);
  multiply(before, products, along, threads);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < count; ++j) x.row(i)[begin + j] -= along.row(i)[j];
}

// out = x x^T [p x p] for x [p x q].
Matrix<double> gram_of_rows(MatrixView<double> x, int threads) {
  Matrix<double> out(x.rows(), x.rows());
  multiply(x, detail::transposed(x).view(), out, threads);
  return out;
}

}  // namespace

namespace detail {

double dot(const double* a, const double* b, std::int64_t n) {
  double sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

Matrix<double> transposed(MatrixView<double> from) {
  Matrix<double> out(from.cols(), from.rows());
  for (std::int64_t i = 0; i < from.rows(); ++i)
    for (std::int64_t j = 0; j < from.cols(); ++j) out.row(j)[i] = from.row(i)[j];
  return out;
}

// From sums of 64 products, plus their rounding.
double defect_of(MatrixView<double> q) {
  constexpr std::int64_t part = 64;
  const std::int64_t n = q.cols(), rows = q.rows();
  const Matrix<double> columns = transposed(q);
  Matrix<double> gram(rows, rows), sums(rows, rows);
  for (std::int64_t i = 0; i < n; i += part) {
    const std::int64_t count = std::min(part, n - i);
    multiply({q.data() + i, rows, count, q.stride()}, columns.view().rows(i, i + count), sums, 1);
    for (std::int64_t j = 0; j < rows * rows; ++j) gram.data()[j] += sums.data()[j];
  }
  double squares = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < rows; ++j) {
      const double off = gram.row(i)[j] - (i == j ? 1 : 0);
      squares += off * off;
    }
  // A product of two rows' lengths is at most 1.01, so each of the rows^2 elements is off by less
  // than this many roundings.
  const double roundings = static_cast<double>(part + n / part + 8);
  return 1.01 * (std::sqrt(squares) + roundings * 0x1p-53 * static_cast<double>(rows));
}

// The Gram-Schmidt process, done twice for each block of sixteen columns.
void make_orthonormal(Matrix<double>& x, int threads) {
  const std::int64_t n = x.rows();
  constexpr std::int64_t at_once = 16;
  Random random(2);
  for (std::int64_t begin = 0; begin < x.cols(); begin += at_once) {
    const std::int64_t end = std::min(x.cols(), begin + at_once);
    const auto copy = [&] { return transposed({x.data() + begin, n, end - begin, x.cols()}); };
    Matrix<double> some = copy();
    std::vector<double> length(end - begin);
    for (std::int64_t j = 0; j < end - begin; ++j)
      length[j] = std::sqrt(dot(some.row(j), some.row(j), n));
    for (bool complete = false; !complete;) {
      complete = true;
      for (int time = 0; time < 2; ++time) {
        remove_components(x, begin, end, threads);
        some = copy();
        for (std::int64_t j = 0; j < end - begin; ++j) {
          double* column = some.row(j);
          for (std::int64_t before = 0; before < j; ++before) {
            const double product = dot(some.row(before), column, n);
            for (std::int64_t i = 0; i < n; ++i) column[i] -= product * some.row(before)[i];
          }
          const double rest = std::sqrt(dot(column, column, n));
          // The remainder of a column in the span of those before it is only rounding error.
          const bool nothing = !(rest > 1e-12 * length[j]);
          for (std::int64_t i = 0; i < n; ++i)
            column[i] = nothing ? normal_number(random) : column[i] / rest;
          length[j] = nothing ? std::sqrt(static_cast<double>(n)) : 1;
          complete &= !nothing;
        }
        for (std::int64_t j = 0; j < end - begin; ++j)
          for (std::int64_t i = 0; i < n; ++i) x.row(i)[begin + j] = some.row(j)[i];
      }
    }
  }
}

// With the singular value decomposition U S V^T of the matrix the result is U V^T, the orthogonal
// factor of the polar decomposition. (M M^T)^(-1/2) M, by the eigenvalues of M M^T, has the same
// singular vectors and singular values near 1, except where those of M are below 3e-6 of the
// largest. The Newton-Schulz iteration X <- (3 X - X X^T X) / 2 moves all of them to 1 (Higham,
// Functions of Matrices, 2008, chapter 8): near 1 it squares the error, and smaller values grow by
// half at each step, so 80 steps suffice unless a singular value is 0 but for rounding.
Matrix<double> nearest_orthonormal(MatrixView<double> matrix, int threads) {
  constexpr double least_eigenvalue = 1e-11;  // of the largest
  constexpr int most_steps = 80;
  const std::int64_t p = matrix.rows(), q = matrix.cols();
  const SymmetricEigen eigen = symmetric_eigen(gram_of_rows(matrix, threads).view());
  Matrix<double> x(p, q), along(p, q), scaled(p, p);
  const double largest = eigen.values.back();
  if (largest > 0) {
    multiply(eigen.vectors.view(), matrix, along, threads);
    for (std::int64_t i = 0; i < p; ++i) {
      const double value = std::max(eigen.values[i], least_eigenvalue * largest);
      for (std::int64_t j = 0; j < p; ++j)
        scaled.row(j)[i] = eigen.vectors.row(i)[j] / std::sqrt(value);
    }
    multiply(scaled.view(), along.view(), x, threads);
  }
  Matrix<double> next(p, q);
  for (int step = 0; step < most_steps; ++step) {
    Matrix<double> factor = gram_of_rows(x.view(), threads);
    double off = 0;
    for (std::int64_t i = 0; i < p; ++i)
      for (std::int64_t j = 0; j < p; ++j) {
        const double error = factor.row(i)[j] - (i == j ? 1 : 0);
        off = std::max(off, std::abs(error));
        factor.row(i)[j] = (i == j ? 1 : 0) - error / 2;
      }
    multiply(factor.view(), x.view(), next, threads);
    std::swap(x, next);
    if (off < 1e-8) return x;  // the step has squared it
  }
  // The rank is below p. In the order of falling eigenvalues the rows that the matrix determines
  // come first: the Gram-Schmidt process keeps these and completes the rest.
  Matrix<double> columns(q, p), turned(p, q), falling(p, p);
  for (std::int64_t i = 0; i < p; ++i) std::copy_n(eigen.vectors.row(p - 1 - i), p, falling.row(i));
  multiply(falling.view(), x.view(), turned, threads);
  columns = transposed(turned.view());
  make_orthonormal(columns, threads);
  multiply(transposed(falling.view()).view(), transposed(columns.view()).view(), x, threads);
  return x;
}

}  // namespace detail

Rotation random_rotation(std::int64_t n, std::uint64_t seed) {
  if (n < 1) throw InvalidArgument("n must be at least 1, but is {}", n);
  Random random(seed);
  Matrix<double> columns(n, n);
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = 0; i < n; ++i) columns.row(i)[j] = normal_number(random);
  detail::make_orthonormal(columns, 1);
  Rotation out{detail::transposed(columns)};
  out.defect = detail::defect_of(out.matrix.view());
  return out;
}

}  // namespace knear
