// Quantise, then rotate towards the result, in turn.
#include "knear/quantize/opq.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/quantize/product_quantizer.hpp"
#include "knear/transform/orthonormal.hpp"
#include "knear/transform/product.hpp"

namespace knear {
namespace {

// Moves each centroid to the middle of the rows that have it, and puts the centroid of each part in
// the place of that part of a row. Centroids without rows stay. Returns the sum of the squared
// distances of rows to what they become.
double quantize(const ProductQuantizer& pq, MatrixView<float> rows, int threads,
                const Progress& progress, Matrix<float>& centroids, Matrix<float>& became) {
  const Matrix<std::uint8_t> codes = pq.encode(rows, threads, progress);
  const std::int64_t parts = pq.sub_quantizers(), count = std::int64_t{1} << pq.bits(),
                     width = pq.dim() / parts;
  std::vector<double> errors(parts);
  parallel_for(threads, parts, [&](std::int64_t m) {
    const auto code = [&](std::int64_t i) -> std::int64_t {
      const std::uint8_t* row = codes.row(i);
      return pq.bits() == 8 ? row[m] : row[m / 2] >> (m % 2 * 4) & 15;
    };
    Matrix<double> sums(count, width);
    std::vector<std::int64_t> sizes(count);
    for (std::int64_t i = 0; i < rows.rows(); ++i) {
      const std::int64_t c = code(i);
      ++sizes[c];
      for (std::int64_t j = 0; j < width; ++j) sums.row(c)[j] += rows.row(i)[m * width + j];
    }
    for (std::int64_t c = 0; c < count; ++c) {
      const auto size = static_cast<double>(sizes[c]);
      if (size == 0) continue;
      for (std::int64_t j = 0; j < width; ++j)
        centroids.row(m * count + c)[j] = static_cast<float>(sums.row(c)[j] / size);
    }
    double error = 0;
    for (std::int64_t i = 0; i < rows.rows(); ++i) {
      const float* centroid = centroids.row(m * count + code(i));
      for (std::int64_t j = 0; j < width; ++j) {
        const double off = double{rows.row(i)[m * width + j]} - double{centroid[j]};
        error += off * off;
        became.row(i)[m * width + j] = centroid[j];
      }
    }
    errors[m] = error;
  });
  double out = 0;
  for (const double error : errors) out += error;
  return out;
}

// out = a^T b, of floats [n x p] and [n x q].
Matrix<double> product(MatrixView<float> a, MatrixView<float> b, int threads) {
  constexpr std::int64_t block = 4096;
  const auto widen = [&](MatrixView<float> from, std::int64_t begin, Matrix<double>& to) {
    const std::int64_t end = std::min(from.rows(), begin + block);
    parallel_for(threads, (end - begin + 255) / 256, [&](std::int64_t task) {
      for (std::int64_t i = task * 256; i < std::min(end - begin, (task + 1) * 256); ++i)
        std::copy_n(from.row(begin + i), from.cols(), to.row(i));
    });
    return to.view().rows(0, end - begin);
  };
  Matrix<double> out(a.cols(), b.cols()), part(a.cols(), b.cols()), x(block, a.cols()),
      y(block, b.cols());
  for (std::int64_t begin = 0; begin < a.rows(); begin += block) {
    multiply_transposed(widen(a, begin, x), widen(b, begin, y), part, threads);
    for (std::int64_t i = 0; i < a.cols() * b.cols(); ++i) out.data()[i] += part.data()[i];
  }
  return out;
}

Matrix<float> nearest_rotation(const Matrix<double>& matrix, int threads) {
  const Matrix<double> turn = detail::nearest_orthonormal(matrix.view(), threads);
  Matrix<float> out(turn.rows(), turn.cols());
  for (std::int64_t i = 0; i < turn.rows() * turn.cols(); ++i)
    out.data()[i] = static_cast<float>(turn.data()[i]);
  return out;
}

Transform identity(std::int64_t dim) {
  Matrix<float> out(dim, dim);
  for (std::int64_t i = 0; i < dim; ++i) out.row(i)[i] = 1;
  return Transform::linear(out.view());
}

}  // namespace

Transform train_opq(AnyMatrixView rows, std::int64_t sub_quantizers, const OpqOptions& options) {
  return detail::public_call([&] {
    const std::int64_t dim_out = options.dim_out == 0 ? rows.cols() : options.dim_out;
    if (dim_out < 1 || dim_out > rows.cols())
      throw InvalidArgument("dim_out must be from 1 to {}, the columns, but is {}", rows.cols(),
                            options.dim_out);
    if (sub_quantizers < 1 || dim_out % sub_quantizers != 0)
      throw InvalidArgument("sub_quantizers must divide the columns, which are {}, but is {}",
                            dim_out, sub_quantizers);
    if (options.iterations < 0)
      throw InvalidArgument("iterations must not be negative, but is {}", options.iterations);
    if (options.bits != 4 && options.bits != 8)
      throw InvalidArgument("bits must be 4 or 8, but is {}", options.bits);
    const std::int64_t count = std::int64_t{1} << options.bits;
    if (rows.rows() < count)
      throw InvalidArgument("rows are {}, but {} bits take {} at least", rows.rows(), options.bits,
                            count);
    if (options.most_rows < 0 || (options.most_rows > 0 && options.most_rows < count))
      throw InvalidArgument("most_rows must be 0 or at least {}, but is {}", count,
                            options.most_rows);
    const int threads = resolve_threads(options.threads);
    AnyMatrix sample;
    rows = detail::sampled_rows(rows, options.most_rows, options.seed, sample);
    // The start counts as five steps.
    const auto step = [&](int done) -> Progress {
      if (!options.progress) return {};
      return [&options, done](std::string_view, double fraction) {
        return options.progress("train rotation", (done + fraction) / (5 + options.iterations));
      };
    };
    const Matrix<float> centred = Transform::centring(rows, threads).apply(rows, threads, step(0));
    const auto turned = [&](const Transform& turn) { return turn.apply(centred.view(), threads); };
    const auto quantizer = [&](const Transform& turn, int done) {
      ProductQuantizerOptions each{.iterations = 10, .seed = options.seed, .most_rows = 0};
      each.threads = threads, each.progress = step(done);
      return ProductQuantizer::train(turned(turn).view(), sub_quantizers, options.bits, each);
    };
    Matrix<float> centroids(sub_quantizers * count, dim_out / sub_quantizers),
        became(rows.rows(), dim_out);
    const auto error_of = [&](const Transform& turn, const ProductQuantizer& pq,
                              const Progress& progress = {}) {
      return quantize(pq, turned(turn).view(), threads, progress, centroids, became);
    };
    // It begins where a quantiser loses less: with balanced components, or with the columns as they
    // are, of which those of a part may be alike already (the cells of SIFT are).
    PcaOptions components{.balance_over = sub_quantizers, .most_rows = 0, .threads = threads};
    components.progress = step(1);
    Transform turn = Transform::linear(
        Transform::pca(centred.view(), dim_out, components).steps().back().matrix);
    ProductQuantizer pq = quantizer(turn, 2);
    if (dim_out == rows.cols()) {
      const Transform same = identity(dim_out);
      const ProductQuantizer other = quantizer(same, 3);
      if (error_of(same, other) < error_of(turn, pq)) turn = same, pq = other;
    }
    error_of(turn, pq, step(4));
    for (int iteration = 0; iteration < options.iterations; ++iteration) {
      turn = Transform::linear(
          nearest_rotation(product(became.view(), centred.view(), threads), threads).view());
      pq = ProductQuantizer::from_centroids(centroids.view(), sub_quantizers, options.bits);
      error_of(turn, pq, step(5 + iteration));
    }
    return turn;
  });
}

}  // namespace knear
