// knear/core/cpu.hpp -- which instructions this processor has, which level knear uses, how much
// memory there is.
//
// A level names one set of compiled kernels; each includes those before it. Exact results do not
// depend on the level. The environment variable KNEAR_ISA=scalar|avx2|avx512|avx512_vnni|
// avx512_amx forces a lower one, which is how the tests run them all.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace knear {

enum class Isa : std::uint8_t {
  scalar,       // what every x86-64 has
  avx2,         // AVX2, FMA, F16C
  avx512,       // AVX-512 F, BW, DQ, VL
  avx512_vnni,  // AVX-512 VNNI: int8 at four times, int16 at twice the rate of fp32
  avx512_amx    // and tiles of bytes (AMX): int8 of twelve queries or more at up to 32 times
};

// Every level, lowest first.
inline constexpr Isa all_isas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni,
                                   Isa::avx512_amx};

std::string_view name_of(Isa isa);

// Bytes of memory that this machine has.
std::int64_t machine_memory();

// Bytes of a cache that belongs to one core (first and second level) or is shared (third); 0 where
// the system does not say.
std::int64_t cache_bytes(int level);

// The best level of this processor and operating system. On Linux the process is asked to be
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

// Every level that this machine can run, lowest first.
std::vector<Isa> available_isas();

}  // namespace knear
