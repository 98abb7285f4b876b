#include "knear/transform/pca.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"
#include "knear/transform/eigen.hpp"
#include "knear/transform/product.hpp"

namespace knear {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Sums over rows are made of blocks of this many rows, then of the blocks, whatever the threads.
constexpr std::int64_t block = 128;
std::int64_t blocks_of(std::int64_t rows) { return (rows + block - 1) / block; }

// A roughly normal number: a sum of twelve uniform ones, the same everywhere, where a library's
// logarithm may differ.
double normal_number(Random& random) {
  double sum = -6;
  for (int part = 0; part < 12; ++part) sum += random.uniform();
  return sum;
}

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

// The Frobenius norm of q q^T - 1, plus the rounding of computing it from sums of 64 products.
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

// Makes the columns of x [n x c], c <= n, orthonormal; the first j then span what the first j did.
// Random columns take the place of those that add no dimension. This is the Gram-Schmidt process,
// done twice for each block of sixteen columns.
void make_orthonormal(Matrix<double>& x, int threads) {
  const std::int64_t n = x.rows();
  constexpr std::int64_t at_once = 16;
  Random random(2);
  for (std::int64_t begin = 0; begin < x.cols(); begin += at_once) {
    const std::int64_t end = std::min(x.cols(), begin + at_once);
    const auto copy = [&] { return transposed({x.data() + begin, n, end - begin, x.cols()}); };
    Matrix<double> some = copy();
    std::vector<double> length(static_cast<std::size_t>(end - begin));
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
          // What is left of a column that adds no dimension is rounding.
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

// Subtracts the mean of the rows from each. Returns the mean, and the mean squared length of the
// rows after that.
std::pair<std::vector<double>, double> centre(Matrix<double>& rows, int threads) {
  const std::int64_t n = rows.rows(), dim = rows.cols();
  Matrix<double> sums(blocks_of(n), dim);
  parallel_for(threads, blocks_of(n), [&](std::int64_t b) {
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
      for (std::int64_t j = 0; j < dim; ++j) sums.row(b)[j] += rows.row(i)[j];
  });
  std::vector<double> mean(static_cast<std::size_t>(dim)), squares(sums.rows());
  for (std::int64_t b = 0; b < sums.rows(); ++b)
    for (std::int64_t j = 0; j < dim; ++j) mean[j] += sums.row(b)[j];
  for (double& m : mean) m /= static_cast<double>(n);
  parallel_for(threads, blocks_of(n), [&](std::int64_t b) {
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i) {
      double* x = rows.row(i);
      for (std::int64_t j = 0; j < dim; ++j) x[j] -= mean[j];
      squares[b] += dot(x, x, dim);
    }
  });
  double sum = 0;
  for (const double s : squares) sum += s;
  return {std::move(mean), sum / static_cast<double>(n)};
}

// The eigenvectors of x^T x / x.rows() as columns, and its eigenvalues, smallest first.
Eigen::SelfAdjointEigenSolver<RowMajor> directions_of(MatrixView<double> x, int threads) {
  Matrix<double> gram(x.cols(), x.cols());
  multiply_transposed(x, x, gram, threads);
  const Eigen::Map<const RowMajor> products(gram.data(), x.cols(), x.cols());
  Eigen::SelfAdjointEigenSolver<RowMajor> solver(products / static_cast<double>(x.rows()));
  if (solver.info() != Eigen::Success)
    throw InvalidArgument("rows have no principal components: the solver does not converge");
  return solver;
}

}  // namespace

PrincipalComponents principal_components(Matrix<double>& rows, std::int64_t components, int threads,
                                         const Progress& progress) {
  const std::int64_t n = rows.rows(), dim = rows.cols();
  if (n < 2) throw InvalidArgument("rows must be at least 2, but are {}", n);
  if (components < 1 || components > dim)
    throw InvalidArgument("components must be from 1 to {}, but is {}", dim, components);
  constexpr int rounds = 2;
  Reporter reporter(progress, "principal components", rounds + 3);
  PrincipalComponents out;
  std::tie(out.mean, out.total_variance) = centre(rows, threads);
  reporter.add(1);

  // The time of the solver grows with dim^3, too much for a few components. Instead: subspace
  // iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4) on at least one direction more than
  // wanted and a multiple of 32, then the solver within the subspace. On Fashion-MNIST the first 63
  // and 95 of 127 components leave out 1.004 and 1.018 times the variance that those from four
  // rounds on 143 directions do.
  const std::int64_t width = std::min(dim, (components / 32 + 1) * 32);
  Matrix<double> inside, along;  // columns that span the subspace, coordinates of rows in it
  if (2 * dim > 3 * width) {
    Random random(1);
    inside = Matrix<double>(dim, width), along = Matrix<double>(n, width);
    for (std::int64_t i = 0; i < dim * width; ++i) inside.data()[i] = random.uniform() - 0.5;
    for (int round = 0; round < rounds; ++round) {
      multiply(rows, inside, along, threads);
      multiply_transposed(rows, along, inside, threads);
      make_orthonormal(inside, threads);
      reporter.add(1);
    }
    multiply(rows, inside, along, threads);
  }
  const bool all = inside.rows() == 0;
  const auto solver = directions_of(all ? rows : along, threads);
  const std::int64_t directions = solver.eigenvalues().size();
  Matrix<double> turn(components, directions);
  for (std::int64_t c = 0; c < components; ++c) {
    const std::int64_t from = directions - 1 - c;
    out.variances.push_back(std::max(0.0, solver.eigenvalues()[from]));
    for (std::int64_t i = 0; i < directions; ++i) turn.row(c)[i] = solver.eigenvectors()(i, from);
  }
  reporter.add(1);
  if (all) {
    out.basis = std::move(turn);
  } else {
    out.basis = Matrix<double>(components, dim);
    multiply(turn, transposed(inside), out.basis, threads);
  }
  out.defect = defect_of(out.basis);
  reporter.add(1);
  return out;
}

Rotation random_rotation(std::int64_t n, std::uint64_t seed) {
  if (n < 1) throw InvalidArgument("n must be at least 1, but is {}", n);
  Random random(seed);
  Matrix<double> columns(n, n);
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = 0; i < n; ++i) columns.row(i)[j] = normal_number(random);
  make_orthonormal(columns, 1);
  Rotation out{transposed(columns)};
  out.defect = defect_of(out.matrix);
  return out;
}

}  // namespace knear
