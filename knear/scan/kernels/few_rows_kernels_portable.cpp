// The kernels for few rows of the scalar level in plain C++, for processors that have no others for
// it. See few_rows_kernels.inl.
#include <stdint.h>

#include "knear/scan/kernels/few_rows_kernels.hpp"

#define KNEAR_TABLE few_rows_kernels_scalar
#define KNEAR_WIDTH 4
#define KNEAR_CHUNK 4

namespace knear::detail {
namespace {

typedef float Floats __attribute__((vector_size(16)));

static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return sum + rows * query;
}
static inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
static inline Floats least(Floats x) {
  float m = x[0];
  for (int j = 1; j < KNEAR_WIDTH; ++j) m = m < x[j] ? m : x[j];
  return m - Floats{};
}
static inline uint32_t not_above(Floats x, Floats limit) {
  uint32_t bits = 0;
  for (int j = 0; j < KNEAR_WIDTH; ++j) bits |= static_cast<uint32_t>(!(x[j] > limit[j])) << j;
  return bits;
}
static inline uint64_t sixty_four(const Floats* x, Floats limit) {
  uint64_t bits = 0;
  for (int v = 0; v < 64 / KNEAR_WIDTH; ++v)
    bits |= static_cast<uint64_t>(not_above(x[v], limit)) << (v * KNEAR_WIDTH);
  return bits;
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/few_rows_kernels.inl"
