// Distances of 8-bit codes of the scalar level in plain C++, for processors that have no others for
// it. See row_code_kernels.inl.
#include <stdint.h>

#include "knear/scan/kernels/row_code_kernels.hpp"

#define KNEAR_DISTANCES row_code_distances_scalar
#define KNEAR_WIDTH 16

namespace knear::detail {
namespace {

struct Sums {
  uint32_t of[4];
};

static inline Sums add_squares(Sums sums, const int16_t* a, const uint8_t* b) {
  for (int j = 0; j < KNEAR_WIDTH; ++j) {
    const int difference = a[j] - b[j];
    sums.of[j % 4] += static_cast<uint32_t>(difference * difference);
  }
  return sums;
}
static inline void add_up(const Sums* four, uint32_t* out) {
  for (int i = 0; i < 4; ++i)
    out[i] = four[i].of[0] + four[i].of[1] + four[i].of[2] + four[i].of[3];
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/row_code_kernels.inl"
