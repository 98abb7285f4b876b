// knear/transform/product_kernels.inl -- products of matrices, written once and compiled for each
// level: KNEAR_BYTES is the width of a vector register, KNEAR_REGISTERS how many of them hold the
// sums of one row of four, KNEAR_TABLE the table to define. No library code inside: an inline
// function of this file must not be merged by the linker with another level's.
//
// At AVX-512, 16 sums: a multiplication and an addition of each for four loads of b and four
// broadcasts of a.
#include <stdint.h>

#include "knear/transform/product_kernels.hpp"

namespace knear::detail {
namespace {

constexpr int lanes = KNEAR_BYTES / 8;
typedef double Doubles __attribute__((vector_size(KNEAR_BYTES)));

static inline Doubles load(const double* p) {
  Doubles v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// `wide` registers of columns of `rows` rows.
template <int rows, int wide>
static inline void add_columns(ProductFactor a, const double* b, int64_t b_stride, int64_t inner,
                               int64_t cols, double* out) {
  Doubles sum[rows][wide];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < wide; ++j) sum[r][j] = load(out + r * cols + j * lanes);
  const double* x = a.data;
  for (int64_t i = 0; i < inner; ++i, b += b_stride, x += a.inner) {
#pragma GCC unroll 8
    for (int j = 0; j < wide; ++j) {
      const Doubles y = load(b + j * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) sum[r][j] += x[r * a.row] * y;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < wide; ++j)
      __builtin_memcpy(out + r * cols + j * lanes, &sum[r][j], sizeof(Doubles));
}

template <int rows, int wide>
static void add_products(ProductFactor a, const double* b, int64_t b_stride, int64_t inner,
                         int64_t cols, double* out) {
  int64_t c = 0;
  for (; c + wide * lanes <= cols; c += wide * lanes)
    add_columns<rows, wide>(a, b + c, b_stride, inner, cols, out + c);
  for (; c + lanes <= cols; c += lanes)
    add_columns<rows, 1>(a, b + c, b_stride, inner, cols, out + c);
  for (; c < cols; ++c)
    for (int r = 0; r < rows; ++r) {
      double sum = out[r * cols + c];
      for (int64_t i = 0; i < inner; ++i)
        sum += a.data[r * a.row + i * a.inner] * b[i * b_stride + c];
      out[r * cols + c] = sum;
    }
}

}  // namespace

const ProductKernels& KNEAR_TABLE() {
  static constexpr ProductKernels table = {add_products<product_rows, KNEAR_REGISTERS>,
                                           add_products<1, 2 * KNEAR_REGISTERS>};
  return table;
}

}  // namespace knear::detail
