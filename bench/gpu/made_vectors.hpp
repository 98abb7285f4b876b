// bench/gpu/made_vectors.hpp -- vectors of many kinds, made on the processor, the same on every
// machine.
#pragma once
#include <cstdint>
#include <string_view>

#include "knear/core/matrix.hpp"

namespace knear::bench {

enum class VectorKind {
  uniform,    // [-1, 1)
  clustered,  // seven centres with a little noise around each
  sorted,     // rows that move steadily from one end to the other
  copies,     // forty rows, repeated
  sizes,      // lengths over six decades
  outlier,    // one row in 97 a thousand times as long as the others
  zeros,      // one row in five is zero
  alike       // far from zero and too near one another for 8-bit codes
};
inline constexpr VectorKind all_vector_kinds[] = {
    VectorKind::uniform, VectorKind::clustered, VectorKind::sorted, VectorKind::copies,
    VectorKind::sizes,   VectorKind::outlier,   VectorKind::zeros,  VectorKind::alike};
std::string_view name_of(VectorKind kind);

// [rows x dim]. u8 are magnitudes times 255, i8 values times 127; f16 have magnitudes in [1, 2).
AnyMatrix make_vectors(VectorKind kind, ElementType type, std::int64_t rows, std::int64_t dim,
                       std::uint64_t seed);

// [rows x dim] around 1000 centres: centres are normal with deviation 1 in each coordinate, rows
// around them with deviation 0.6, so that the neighbours of a row are in its cluster. The centres
// depend on `dim` alone: rows of another seed are queries from the same distribution. u8 are 30 +
// 45 x, rounded and clipped, so that a quarter is zero as in descriptors of pictures. Requires f32
// or u8.
AnyMatrix make_clusters(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed);

}  // namespace knear::bench
