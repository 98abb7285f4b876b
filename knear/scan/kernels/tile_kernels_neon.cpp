// The tile kernels for what every 64-bit ARM has. See tile_kernels.inl.
#define KNEAR_TABLE scan_kernels_neon
#define KNEAR_SIGNED_ROWS
#include "knear/scan/kernels/tile_kernels_neon.inl"

namespace knear::detail {
namespace {

// Products of two signed bytes fit 16 bits, but not each sum of two (twice 128 * 128): pairs are
// added as they are widened.
static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  const int8x16_t y = (int8x16_t)rows, x = (int8x16_t)query;
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(y), vget_low_s8(x))),
                  high = vpaddlq_s16(vmull_high_s8(y, x));
  return add(sum, (Ints)vpaddq_s32(low, high));
}
template <int lane>
static inline Ints dot_int8_by(Ints sum, Ints rows, Ints queries) {
  return dot_int8(sum, rows, lane_of<lane>(queries));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/tile_kernels.inl"
