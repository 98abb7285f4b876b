// What the files of 64-bit ARM share: a loop over 24 of the 32 registers as one asm statement
// (peak_loops_avx2.cpp gives the reasons). Only those files include it.
#include "knear/cost/peak_loops.hpp"

#define CLOBBERS                                                                                 \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
      "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", \
      "v28", "v29", "v30", "v31", "memory", "cc"

// Runs `body` on v0..v23 (as v\r) with operands in v30 and v31 and v24..v29 to spare, `rounds`
// times.
#define LOOP(body)                                                                  \
  asm volatile(                                                                     \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n"      \
      "movi v\\r\\().4s,#0\n"                                                       \
      ".endr\n"                                                                     \
      "ldp q30,q31,[%1]\n"                                                          \
      ".p2align 5\n"                                                                \
      "1:\n"                                                                        \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n" body \
      ".endr\n"                                                                     \
      "subs %0,%0,#1\n"                                                             \
      "b.ne 1b\n"                                                                   \
      : "+r"(rounds)                                                                \
      : "r"(data)                                                                   \
      : CLOBBERS)

namespace knear::detail {
namespace {

constexpr double lanes = 4, sums = 24;

}  // namespace
}  // namespace knear::detail
