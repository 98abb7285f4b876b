// Estimates of links for what every 64-bit ARM has. See link_code_kernels.hpp.
#include <arm_neon.h>
#include <stdint.h>

#include "knear/scan/kernels/link_code_kernels.hpp"

namespace knear::detail {
namespace {

static inline float32x4_t upper_halves(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

}  // namespace

uint32_t links_below_neon(const LinkBlock& block, const LinkQuery& query, float limit) {
  const uint8x16_t half = vdupq_n_u8(15);
  const uint8_t* const signs = block.signs();
  uint32x4_t sums[8] = {};
  // After this many bytes a sum of 16 bits could overflow.
  constexpr int64_t most = 16 * 256;
  for (int64_t begin = 0; begin < query.columns * 4; begin += most) {
    const int64_t end = begin + most < query.columns * 4 ? begin + most : query.columns * 4;
    uint16x8_t some[4] = {};
    for (int64_t b = begin; b < end; b += 16) {
      const uint8x16_t bits = vld1q_u8(signs + b), table = vld1q_u8(query.tables + b);
      const uint8x16_t low = vqtbl1q_u8(table, vandq_u8(bits, half)),
                       high = vqtbl1q_u8(table, vshrq_n_u8(bits, 4));
      some[0] = vaddw_u8(some[0], vget_low_u8(low));
      some[1] = vaddw_high_u8(some[1], low);
      some[2] = vaddw_u8(some[2], vget_low_u8(high));
      some[3] = vaddw_high_u8(some[3], high);
    }
    for (int i = 0; i < 4; ++i) {
      sums[2 * i] = vaddw_u16(sums[2 * i], vget_low_u16(some[i]));
      sums[2 * i + 1] = vaddw_high_u16(sums[2 * i + 1], some[i]);
    }
  }
  const int32x4_t offset = vdupq_n_s32(query.offset);
  const float32x4_t scale = vdupq_n_f32(query.scale), limits = vdupq_n_f32(limit);
  const uint32x4_t bits = {1, 2, 4, 8};
  uint32_t below = 0;
  for (int i = 0; i < 8; ++i) {
    const int32x4_t whole = vaddq_s32(vreinterpretq_s32_u32(vshlq_n_u32(sums[i], 1)), offset);
    const float32x4_t sum = vmulq_f32(scale, vcvtq_f32_s32(whole));
    const float32x4_t estimate = vsubq_f32(upper_halves(block.bases + 4 * i),
                                           vmulq_f32(upper_halves(block.slopes + 4 * i), sum));
    below |= vaddvq_u32(vandq_u32(vcltq_f32(estimate, limits), bits)) << (4 * i);
  }
  return below;
}

}  // namespace knear::detail
