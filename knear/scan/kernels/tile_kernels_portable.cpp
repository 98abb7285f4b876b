// The tile kernels of the scalar level in plain C++, for processors that have no others for it. See
// tile_kernels.inl.
#include <stdint.h>

#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

#define KNEAR_TABLE scan_kernels_scalar
#define KNEAR_WIDTH 4
#define KNEAR_BLOCK 4

namespace knear::detail {
namespace {

typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));

// Sums wrap around modulo 2^32 (tile_kernels.hpp): unsigned, where that is defined.
static inline Ints add(Ints a, Ints b) { return (Ints)((Words)a + (Words)b); }
static inline Ints subtract(Ints a, Ints b) { return (Ints)((Words)a - (Words)b); }
static inline Words product(Ints a, Ints b) { return (Words)a * (Words)b; }

// Byte `byte` of each lane, and as a signed one; likewise for halves.
template <int byte>
static inline Ints byte_of(Ints x) {
  return (Ints)((Words)x >> (8 * byte) & 255u);
}
template <int byte>
static inline Ints signed_byte_of(Ints x) {
  return (Ints)((Words)x << (24 - 8 * byte)) >> 24;
}
static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  return (Ints)((Words)sum + product(byte_of<0>(rows), signed_byte_of<0>(query)) +
                product(byte_of<1>(rows), signed_byte_of<1>(query)) +
                product(byte_of<2>(rows), signed_byte_of<2>(query)) +
                product(byte_of<3>(rows), signed_byte_of<3>(query)));
}
static inline Ints lower_half_of(Ints x) { return (Ints)((Words)x << 16) >> 16; }
static inline Ints dot_int16(Ints sum, Ints rows, Ints query) {
  return (Ints)((Words)sum + product(lower_half_of(rows), lower_half_of(query)) +
                product(rows >> 16, query >> 16));
}
static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return sum + rows * query;
}
static inline uint32_t sign_bits(Ints x) {
  uint32_t bits = 0;
  for (int j = 0; j < KNEAR_WIDTH; ++j) bits |= static_cast<uint32_t>(x[j] < 0) << j;
  return bits;
}
// For NaN the comparisons are false.
static inline Doubles clamp(Doubles x, double low, double high) {
  const Doubles lowest = Doubles{} + low, highest = Doubles{} + high;
  const Doubles bounded = x > lowest ? x : lowest;
  return bounded < highest ? bounded : highest;
}
static inline Floats at_least(Floats x, float low) {
  const Floats lowest = Floats{} + low;
  return x > lowest ? x : lowest;
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/tile_kernels.inl"
