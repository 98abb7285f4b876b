// The loop of AVX512_BF16, which only some processors with VNNI have.
#include "knear/cost/peak_loops_avx512.inl"

namespace knear::detail {
namespace {

void bf16(long rounds) {
  const unsigned short* data = peak_bf16;
  LOOP("", "vdpbf16ps %%zmm30,%%zmm31,%%zmm\\r\n");
}

}  // namespace

PeakLoop peak_loop_bf16() { return {bf16, 2 * 2 * lanes * sums}; }

}  // namespace knear::detail
