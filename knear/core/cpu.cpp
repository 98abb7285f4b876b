#include "knear/core/cpu.hpp"

#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear {

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_vnni:
      return "avx512_vnni";
    case Isa::avx512_amx:
      return "avx512_amx";
    case Isa::neon:
      return "neon";
    case Isa::neon_dot:
      return "neon_dot";
    case Isa::neon_i8mm:
      return "neon_i8mm";
  }
  return "?";
}

std::int64_t cache_bytes(int level) { return detail::cache_size(level); }

std::int64_t machine_memory() {
  // Asked once: every search compares its answer with it.
  static const std::int64_t memory = [] {
    const std::int64_t pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    // Where the system does not say, no limit is assumed: it refuses memory when that is taken.
    return pages > 0 && bytes > 0 ? pages * bytes : std::numeric_limits<std::int64_t>::max();
  }();
  return memory;
}

#if defined(__x86_64__)
namespace {

// Whether the processor multiplies tiles of bytes, and the system lets this process.
bool may_use_tiles() {
#if defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_tile = 1u << 24, amx_int8 = 1u << 25;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & amx_tile) == 0 || (d & amx_int8) == 0)
    return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace
#endif

Isa best_isa() {
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks the operating system whether it saves the wide registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::scalar;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("bmi2"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::avx512;
  static const bool tiles = may_use_tiles();
  return tiles ? Isa::avx512_amx : Isa::avx512_vnni;
#elif defined(__aarch64__) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return Isa::neon;
  return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) == 0 ? Isa::neon_dot : Isa::neon_i8mm;
#elif defined(__aarch64__) && defined(__APPLE__)
  const auto has = [](const char* name) {
    int yes = 0;
    std::size_t size = sizeof yes;
    return sysctlbyname(name, &yes, &size, nullptr, 0) == 0 && yes != 0;
  };
  if (!has("hw.optional.arm.FEAT_DotProd")) return Isa::neon;
  return has("hw.optional.arm.FEAT_I8MM") ? Isa::neon_i8mm : Isa::neon_dot;
#elif defined(__aarch64__)
  return Isa::neon;
#else
  return Isa::scalar;
#endif
}

std::vector<Isa> built_isas() {
#if defined(__aarch64__)
  return {Isa::scalar, Isa::neon, Isa::neon_dot, Isa::neon_i8mm};
#else
  return {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_amx};
#endif
}

std::vector<Isa> available_isas() {
  std::vector<Isa> all = built_isas();
  while (all.back() > best_isa()) all.pop_back();
  return all;
}

Isa active_isa() {
  const char* forced = std::getenv("KNEAR_ISA");
  const Isa best = best_isa();
  if (!forced || !*forced) return best == Isa::avx512_amx ? Isa::avx512_vnni : best;
  const std::vector<Isa> built = built_isas();
  std::string names;
  for (const Isa isa : built) {
    if (forced != name_of(isa)) {
      names += (isa == built.front() ? "" : isa == built.back() ? " or " : ", ");
      names += name_of(isa);
      continue;
    }
    const std::vector<Isa> all = available_isas();
    if (std::find(all.begin(), all.end(), isa) == all.end())
      throw InvalidArgument("KNEAR_ISA is '{}', but this machine has at most '{}'", forced,
                            name_of(best));
    return isa;
  }
  throw InvalidArgument("KNEAR_ISA must be {}, but is '{}'", names, forced);
}

bool has_byte_permutes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

bool has_bit_counts() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vpopcntdq");
#else
  return false;
#endif
}

bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

namespace detail {

std::uint64_t tick_count() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

#if defined(__x86_64__)
std::uint64_t float_mode() { return _mm_getcsr(); }
std::uint64_t default_float_mode() { return 0x1f80; }  // no exception is raised
void set_float_mode(std::uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
std::uint64_t flushing_mode() { return 0x8040; }
std::uint64_t rounding_down_mode() { return 0x2000; }
#elif defined(__aarch64__)
std::uint64_t float_mode() {
  std::uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
std::uint64_t default_float_mode() { return 0; }
void set_float_mode(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
std::uint64_t flushing_mode() { return 1 << 24; }
std::uint64_t rounding_down_mode() { return 2 << 22; }
#else
std::uint64_t float_mode() { return 0; }
std::uint64_t default_float_mode() { return 0; }
void set_float_mode(std::uint64_t) {}
std::uint64_t flushing_mode() { return 0; }
std::uint64_t rounding_down_mode() { return 0; }
#endif

}  // namespace detail
}  // namespace knear
