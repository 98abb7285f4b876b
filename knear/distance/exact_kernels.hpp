// knear/distance/exact_kernels.hpp -- the table behind ExactDistance: plain pointers, one per
// level.
#pragma once
#include <cstdint>

namespace knear::detail {

// sums[0] = sum (x_i - y_i)^2 or sum x_i y_i; for `product_and_squares` also sums[1] = sum y_i^2.
// x: doubles padded with zeros to a multiple of 16. Order of the sums: distance/reference.hpp.
using ExactSums = void (*)(const double* x, const void* row, std::int64_t dim, double* sums);

// The same from exact_group queries at once, which lie one after the other in x, each padded; sums
// has one of each query, then for `product_and_squares` that of y_i^2.
inline constexpr int exact_group = 4;

struct ExactKernels {
  // By how many queries, one or exact_group, then by ElementType.
  ExactSums l2[2][5], product[2][5], product_and_squares[2][5];
};

const ExactKernels& exact_kernels_scalar();
const ExactKernels& exact_kernels_avx2();
const ExactKernels& exact_kernels_avx512();

}  // namespace knear::detail
