// The loops of a 64-bit ARM with products of matrices of bytes: eight products to a lane are one
// instruction.
#include "knear/cost/peak_loops_neon.inl"

namespace knear::detail {
namespace {

void int8(long rounds) {
  const signed char* data = peak_integers;
  LOOP("usmmla v\\r\\().4s,v30.16b,v31.16b\n");
}

}  // namespace

PeakLoops peak_loops_neon_i8mm() {
  PeakLoops loops = peak_loops_neon();
  loops.int8 = {int8, 2 * 8 * lanes * sums};
  return loops;
}

}  // namespace knear::detail
