// The loops of the AVX2 level, in assembly so that the compiler can neither spill the sums nor
// drop them. A loop is one asm statement; .irp repeats a line for each register named.
//
// 12 of the 16 registers hold sums. A multiply-add has a latency of 4 or 5 cycles and issues twice
// per cycle, so 8 to 10 independent sums are needed.
#include "knear/cost/peak_loops.hpp"

namespace knear::detail {
namespace {

constexpr double lanes = 8, sums = 12;

#define CLOBBERS                                                                           \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc"

// Runs `body` on ymm0..ymm11 (as ymm\r) with the operands in ymm14 and ymm15, `rounds` times.
#define LOOP(setup, body)                        \
  asm volatile(                                  \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13\n" \
      "vpxor %%xmm\\r,%%xmm\\r,%%xmm\\r\n"       \
      ".endr\n"                                  \
      "vmovups (%1),%%ymm14\n"                   \
      "vmovups 32(%1),%%ymm15\n" setup           \
      ".p2align 5\n"                             \
      "1:\n"                                     \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" body  \
      ".endr\n"                                  \
      "dec %0\n"                                 \
      "jnz 1b\n"                                 \
      "vzeroupper\n"                             \
      : "+r"(rounds)                             \
      : "r"(data)                                \
      : CLOBBERS)

void fp32(long rounds) {
  const float* data = peak_floats;
  LOOP("", "vfmadd231ps %%ymm14,%%ymm15,%%ymm\\r\n");
}

void int16(long rounds) {
  const signed char* data = peak_integers;
  LOOP("",
       "vpmaddwd %%ymm14,%%ymm15,%%ymm12\n"
       "vpaddd %%ymm12,%%ymm\\r,%%ymm\\r\n");
}

// Pairs of u8 x i8 products to int16, pairs of those to int32, then the sum: three instructions.
void int8(long rounds) {
  const signed char* data = peak_integers;
  LOOP(
      "vpcmpeqw %%ymm13,%%ymm13,%%ymm13\n"
      "vpabsw %%ymm13,%%ymm13\n",  // ones
      "vpmaddubsw %%ymm14,%%ymm15,%%ymm12\n"
      "vpmaddwd %%ymm12,%%ymm13,%%ymm12\n"
      "vpaddd %%ymm12,%%ymm\\r,%%ymm\\r\n");
}

void cop(long rounds) {
  const signed char* data = peak_integers;
  LOOP("",
       "vpcmpgtd %%ymm\\r,%%ymm14,%%ymm12\n"
       "vpblendvb %%ymm12,%%ymm15,%%ymm\\r,%%ymm\\r\n"
       "vpaddd %%ymm14,%%ymm\\r,%%ymm\\r\n");
}

// Adds up 256 bytes a round; AHEAD are the instructions after the additions.
#define KNEAR_READ(NAME, AHEAD)                               \
  void NAME(const void* data, long bytes) {                   \
    const char* end = static_cast<const char*>(data) + bytes; \
    asm volatile(                                             \
        "1:\n"                                                \
        ".irp r,0,1,2,3,4,5,6,7\n"                            \
        "vpaddq 32*\\r(%0),%%ymm\\r,%%ymm\\r\n"               \
        ".endr\n" AHEAD                                       \
        "add $256,%0\n"                                       \
        "cmp %1,%0\n"                                         \
        "jne 1b\n"                                            \
        "vzeroupper\n"                                        \
        : "+r"(data)                                          \
        : "r"(end)                                            \
        : CLOBBERS);                                          \
  }
KNEAR_READ(read, "")
KNEAR_READ(read_ahead,
           "prefetcht0 4096(%0)\n"
           "prefetcht0 4160(%0)\n"
           "prefetcht0 4224(%0)\n"
           "prefetcht0 4288(%0)\n")

}  // namespace

PeakLoops peak_loops_avx2() {
  return {.fp32 = {fp32, 2 * lanes * sums},
          .int16 = {int16, 2 * 2 * lanes * sums},
          .int8 = {int8, 2 * 4 * lanes * sums},
          .cop = {cop, 3 * lanes * sums},
          .read = read,
          .read_ahead = read_ahead,
          .bf16 = {}};
}

}  // namespace knear::detail
