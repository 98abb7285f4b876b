// Which loops time which level of a 64-bit ARM.
#include "knear/core/cpu.hpp"
#include "knear/cost/peak_loops.hpp"

namespace knear::detail {

PeakLoops peak_loops(Isa isa) {
  switch (isa) {
    case Isa::neon:
      return peak_loops_neon();
    case Isa::neon_dot:
      return peak_loops_neon_dot();
    case Isa::neon_i8mm:
      return peak_loops_neon_i8mm();
    default:
      return peak_loops_scalar();
  }
}

}  // namespace knear::detail
