// Steps in float64, block by block; the training of principal components.
#include "knear/transform/transform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/unit_length.hpp"
#include "knear/core/value_range.hpp"
#include "knear/transform/decompositions.hpp"
#include "knear/transform/orthonormal.hpp"
#include "knear/transform/pca.hpp"
#include "knear/transform/product.hpp"

namespace knear {
namespace {

constexpr std::int64_t rows_per_task = 256;  // rows of a task

void check_columns(std::string_view argument, std::int64_t columns) {
  if (columns < 1 || columns > 65536)
    throw InvalidArgument("{} must be from 1 to 65536, but is {}", argument, columns);
}

void check_offset(std::span<const float> offset) {
  for (std::size_t j = 0; j < offset.size(); ++j)
    if (!std::isfinite(offset[j]))
      throw InvalidArgument("offset must be finite, but element {} is {}", j, offset[j]);
}

// Rows as doubles [n x dim].
void load(AnyMatrixView rows, double* out) {
  visit(rows, [&](auto typed) {
    for (std::int64_t i = 0; i < typed.rows(); ++i, out += typed.cols())
      for (std::int64_t j = 0; j < typed.cols(); ++j) out[j] = to_double(typed.row(i)[j]);
  });
}

Matrix<double> transposed(MatrixView<float> from) {
  Matrix<double> out(from.cols(), from.rows());
  for (std::int64_t i = 0; i < from.rows(); ++i)
    for (std::int64_t j = 0; j < from.cols(); ++j) out.row(j)[i] = from.row(i)[j];
  return out;
}

// Whether a a^T, or for more rows than columns a^T a, is one.
bool is_orthonormal(MatrixView<float> a) {
  const bool wide = a.rows() <= a.cols();
  Matrix<double> columns = transposed(a), rows(a.rows(), a.cols());
  load(a, rows.data());
  const std::int64_t n = wide ? a.rows() : a.cols();
  Matrix<double> gram(n, n);
  if (wide)
    multiply(rows.view(), columns.view(), gram, 0);
  else
    multiply(columns.view(), rows.view(), gram, 0);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      if (!(std::fabs(gram.row(i)[j] - (i == j ? 1 : 0)) < 1e-5)) return false;
  return true;
}

// x / |x|, or zero.
void normalise(double* x, std::int64_t dim) {
  double squares = 0;
  for (std::int64_t j = 0; j < dim; ++j) squares += x[j] * x[j];
  if (squares < 1e-200) {  // f64 rows so short that squares lose digits
    detail::give_unit_length(x, dim);
    return;
  }
  const double length = std::sqrt(squares);
  for (std::int64_t j = 0; j < dim; ++j) x[j] /= length;
}

}  // namespace

struct Transform::State {
  Kind kind;
  std::int64_t dim_in, dim_out;
  Matrix<float> matrix;       // [dim_out x dim_in], of a linear step
  std::vector<float> offset;  // [dim_out], of a linear step and a shift
  Matrix<double> columns;     // the matrix, transposed
  bool orthonormal = true;

  State(Kind k, std::int64_t in, std::int64_t out) : kind(k), dim_in(in), dim_out(out) {}

  // x [n x dim_in], y [n x dim_out].
  void apply(std::int64_t n, double* x, double* y) const {
    switch (kind) {
      case Kind::linear:
        detail::multiply_on_host({x, n, dim_in}, columns.view(), y);
        break;
      case Kind::unit_norm:
        for (std::int64_t i = 0; i < n; ++i) normalise(x + i * dim_in, dim_in);
        [[fallthrough]];
      case Kind::shift:
        std::copy_n(x, n * dim_in, y);
    }
    for (std::int64_t i = 0; i < n && !offset.empty(); ++i)
      for (std::int64_t j = 0; j < dim_out; ++j) y[i * dim_out + j] += offset[j];
  }
  // y [n x dim_out], x [n x dim_in]; y is changed.
  void invert(std::int64_t n, double* y, double* x) const {
    for (std::int64_t i = 0; i < n && !offset.empty(); ++i)
      for (std::int64_t j = 0; j < dim_out; ++j) y[i * dim_out + j] -= offset[j];
    if (kind == Kind::linear)
      detail::multiply_on_host({y, n, dim_out}, back().view(), x);
    else
      std::copy_n(y, n * dim_out, x);
  }

 private:
  // [dim_out x dim_in]: x = y times it. Made when it is first asked for.
  const Matrix<double>& back() const {
    std::call_once(once_, [&] {
      back_ = Matrix<double>(dim_out, dim_in);
      if (orthonormal) {
        load(matrix.view(), back_.data());
        return;
      }
      // The pseudo-inverse of A^T is the transpose of that of A.
      back_ = detail::pseudo_inverse(columns.view());
    });
    return back_;
  }
  mutable std::once_flag once_;
  mutable Matrix<double> back_;
};

namespace {

// The mean of rows [dim].
std::vector<double> mean_of(AnyMatrixView rows, int threads) {
  constexpr std::int64_t block = 4096;
  Matrix<double> sums((rows.rows() + block - 1) / block, rows.cols());
  parallel_for(threads, sums.rows(), [&](std::int64_t b) {
    visit(rows.rows(b * block, std::min(rows.rows(), (b + 1) * block)), [&](auto typed) {
      for (std::int64_t i = 0; i < typed.rows(); ++i)
        for (std::int64_t j = 0; j < typed.cols(); ++j)
          sums.row(b)[j] += to_double(typed.row(i)[j]);
    });
  });
  std::vector<double> out(rows.cols());
  for (std::int64_t b = 0; b < sums.rows(); ++b)
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += sums.row(b)[j];
  for (double& x : out) x /= static_cast<double>(rows.rows());
  return out;
}

// The offset that takes a mean away.
std::vector<float> less(const std::vector<double>& mean) {
  std::vector<float> out;
  for (const double x : mean) out.push_back(static_cast<float>(-x));
  return out;
}

// [dim x dim], summed block by block in the order of the rows.
Matrix<double> covariance_of(AnyMatrixView rows, const std::vector<double>& mean, int threads,
                             const Progress& progress) {
  constexpr std::int64_t block = 4096;
  const std::int64_t dim = rows.cols();
  Matrix<double> out(dim, dim), part(dim, dim), x(std::min(block, rows.rows()), dim);
  const std::int64_t blocks = (rows.rows() + block - 1) / block;
  Reporter reporter(progress, "principal components", blocks + 1);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const AnyMatrixView some = rows.rows(b * block, std::min(rows.rows(), (b + 1) * block));
    parallel_for(threads, (some.rows() + rows_per_task - 1) / rows_per_task,
                 [&](std::int64_t task) {
                   const std::int64_t end = std::min(some.rows(), (task + 1) * rows_per_task);
                   load(some.rows(task * rows_per_task, end), x.row(task * rows_per_task));
                   for (std::int64_t i = task * rows_per_task; i < end; ++i)
                     for (std::int64_t j = 0; j < dim; ++j) x.row(i)[j] -= mean[j];
                 });
    const MatrixView<double> filled = x.view().rows(0, some.rows());
    multiply_transposed(filled, filled, part, threads);
    for (std::int64_t i = 0; i < dim * dim; ++i) out.data()[i] += part.data()[i];
    reporter.add(1);
  }
  for (std::int64_t i = 0; i < dim * dim; ++i) out.data()[i] /= static_cast<double>(rows.rows());
  return out;
}

// The `components` eigenvectors of the covariance of rows that have the largest eigenvalues,
// largest first [components x dim], and these.
struct Directions {
  Matrix<double> vectors;
  std::vector<double> variances;
};

Directions directions_by_columns(AnyMatrixView rows, const std::vector<double>& mean,
                                 std::int64_t components, int threads, const Progress& progress) {
  const std::int64_t dim = rows.cols();
  const Matrix<double> covariance = covariance_of(rows, mean, threads, progress);
  const detail::SymmetricEigen eigen = detail::symmetric_eigen(covariance.view());
  Directions out{Matrix<double>(components, dim), {}};
  for (std::int64_t c = 0; c < components; ++c) {
    out.variances.push_back(std::max(0.0, eigen.values[dim - 1 - c]));
    std::copy_n(eigen.vectors.row(dim - 1 - c), dim, out.vectors.row(c));
  }
  return out;
}

// The same for n rows that are fewer than their columns: with X the rows less the mean and u an
// eigenvector of X X^T [n x n], X^T u is one of X^T X [dim x dim], with the same eigenvalue.
Directions directions_by_rows(AnyMatrixView rows, const std::vector<double>& mean,
                              std::int64_t components, int threads, const Progress& progress) {
  const std::int64_t dim = rows.cols(), n = rows.rows(), known = std::min(components, n);
  Reporter reporter(progress, "principal components", 3);
  Matrix<double> x(n, dim);
  load(rows, x.data());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < dim; ++j) x.row(i)[j] -= mean[j];
  Matrix<double> gram(n, n), turn(n, known), along(dim, known), columns(dim, components);
  multiply(x.view(), detail::transposed(x.view()).view(), gram, threads);
  reporter.add(1);
  for (std::int64_t i = 0; i < n * n; ++i) gram.data()[i] /= static_cast<double>(n);
  const detail::SymmetricEigen eigen = detail::symmetric_eigen(gram.view());
  reporter.add(1);
  Directions out{{}, std::vector<double>(components)};
  for (std::int64_t c = 0; c < known; ++c) {
    out.variances[c] = std::max(0.0, eigen.values[n - 1 - c]);
    for (std::int64_t i = 0; i < n; ++i) turn.row(i)[c] = eigen.vectors.row(n - 1 - c)[i];
  }
  multiply_transposed(x.view(), turn.view(), along, threads);
  for (std::int64_t j = 0; j < dim; ++j) std::copy_n(along.row(j), known, columns.row(j));
  // A column of length 0 and those behind the last become any directions that complete the basis.
  detail::make_orthonormal(columns, threads);
  out.vectors = detail::transposed(columns.view());
  reporter.add(1);
  return out;
}

// A product of many numbers, none of them 0: fraction * 2^exponent, 0.5 <= fraction < 1.
struct Product {
  double fraction = 0.5;
  std::int64_t exponent = 1;
  void multiply(double factor) {
    int moved;
    fraction = std::frexp(fraction * factor, &moved);
    exponent += moved;
  }
  bool operator<(const Product& other) const {
    return exponent != other.exponent ? exponent < other.exponent : fraction < other.fraction;
  }
};

// Which component stands where, so that the products of variances of `parts` equal parts are about
// the same: each next smaller one goes where the product is smallest and there is room.
std::vector<std::int64_t> balanced(const std::vector<double>& variances, std::int64_t parts) {
  const std::int64_t width = std::ssize(variances) / parts;
  std::vector<Product> products(parts);
  std::vector<std::vector<std::int64_t>> members(products.size());
  // In units of the smallest, so that none is below 1 and products grow.
  const auto at_least = [&](double variance) { return std::max(variance, variances[0] * 1e-18); };
  const double unit = variances[0] > 0 ? at_least(variances.back()) : 1;
  for (std::int64_t c = 0; c < std::ssize(variances); ++c) {
    std::size_t best = members.size();
    for (std::size_t p = 0; p < members.size(); ++p)
      if (std::ssize(members[p]) < width &&
          (best == members.size() || products[p] < products[best]))
        best = p;
    members[best].push_back(c);
    products[best].multiply(variances[0] > 0 ? at_least(variances[c]) / unit : 1);
  }
  std::vector<std::int64_t> out;
  for (const auto& part : members) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace

Transform::Transform(std::vector<std::shared_ptr<const State>> steps) : steps_(std::move(steps)) {}

Transform Transform::pca(AnyMatrixView rows, std::int64_t components, const PcaOptions& options) {
  return detail::public_call([&] {
    const std::int64_t dim = rows.cols();
    check_columns("columns of rows", dim);
    if (rows.rows() < 2)
      throw InvalidArgument("rows must be at least 2 for principal components, but are {}",
                            rows.rows());
    if (components < 1 || components > dim)
      throw InvalidArgument("components must be from 1 to {}, the columns, but is {}", dim,
                            components);
    if (options.balance_over < 1 || components % options.balance_over != 0)
      throw InvalidArgument("balance_over must divide the components, which are {}, but is {}",
                            components, options.balance_over);
    if (options.most_rows != 0 && options.most_rows < 2)
      throw InvalidArgument("most_rows must be 0 or at least 2, but is {}", options.most_rows);
    const int threads = resolve_threads(options.threads);
    AnyMatrix sample;
    rows = detail::sampled_rows(rows, options.most_rows, options.seed, sample);
    find_value_range(rows, Metric::l2, "rows", threads);
    const std::vector<double> mean =
        options.centre ? mean_of(rows, threads) : std::vector<double>(dim);
    const auto find = rows.rows() < dim ? directions_by_rows : directions_by_columns;
    const auto [vectors, variances] = find(rows, mean, components, threads, options.progress);
    if (options.whiten && !(variances[0] > 0))
      throw InvalidArgument("rows do not vary, so that whitening would divide by nothing");
    const std::vector<std::int64_t> order = balanced(variances, options.balance_over);
    Matrix<double> basis(components, dim);
    for (std::int64_t c = 0; c < components; ++c) {
      const std::int64_t from = order[c];
      const double* vector = vectors.row(from);
      std::int64_t largest = 0;
      for (std::int64_t j = 1; j < dim; ++j)
        if (std::abs(vector[j]) > std::abs(vector[largest])) largest = j;
      double scale = vector[largest] < 0 ? -1 : 1;
      if (options.whiten) {
        // In directions in which rows do not vary there is rounding alone, which whitening would
        // make as large as the other components.
        const double variance = variances[from];
        scale = variance > 1e-12 * variances[0] ? scale / std::sqrt(variance) : 0;
      }
      if (std::abs(scale) > std::numeric_limits<float>::max())
        throw InvalidArgument(
            "rows vary by {:.2g} only along component {}, and whitening divides by that, which is "
            "beyond the range of float32",
            1 / std::abs(scale), from);
      for (std::int64_t j = 0; j < dim; ++j) basis.row(c)[j] = scale * vector[j];
    }
    if (options.rotate) {
      const Rotation turn = random_rotation(components, options.seed);
      Matrix<double> turned(components, dim);
      multiply(turn.matrix.view(), basis.view(), turned, threads);
      basis = std::move(turned);
    }
    Matrix<float> matrix(components, dim);
    for (std::int64_t i = 0; i < components * dim; ++i)
      matrix.data()[i] = static_cast<float>(basis.data()[i]);
    if (!options.centre) return linear(matrix.view());
    return chain({shift(less(mean)), linear(matrix.view())});
  });
}

Transform Transform::rotation(std::int64_t dim_in, std::int64_t dim_out, std::uint64_t seed) {
  return detail::public_call([&] {
    check_columns("dim_in", dim_in);
    check_columns("dim_out", dim_out);
    const Rotation turn = random_rotation(std::max(dim_in, dim_out), seed);
    Matrix<float> matrix(dim_out, dim_in);
    for (std::int64_t i = 0; i < dim_out; ++i)
      for (std::int64_t j = 0; j < dim_in; ++j)
        matrix.row(i)[j] = static_cast<float>(turn.matrix.row(i)[j]);
    return linear(matrix.view());
  });
}

Transform Transform::shift(std::span<const float> offset) {
  return detail::public_call([&] {
    check_columns("elements of the offset", std::ssize(offset));
    check_offset(offset);
    auto step = std::make_shared<State>(Kind::shift, std::ssize(offset), std::ssize(offset));
    step->offset.assign(offset.begin(), offset.end());
    return Transform({std::move(step)});
  });
}

Transform Transform::centring(AnyMatrixView rows, int threads) {
  return detail::public_call([&] {
    check_columns("columns of rows", rows.cols());
    if (rows.rows() < 1)
      throw InvalidArgument("rows must be at least 1 to have a mean, but are {}", rows.rows());
    const int used = resolve_threads(threads);
    find_value_range(rows, Metric::l2, "rows", used);
    return shift(less(mean_of(rows, used)));
  });
}

Transform Transform::unit_norm(std::int64_t dim) {
  return detail::public_call([&] {
    check_columns("dim", dim);
    return Transform({std::make_shared<State>(Kind::unit_norm, dim, dim)});
  });
}

Transform Transform::linear(MatrixView<float> matrix, std::span<const float> offset) {
  return detail::public_call([&] {
    check_columns("rows of the matrix", matrix.rows());
    check_columns("columns of the matrix", matrix.cols());
    if (!offset.empty() && std::ssize(offset) != matrix.rows())
      throw ShapeMismatch("offset has {} elements, the matrix {} rows", offset.size(),
                          matrix.rows());
    find_value_range(matrix, Metric::l2, "matrix", 1);
    check_offset(offset);
    auto step = std::make_shared<State>(Kind::linear, matrix.cols(), matrix.rows());
    step->matrix = Matrix<float>(matrix.rows(), matrix.cols());
    for (std::int64_t i = 0; i < matrix.rows(); ++i)
      std::copy_n(matrix.row(i), matrix.cols(), step->matrix.row(i));
    step->columns = transposed(matrix);
    step->offset.assign(offset.begin(), offset.end());
    step->orthonormal = is_orthonormal(matrix);
    return Transform({std::move(step)});
  });
}

Transform Transform::chain(const std::vector<Transform>& transforms) {
  return detail::public_call([&] {
    if (transforms.empty()) throw InvalidArgument("transforms must be at least 1, but are 0");
    std::vector<std::shared_ptr<const State>> all;
    for (std::size_t t = 0; t < transforms.size(); ++t) {
      if (t > 0 && transforms[t].dim_in() != transforms[t - 1].dim_out())
        throw ShapeMismatch("transform {} takes {} columns, the one before gives {}", t,
                            transforms[t].dim_in(), transforms[t - 1].dim_out());
      all.insert(all.end(), transforms[t].steps_.begin(), transforms[t].steps_.end());
    }
    return Transform(std::move(all));
  });
}

std::int64_t Transform::dim_in() const { return steps_.front()->dim_in; }
std::int64_t Transform::dim_out() const { return steps_.back()->dim_out; }

bool Transform::keeps_distances() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const auto& step) {
    return step->kind == Kind::shift ||
           (step->kind == Kind::linear && step->orthonormal && step->dim_out >= step->dim_in);
  });
}

std::vector<Transform::Step> Transform::steps() const {
  std::vector<Step> out;
  for (const auto& step : steps_)
    out.push_back({step->kind, step->dim_in, step->dim_out, step->matrix.view(), step->offset});
  return out;
}

namespace {

// Rounds results of a step [n x dim] to floats.
void round_to_floats(std::vector<double>& x, std::int64_t dim, std::int64_t first_row) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto y = static_cast<float>(x[i]);
    if (!std::isfinite(y))
      throw InvalidArgument(
          "rows must have a transform within the range of float, but that of row {} has {}",
          first_row + static_cast<std::int64_t>(i) / dim, x[i]);
    x[i] = y;
  }
}

// Rows [n x columns] that `run` makes of others, some at a time: it gets the number of the first,
// how many there are, and their numbers, which it replaces by the results.
template <class Run>
Matrix<float> made_by_tasks(AnyMatrixView rows, std::int64_t columns, int threads,
                            const Progress& progress, const Run& run, std::int64_t first_row) {
  threads = resolve_threads(threads);
  find_value_range(rows, Metric::l2, "rows", threads, first_row);
  Matrix<float> out(rows.rows(), columns);
  const std::int64_t tasks = (rows.rows() + rows_per_task - 1) / rows_per_task;
  Reporter reporter(progress, "transform", tasks);
  parallel_for(threads, tasks, [&](std::int64_t task) {
    const std::int64_t begin = task * rows_per_task,
                       end = std::min(rows.rows(), begin + rows_per_task);
    std::vector<double> x((end - begin) * rows.cols());
    load(rows.rows(begin, end), x.data());
    run(first_row + begin, end - begin, x);
    float* const to = out.row(begin);
    for (std::size_t i = 0; i < x.size(); ++i) to[i] = static_cast<float>(x[i]);
    reporter.add(1);
  });
  return out;
}

}  // namespace

Matrix<float> Transform::apply(AnyMatrixView rows, int threads, const Progress& progress,
                               std::int64_t first_row) const {
  return detail::public_call([&] {
    if (rows.cols() != dim_in())
      throw ShapeMismatch("rows have {} columns, the transform takes {}", rows.cols(), dim_in());
    const auto run = [&](std::int64_t first, std::int64_t n, std::vector<double>& x) {
      std::vector<double> y;
      for (const auto& step : steps_) {
        y.resize(n * step->dim_out);
        step->apply(n, x.data(), y.data());
        round_to_floats(y, step->dim_out, first);
        std::swap(x, y);
      }
    };
    return made_by_tasks(rows, dim_out(), threads, progress, run, first_row);
  });
}

Matrix<float> Transform::inverse(AnyMatrixView rows, int threads, const Progress& progress) const {
  return detail::public_call([&] {
    if (rows.cols() != dim_out())
      throw ShapeMismatch("rows have {} columns, the transform gives {}", rows.cols(), dim_out());
    const auto run = [&](std::int64_t first, std::int64_t n, std::vector<double>& y) {
      std::vector<double> x;
      for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
        x.resize(n * (*step)->dim_in);
        (*step)->invert(n, y.data(), x.data());
        round_to_floats(x, (*step)->dim_in, first);
        std::swap(x, y);
      }
    };
    return made_by_tasks(rows, dim_in(), threads, progress, run, 0);
  });
}

}  // namespace knear
