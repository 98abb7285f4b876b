// Which loops time which level of an x86-64.
#include "knear/core/cpu.hpp"
#include "knear/cost/peak_loops.hpp"

namespace knear::detail {
namespace {

PeakLoops loops_of(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return peak_loops_avx2();
    case Isa::avx512:
      return peak_loops_avx512();
    case Isa::avx512_vnni:
      return peak_loops_avx512_vnni();
    case Isa::avx512_amx:
      return peak_loops_avx512_amx();
    default:
      return peak_loops_scalar();
  }
}

}  // namespace

PeakLoops peak_loops(Isa isa) {
  PeakLoops loops = loops_of(isa);
  if (has_byte_products(isa) && has_bf16_products()) loops.bf16 = peak_loop_bf16();
  return loops;
}

}  // namespace knear::detail
