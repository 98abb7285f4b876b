// knear/distance/exact_kernels.hpp -- the table behind ExactDistance: plain pointers, one per
// level.
#pragma once
#include <cstdint>

namespace knear::detail {

// sums[0] = sum (x_i - y_i)^2 or sum x_i y_i; for `product_and_squares` also sums[1] = sum y_i^2.
// x: doubles padded with zeros to a multiple of 16. Order of the sums: distance/reference.hpp.
using ExactSums = void (*)(const double* x, const void* row, std::int64_t dim, double* sums);

struct ExactKernels {
  ExactSums l2[5], product[5], product_and_squares[5];  // by ElementType
};

const ExactKernels& exact_kernels_scalar();
const ExactKernels& exact_kernels_avx2();
const ExactKernels& exact_kernels_avx512();

}  // namespace knear::detail
