// knear/core/cpu.hpp -- which instructions this processor has, which level knear uses, how much
// memory there is.
//
// A level names one set of compiled kernels; each includes those before it of the same processor.
// Exact results do not depend on the level, nor on the processor. The environment variable
// KNEAR_ISA=scalar|avx2|avx512|avx512_vnni|avx512_amx (x86-64) or scalar|neon|neon_dot|neon_i8mm
// (64-bit ARM) forces a lower one, which is how the tests run them all.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace knear {

enum class Isa : std::uint8_t {
  scalar,       // what every processor has: SSE2 on x86-64, plain C++ on 64-bit ARM
  avx2,         // AVX2, FMA, F16C
  avx512,       // AVX-512 F, BW, DQ, VL
  avx512_vnni,  // AVX-512 VNNI: int8 at four times, int16 at twice the rate of fp32
  avx512_amx,   // and tiles of bytes (AMX): int8 of twelve queries or more at up to 32 times
  neon,         // ARMv8.0: Advanced SIMD, which every 64-bit ARM has
  neon_dot,     // and SDOT, UDOT: int8 at four times the rate of fp32
  neon_i8mm     // and USMMLA, USDOT: int8 of twelve queries or more at eight times
};

// Every level, lowest first.
inline constexpr Isa all_isas[] = {Isa::scalar,     Isa::avx2, Isa::avx512,   Isa::avx512_vnni,
                                   Isa::avx512_amx, Isa::neon, Isa::neon_dot, Isa::neon_i8mm};

std::string_view name_of(Isa isa);

// Whether the level adds up products of bytes by an instruction of its own, so that int8 is the
// fastest format.
constexpr bool has_byte_products(Isa isa) {
  return isa == Isa::avx512_vnni || isa == Isa::avx512_amx || isa == Isa::neon_dot ||
         isa == Isa::neon_i8mm;
}

// Bytes of memory that this machine has.
std::int64_t machine_memory();

// Bytes of a cache that belongs to one core (first and second level) or is shared (third); 0 where
// the system does not say.
std::int64_t cache_bytes(int level);

// The best level of this processor and operating system. On x86-64 Linux the process is asked to be
// allowed tiles, whose state the system saves for each thread that uses them.
Isa best_isa();

// The level in use: the one forced by KNEAR_ISA (read anew at each call), or best_isa() without
// tiles. With these a scan of all rows is forecast to be faster than a prefix where it is not
// (tests/index/optimize_test.cpp: 4.2 ms instead of 1.6), so they are for who asks for them.
// Throws InvalidArgument if KNEAR_ISA is no level's name or a level that this machine lacks.
Isa active_isa();

// Whether the processor looks up bytes in several registers (AVX-512 VBMI), which most that have
// the highest level do, and all since Ice Lake and Zen 4.
bool has_byte_permutes();

// Whether the processor counts the bits of eight words at once (AVX-512 VPOPCNTDQ): Ice Lake,
// Zen 4.
bool has_bit_counts();

// Whether the processor multiplies bfloat16 (AVX-512 BF16), for which no level is needed.
bool has_bf16_products();

// Every level of this kind of processor, lowest first, and those that this machine can run.
std::vector<Isa> built_isas();
std::vector<Isa> available_isas();

namespace detail {

// A counter that runs evenly while the machine does, in units of its own.
std::uint64_t tick_count();

// How this thread rounds and whether it flushes denormals, as the processor keeps it, and the mode
// in which a program starts.
std::uint64_t float_mode();
std::uint64_t default_float_mode();
void set_float_mode(std::uint64_t mode);
// The bits of a mode that takes denormals for zeros and flushes results that would be, and of one
// that rounds results down; 0 where no mode can be set. Tests set these: a caller may have.
std::uint64_t flushing_mode();
std::uint64_t rounding_down_mode();

}  // namespace detail

}  // namespace knear
