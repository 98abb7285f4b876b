// The loops of the level that every 64-bit ARM has.
#include "knear/cost/peak_loops_neon.inl"

namespace knear::detail {
namespace {

void fp32(long rounds) {
  const float* data = peak_floats;
  LOOP("fmla v\\r\\().4s,v30.4s,v31.4s\n");
}

// Four and six instructions for two and four products to a lane, as in the kernels.
void int16(long rounds) {
  const signed char* data = peak_integers;
  LOOP(
      "smull v28.4s,v30.4h,v31.4h\n"
      "smull2 v29.4s,v30.8h,v31.8h\n"
      "addp v28.4s,v28.4s,v29.4s\n"
      "add v\\r\\().4s,v\\r\\().4s,v28.4s\n");
}

void int8(long rounds) {
  const signed char* data = peak_integers;
  LOOP(
      "smull v28.8h,v30.8b,v31.8b\n"
      "smull2 v29.8h,v30.16b,v31.16b\n"
      "saddlp v28.4s,v28.8h\n"
      "saddlp v29.4s,v29.8h\n"
      "addp v28.4s,v28.4s,v29.4s\n"
      "add v\\r\\().4s,v\\r\\().4s,v28.4s\n");
}

void cop(long rounds) {
  const signed char* data = peak_integers;
  LOOP(
      "cmgt v28.4s,v30.4s,v\\r\\().4s\n"
      "bit v\\r\\().16b,v31.16b,v28.16b\n"
      "add v\\r\\().4s,v\\r\\().4s,v30.4s\n");
}

// Adds up 256 bytes a round; AHEAD are the instructions after the additions.
#define KNEAR_READ(NAME, AHEAD)                               \
  void NAME(const void* data, long bytes) {                   \
    const char* end = static_cast<const char*>(data) + bytes; \
    asm volatile(                                             \
        "1:\n"                                                \
        ".irp r,0,1,2,3,4,5,6,7\n"                            \
        "ldp q24,q25,[%0,#32*\\r]\n"                          \
        "add v\\r\\().2d,v\\r\\().2d,v24.2d\n"                \
        "add v\\r\\().2d,v\\r\\().2d,v25.2d\n"                \
        ".endr\n" AHEAD                                       \
        "add %0,%0,#256\n"                                    \
        "cmp %0,%1\n"                                         \
        "b.ne 1b\n"                                           \
        : "+r"(data)                                          \
        : "r"(end)                                            \
        : CLOBBERS);                                          \
  }
KNEAR_READ(read, "")
KNEAR_READ(read_ahead,
           "prfm pldl1keep,[%0,#4096]\n"
           "prfm pldl1keep,[%0,#4160]\n"
           "prfm pldl1keep,[%0,#4224]\n"
           "prfm pldl1keep,[%0,#4288]\n")

}  // namespace

PeakLoops peak_loops_neon() {
  return {.fp32 = {fp32, 2 * lanes * sums},
          .int16 = {int16, 2 * 2 * lanes * sums},
          .int8 = {int8, 2 * 4 * lanes * sums},
          .cop = {cop, 3 * lanes * sums},
          .read = read,
          .read_ahead = read_ahead,
          .bf16 = {}};
}

}  // namespace knear::detail
