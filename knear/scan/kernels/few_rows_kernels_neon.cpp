// The kernels for few rows for what every 64-bit ARM has. See few_rows_kernels.inl.
#include <arm_neon.h>
#include <stdint.h>

#include "knear/scan/kernels/few_rows_kernels.hpp"

#define KNEAR_TABLE few_rows_kernels_neon
#define KNEAR_WIDTH 4
#define KNEAR_CHUNK 16

namespace knear::detail {
namespace {

typedef float Floats __attribute__((vector_size(16)));

static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)rows, (float32x4_t)query);
}
static inline Floats smaller(Floats a, Floats b) {
  return (Floats)vminnmq_f32((float32x4_t)a, (float32x4_t)b);
}
static inline Floats least(Floats x) { return (Floats)vdupq_n_f32(vminnmvq_f32((float32x4_t)x)); }
static inline uint32_t not_above(Floats x, Floats limit) {
  const int32x4_t places = {0, 1, 2, 3};
  const uint32x4_t above = vcgtq_f32((float32x4_t)x, (float32x4_t)limit);
  return vaddvq_u32(vshlq_u32(vaddq_u32(above, vdupq_n_u32(1)), places));
}
// All ones for each of sixteen rows that is above.
static inline uint8x16_t sixteen_above(const Floats* x, float32x4_t limit) {
  const uint16x8_t low = vuzp1q_u16((uint16x8_t)vcgtq_f32((float32x4_t)x[0], limit),
                                    (uint16x8_t)vcgtq_f32((float32x4_t)x[1], limit));
  const uint16x8_t high = vuzp1q_u16((uint16x8_t)vcgtq_f32((float32x4_t)x[2], limit),
                                     (uint16x8_t)vcgtq_f32((float32x4_t)x[3], limit));
  return vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
}
static inline uint64_t sixty_four(const Floats* x, Floats limit) {
  const float32x4_t limits = (float32x4_t)limit;
  const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const auto bits = [&](int v) { return vbicq_u8(bit, sixteen_above(x + v, limits)); };
  const uint8x16_t half = vpaddq_u8(vpaddq_u8(bits(0), bits(4)), vpaddq_u8(bits(8), bits(12)));
  return vgetq_lane_u64((uint64x2_t)vpaddq_u8(half, half), 0);
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
