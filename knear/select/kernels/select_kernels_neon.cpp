// The loops of select_k for what every 64-bit ARM has. See select_kernels.inl.
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "knear/select/kernels/select_kernels.hpp"

#define KNEAR_TABLE select_kernels_neon

namespace knear::detail {
namespace {

static inline uint32_t at_most(const float* p, uint32_t flip, float bound) {
  const uint32x4_t sign = vdupq_n_u32(flip);
  const float32x4_t bounds = vdupq_n_f32(bound);
  const auto four = [&](const float* from) {
    return (uint16x8_t)vcleq_f32((float32x4_t)veorq_u32((uint32x4_t)vld1q_f32(from), sign), bounds);
  };
  const uint16x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
  return vaddvq_u16(vandq_u16(vuzp1q_u16(four(p), four(p + 4)), bit));
}

}  // namespace
}  // namespace knear::detail

#include "knear/select/kernels/select_loops.inl"
// Included after the loops that it calls.
#include "knear/select/kernels/select_kernels.inl"
