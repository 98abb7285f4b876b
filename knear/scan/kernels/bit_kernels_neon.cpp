// Differing bits for 64-bit ARM. See bit_kernels.inl.
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "knear/scan/kernels/bit_kernels.hpp"

#define KNEAR_TABLE bit_kernels_neon
#define KNEAR_ADDS_BYTES 1

namespace knear::detail {
namespace {

constexpr int64_t lanes = 2;
using Words = uint64x2_t;

static inline Words differing(const uint64_t* rows, uint64_t word) {
  return veorq_u64(vld1q_u64(rows), vdupq_n_u64(word));
}
static inline Words bits_of(Words x) {
  return vreinterpretq_u64_u8(vcntq_u8(vreinterpretq_u8_u64(x)));
}
static inline Words plus_bytes(Words a, Words b) {
  return vreinterpretq_u64_u8(vaddq_u8(vreinterpretq_u8_u64(a), vreinterpretq_u8_u64(b)));
}
static inline Words totals(Words bytes) {
  return vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(vreinterpretq_u8_u64(bytes))));
}
static inline Words plus(Words a, Words b) { return vaddq_u64(a, b); }
static inline int64_t keep_near(Words bits, uint64_t limit, uint32_t first, BitHit* out) {
  const uint64_t low = vgetq_lane_u64(bits, 0), high = vgetq_lane_u64(bits, 1);
  int64_t found = 0;
  if (low <= limit) out[found++] = {first, (uint32_t)low};
  if (high <= limit) out[found++] = {first + 1, (uint32_t)high};
  return found;
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/bit_kernels.inl"
