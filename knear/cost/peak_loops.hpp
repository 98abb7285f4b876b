// knear/cost/peak_loops.hpp -- the timed loops of one instruction-set level.
//
// Plain pointers and numbers only: each level's loops are compiled with that level's flags, and no
// inline code of the standard library may be compiled with them (the linker could keep that copy
// for everybody, and an older processor would then meet instructions that it lacks).
#pragma once
#include <cstdint>

namespace knear {
enum class Isa : std::uint8_t;  // core/cpu.hpp
}
namespace knear::detail {

// Aggregates without default values have no constructor, which would be such inline code.
struct PeakLoop {
  void (*run)(long rounds);  // rounds >= 1
  double operations;         // per round
};

struct PeakLoops {
  PeakLoop fp32, int16, int8, cop;
  // Reads `bytes` (a multiple of read_granule) from 64-byte aligned memory once.
  void (*read)(const void* data, long bytes);
  // As read, but fetches 4 KiB ahead, which pays beyond the second-level cache.
  void (*read_ahead)(const void* data, long bytes);
  PeakLoop bf16;  // without a function where the processor has no such products
};

inline constexpr long read_granule = 4096;

// Data for the operands: neither zeros nor equal lanes, for which a processor may use less power
// and clock higher. Bytes in [-61, 61] (also as the parts of int16); floats in +-[0.5, 1).
extern const signed char peak_integers[64];
extern const float peak_floats[16];
extern const unsigned short peak_bf16[32];

// Those of a level; one source for each kind of processor knows which there are.
PeakLoops peak_loops(Isa isa);

PeakLoops peak_loops_scalar();
PeakLoops peak_loops_avx2();
PeakLoops peak_loops_avx512();
PeakLoops peak_loops_avx512_vnni();
PeakLoops peak_loops_avx512_amx();
PeakLoops peak_loops_neon();
PeakLoops peak_loops_neon_dot();
PeakLoops peak_loops_neon_i8mm();
PeakLoop peak_loop_bf16();  // needs AVX512_BF16

}  // namespace knear::detail
