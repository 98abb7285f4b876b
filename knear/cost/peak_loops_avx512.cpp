// The loops of the AVX-512 level without VNNI: integer products take two or three instructions.
#include "knear/cost/peak_loops_avx512.inl"

namespace knear::detail {
namespace {

void fp32(long rounds) {
  const float* data = peak_floats;
  LOOP("", "vfmadd231ps %%zmm30,%%zmm31,%%zmm\\r\n");
}

void int16(long rounds) {
  const signed char* data = peak_integers;
  LOOP("",
       "vpmaddwd %%zmm30,%%zmm31,%%zmm24\n"
       "vpaddd %%zmm24,%%zmm\\r,%%zmm\\r\n");
}

void int8(long rounds) {
  const signed char* data = peak_integers;
  LOOP(
      "vpternlogd $255,%%zmm29,%%zmm29,%%zmm29\n"
      "vpabsw %%zmm29,%%zmm29\n",  // ones
      "vpmaddubsw %%zmm30,%%zmm31,%%zmm24\n"
      "vpmaddwd %%zmm24,%%zmm29,%%zmm24\n"
      "vpaddd %%zmm24,%%zmm\\r,%%zmm\\r\n");
}

void cop(long rounds) {
  const signed char* data = peak_integers;
  LOOP("",
       "vpcmpgtd %%zmm\\r,%%zmm30,%%k1\n"
       "vpblendmd %%zmm31,%%zmm\\r,%%zmm\\r%{%%k1%}\n"
       "vpaddd %%zmm30,%%zmm\\r,%%zmm\\r\n");
}

// Adds up 512 bytes a round; AHEAD are the instructions before each addition.
#define KNEAR_READ(NAME, AHEAD)                               \
  void NAME(const void* data, long bytes) {                   \
    const char* end = static_cast<const char*>(data) + bytes; \
    asm volatile(                                             \
        "1:\n"                                                \
        ".irp r,0,1,2,3,4,5,6,7\n" AHEAD                      \
        "vpaddq 64*\\r(%0),%%zmm\\r,%%zmm\\r\n"               \
        ".endr\n"                                             \
        "add $512,%0\n"                                       \
        "cmp %1,%0\n"                                         \
        "jne 1b\n"                                            \
        "vzeroupper\n"                                        \
        : "+r"(data)                                          \
        : "r"(end)                                            \
        : CLOBBERS);                                          \
  }
KNEAR_READ(read, "")
KNEAR_READ(read_ahead, "prefetcht0 4096+64*\\r(%0)\n")

}  // namespace

PeakLoops peak_loops_avx512() {
  return {.fp32 = {fp32, 2 * lanes * sums},
          .int16 = {int16, 2 * 2 * lanes * sums},
          .int8 = {int8, 2 * 4 * lanes * sums},
          .cop = {cop, 3 * lanes * sums},
          .read = read,
          .read_ahead = read_ahead,
          .bf16 = {}};
}

}  // namespace knear::detail
