// knear/transform/product_kernels.hpp -- the table behind products of matrices: plain pointers, one
// per level.
#pragma once
#include <cstdint>

namespace knear {
enum class Isa : std::uint8_t;  // core/cpu.hpp
}
namespace knear::detail {

// Element (r, i) of a factor lies at data[r * row + i * inner].
struct ProductFactor {
  const double* data;
  std::int64_t row, inner;
  ProductFactor at(std::int64_t r, std::int64_t i) const {
    return {data + r * row + i * inner, row, inner};
  }
};

// out[r * cols + c] += a(r, i) * b[i * b_stride + c] for i = 0, 1, ..., inner - 1, for some r and
// each c in [0, cols). Each product and each sum is rounded by itself, in this order, so that all
// levels give the same bits.
using AddProducts = void (*)(ProductFactor a, const double* b, std::int64_t b_stride,
                             std::int64_t inner, std::int64_t cols, double* out);

inline constexpr int product_rows = 4;
struct ProductKernels {
  AddProducts four_rows, one_row;
};

// Those that serve a level; one source for each kind of processor knows which there are.
const ProductKernels& product_kernels(Isa isa);

const ProductKernels& product_kernels_scalar();
const ProductKernels& product_kernels_avx2();
const ProductKernels& product_kernels_avx512();

}  // namespace knear::detail
