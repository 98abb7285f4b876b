#include "knear/transform/product.hpp"

#include <algorithm>

#include "knear/core/cpu.hpp"
#include "knear/core/threads.hpp"
#include "knear/transform/product_kernels.hpp"

namespace knear {
namespace {

using detail::product_rows;
using detail::ProductFactor;
using detail::ProductKernels;

// Rows of `out` made at a time, and products of a sum: 64 x 32 of b fit the first cache.
constexpr std::int64_t block_rows = 64, block_inner = 64;

// The elements of a row of a^T lie far apart, often at multiples of a large power of two: they are
// brought together, four rows side by side.
void pack(const ProductFactor& a, std::int64_t rows, std::int64_t count, double* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double* from = a.data + i * a.inner;
    double* to = out + i * product_rows;
    std::int64_t r = 0;
    for (; r + product_rows <= rows; r += product_rows)
      std::copy_n(from + r, product_rows, to + r * block_inner);
    std::copy_n(from + r, rows - r, to + r * block_inner);
  }
}

// `rows` rows of the product, up to block_rows.
void multiply_block(const ProductKernels& kernels, const ProductFactor& a, std::int64_t rows,
                    MatrixView<double> b, double* out) {
  const std::int64_t cols = b.cols(), inner = b.rows();
  alignas(64) double packed[block_rows * block_inner];
  std::fill(out, out + rows * cols, 0.0);
  for (std::int64_t begin = 0; begin < inner; begin += block_inner) {
    const std::int64_t count = std::min(block_inner, inner - begin);
    const bool apart = a.inner != 1;
    if (apart) pack(a.at(0, begin), rows, count, packed);
    const auto factor = [&](std::int64_t r) {
      if (!apart) return a.at(r, begin);
      const std::int64_t first = r / product_rows * product_rows;
      return ProductFactor{packed + first * block_inner + (r - first), 1, product_rows};
    };
    std::int64_t r = 0;
    for (; r + product_rows <= rows; r += product_rows)
      kernels.four_rows(factor(r), b.row(begin), b.stride(), count, cols, out + r * cols);
    for (; r < rows; ++r)
      kernels.one_row(factor(r), b.row(begin), b.stride(), count, cols, out + r * cols);
  }
}

void multiply_by_blocks(const ProductFactor& a, std::int64_t rows, MatrixView<double> b,
                        double* out, int threads) {
  const ProductKernels& kernels = detail::product_kernels(active_isa());
  parallel_for(threads, (rows + block_rows - 1) / block_rows, [&](std::int64_t task) {
    const std::int64_t begin = task * block_rows;
    multiply_block(kernels, a.at(begin, 0), std::min(block_rows, rows - begin), b,
                   out + begin * b.cols());
  });
}

}  // namespace

void multiply(MatrixView<double> a, MatrixView<double> b, Matrix<double>& out, int threads) {
  multiply_by_blocks({a.data(), a.stride(), 1}, a.rows(), b, out.data(), threads);
}

void multiply_transposed(MatrixView<double> a, MatrixView<double> b, Matrix<double>& out,
                         int threads) {
  multiply_by_blocks({a.data(), 1, a.stride()}, a.cols(), b, out.data(), threads);
}

void detail::multiply_on_host(MatrixView<double> a, MatrixView<double> b, double* out) {
  const ProductKernels& kernels = detail::product_kernels(active_isa());
  for (std::int64_t begin = 0; begin < a.rows(); begin += block_rows)
    multiply_block(kernels, {a.row(begin), a.stride(), 1}, std::min(block_rows, a.rows() - begin),
                   b, out + begin * b.cols());
}

}  // namespace knear
