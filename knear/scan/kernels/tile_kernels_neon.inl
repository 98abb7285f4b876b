// What tile_kernels.inl needs of a 64-bit ARM, but for products of bytes: registers of 16 bytes,
// and instructions that take their second factor from a lane of a register, so that four queries
// are one load. The including file defines KNEAR_TABLE, and after this file's first part
//   Ints dot_int8(Ints sum, Ints rows, Ints query)
//   Ints dot_int8_by<lane>(Ints sum, Ints rows, Ints queries)
//
// 12 queries and 8 rows are 24 accumulators; 2 registers of rows and 3 of queries make 29 of the 32
// that there are.
#include <arm_neon.h>
#include <stdint.h>

#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

#define KNEAR_WIDTH 4
#define KNEAR_BLOCK 12
#define KNEAR_BY_LANES

namespace knear::detail {
namespace {

typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));

// Sums wrap around modulo 2^32 (tile_kernels.hpp): unsigned, where that is defined.
static inline Ints add(Ints a, Ints b) { return (Ints)((Words)a + (Words)b); }
static inline Ints subtract(Ints a, Ints b) { return (Ints)((Words)a - (Words)b); }

template <int lane>
static inline Ints lane_of(Ints x) {
  return (Ints)vdupq_laneq_s32((int32x4_t)x, lane);
}

static inline Ints dot_int16(Ints sum, Ints rows, Ints query) {
  const int16x8_t y = (int16x8_t)rows, x = (int16x8_t)query;
  const int32x4_t low = vmull_s16(vget_low_s16(y), vget_low_s16(x)), high = vmull_high_s16(y, x);
  return add(sum, (Ints)vpaddq_s32(low, high));
}
template <int lane>
static inline Ints dot_int16_by(Ints sum, Ints rows, Ints queries) {
  return dot_int16(sum, rows, lane_of<lane>(queries));
}
static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)rows, (float32x4_t)query);
}
template <int lane>
static inline Floats multiply_add_by(Floats sum, Floats rows, Floats queries) {
  return (Floats)vfmaq_laneq_f32((float32x4_t)sum, (float32x4_t)rows, (float32x4_t)queries, lane);
}
static inline uint32_t sign_bits(Ints x) {
  const int32x4_t places = {0, 1, 2, 3};
  return vaddvq_u32(vshlq_u32(vshrq_n_u32((uint32x4_t)x, 31), places));
}
// Of a number and NaN these instructions return the number.
static inline Doubles clamp(Doubles x, double low, double high) {
  return (Doubles)vminnmq_f64(vmaxnmq_f64((float64x2_t)x, vdupq_n_f64(low)), vdupq_n_f64(high));
}
static inline Floats at_least(Floats x, float low) {
  return (Floats)vmaxnmq_f32((float32x4_t)x, vdupq_n_f32(low));
}

}  // namespace
}  // namespace knear::detail
