// Estimates of links in plain C++. See link_code_kernels.hpp.
#include <stdint.h>
#include <string.h>

#include "knear/scan/kernels/link_code_kernels.hpp"

namespace knear::detail {
namespace {

static inline float upper_half(uint16_t bits) {
  const uint32_t all = static_cast<uint32_t>(bits) << 16;
  float out;
  memcpy(&out, &all, sizeof out);
  return out;
}

}  // namespace

uint32_t links_below_scalar(const LinkBlock& block, const LinkQuery& query, float limit) {
  int32_t sums[links_together] = {};
  const uint8_t* signs = block.signs();
  for (int64_t c = 0; c < query.columns / 4; ++c, signs += 16) {
    const uint8_t* const table = query.tables + 16 * c;
    for (int i = 0; i < 16; ++i) {
      sums[i] += table[signs[i] & 15];
      sums[i + 16] += table[signs[i] >> 4];
    }
  }
  uint32_t below = 0;
  for (int i = 0; i < links_together; ++i) {
    const float sum = query.scale * static_cast<float>(2 * sums[i] + query.offset);
    const float product = upper_half(block.slopes[i]) * sum;
    below |= static_cast<uint32_t>(upper_half(block.bases[i]) - product < limit) << i;
  }
  return below;
}

}  // namespace knear::detail
