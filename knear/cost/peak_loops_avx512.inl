// What the three AVX-512 files share: a loop over 24 of the 32 registers as one asm statement
// (peak_loops_avx2.cpp gives the reasons). Only those files include it.
#include "knear/cost/peak_loops.hpp"

#define CLOBBERS                                                                                \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", \
      "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", \
      "xmm31", "k1", "memory", "cc"

// Runs `body` on zmm0..zmm23 (as zmm\r) with operands in zmm30 and zmm31, `rounds` times.
#define LOOP(setup, body)                                                            \
  asm volatile(                                                                      \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,29\n" \
      "vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r\n"                                          \
      ".endr\n"                                                                      \
      "vmovups (%1),%%zmm30\n"                                                       \
      "valignd $5,%%zmm30,%%zmm30,%%zmm31\n" setup                                   \
      ".p2align 5\n"                                                                 \
      "1:\n"                                                                         \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n" body  \
      ".endr\n"                                                                      \
      "dec %0\n"                                                                     \
      "jnz 1b\n"                                                                     \
      "vzeroupper\n"                                                                 \
      : "+r"(rounds)                                                                 \
      : "r"(data)                                                                    \
      : CLOBBERS)

namespace knear::detail {
namespace {
constexpr double lanes = 16, sums = 24;
}
}  // namespace knear::detail
