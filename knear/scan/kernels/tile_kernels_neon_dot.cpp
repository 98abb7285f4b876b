// The tile kernels for 64-bit ARM with SDOT: four products of signed bytes, added to a lane by one
// instruction. See tile_kernels.inl.
#define KNEAR_TABLE scan_kernels_neon_dot
#define KNEAR_SIGNED_ROWS
#include "knear/scan/kernels/tile_kernels_neon.inl"

namespace knear::detail {
namespace {

static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)rows, (int8x16_t)query);
}
template <int lane>
static inline Ints dot_int8_by(Ints sum, Ints rows, Ints queries) {
  return (Ints)vdotq_laneq_s32((int32x4_t)sum, (int8x16_t)rows, (int8x16_t)queries, lane);
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/tile_kernels.inl"
