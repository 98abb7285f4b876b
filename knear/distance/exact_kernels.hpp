// knear/distance/exact_kernels.hpp -- the table of kernels behind ExactDistance, one per level;
// plain pointers only.
#pragma once
#include <cstdint>

namespace knear {
enum class Isa : std::uint8_t;  // core/cpu.hpp
}
namespace knear::detail {

// Pairs of a few queries and a few rows at once: sums[q * rows + r] = sum (x_i - y_i)^2 or sum x_i
// y_i or sum |x_i - y_i|; for `product_and_squares` then sums[queries * rows + r] = sum y_i^2. x:
// doubles, each query padded with zeros to a multiple of 16; for `bits` the bytes of each query, as
// far apart as doubles would be, and the sums count bits of x_i xor y_i. distance/reference.hpp
// defines the order of the sums.
using ExactSums = void (*)(const double* x, const void* const* rows, std::int64_t dim,
                           double* sums);

// `dim` elements as doubles, exactly.
using ToDoubles = void (*)(const void* from, std::int64_t dim, double* out);

inline constexpr int exact_group = 4, exact_types = 6;
enum ExactShape { one_to_one, group_to_one, one_to_group, exact_shape_count };

struct ExactKernels {
  // Indexed by queries and rows, then by ElementType.
  ExactSums l2[exact_shape_count][exact_types], product[exact_shape_count][exact_types],
      product_and_squares[exact_shape_count][exact_types], l1[exact_shape_count][exact_types];
  ExactSums bits[exact_shape_count];  // of rows of u8
  ToDoubles to_doubles[exact_types];
};

// Those that serve a level; one source for each kind of processor knows which there are.
const ExactKernels& exact_kernels(Isa isa);

const ExactKernels& exact_kernels_scalar();
const ExactKernels& exact_kernels_avx2();
const ExactKernels& exact_kernels_avx512();

}  // namespace knear::detail
