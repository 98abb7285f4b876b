// Distances of 8-bit codes for what every 64-bit ARM has. See row_code_kernels.inl.
#include <arm_neon.h>
#include <stdint.h>

#include "knear/scan/kernels/row_code_kernels.hpp"

#define KNEAR_DISTANCES row_code_distances_neon
#define KNEAR_WIDTH 16

namespace knear::detail {
namespace {

typedef int Sums __attribute__((vector_size(16)));

static inline Sums add_squares(Sums sums, const int16_t* a, const uint8_t* b) {
  const uint8x16_t row = vld1q_u8(b);
  const int16x8_t low = (int16x8_t)vsubw_u8((uint16x8_t)vld1q_s16(a), vget_low_u8(row)),
                  high = (int16x8_t)vsubw_high_u8((uint16x8_t)vld1q_s16(a + 8), row);
  int32x4_t s = (int32x4_t)sums;
  s = vmlal_s16(s, vget_low_s16(low), vget_low_s16(low));
  s = vmlal_high_s16(s, low, low);
  s = vmlal_s16(s, vget_low_s16(high), vget_low_s16(high));
  return (Sums)vmlal_high_s16(s, high, high);
}
static inline void add_up(const Sums* four, uint32_t* out) {
  const uint32x4_t ab = vpaddq_u32((uint32x4_t)four[0], (uint32x4_t)four[1]),
                   cd = vpaddq_u32((uint32x4_t)four[2], (uint32x4_t)four[3]);
  vst1q_u32(out, vpaddq_u32(ab, cd));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/row_code_kernels.inl"
