// The loops of select_k of the scalar level in plain C++, for processors that have no others for
// it. See select_kernels.inl.
#include <stddef.h>
#include <stdint.h>

#include "knear/select/kernels/select_kernels.hpp"

#define KNEAR_TABLE select_kernels_scalar

namespace knear::detail {
namespace {

static inline uint32_t at_most(const float* p, uint32_t flip, float bound) {
  uint32_t out = 0;
  for (int j = 0; j < 8; ++j) {
    const float value = flip != 0 ? -p[j] : p[j];
    out |= static_cast<uint32_t>(value <= bound) << j;
  }
  return out;
}

}  // namespace
}  // namespace knear::detail

#include "knear/select/kernels/select_loops.inl"
// Included after the loops that it calls.
#include "knear/select/kernels/select_kernels.inl"
