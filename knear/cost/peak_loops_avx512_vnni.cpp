// The loops of the AVX-512 level with VNNI: an integer multiply-add is one instruction.
#include "knear/cost/peak_loops_avx512.inl"

namespace knear::detail {
namespace {

void int16(long rounds) {
  const signed char* data = peak_integers;
  LOOP("", "vpdpwssd %%zmm30,%%zmm31,%%zmm\\r\n");
}

void int8(long rounds) {
  const signed char* data = peak_integers;
  LOOP("", "vpdpbusd %%zmm30,%%zmm31,%%zmm\\r\n");
}

}  // namespace

PeakLoops peak_loops_avx512_vnni() {
  PeakLoops loops = peak_loops_avx512();
  loops.int16 = {int16, 2 * 2 * lanes * sums};
  loops.int8 = {int8, 2 * 4 * lanes * sums};
  return loops;
}

}  // namespace knear::detail
