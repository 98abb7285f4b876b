// Differing bits a word at a time, for every processor. See bit_kernels.inl.
#include <stddef.h>
#include <stdint.h>

#include "knear/scan/kernels/bit_kernels.hpp"

#define KNEAR_TABLE bit_kernels_scalar
#define KNEAR_ADDS_BYTES 0

namespace knear::detail {
namespace {

constexpr int64_t lanes = 1;
using Words = uint64_t;

static inline Words differing(const uint64_t* rows, uint64_t word) { return *rows ^ word; }
static inline Words bits_of(Words x) { return static_cast<Words>(__builtin_popcountll(x)); }
static inline Words plus(Words a, Words b) { return a + b; }
static inline int64_t keep_near(Words bits, uint64_t limit, uint32_t first, BitHit* out) {
  if (bits > limit) return 0;
  *out = {first, static_cast<uint32_t>(bits)};
  return 1;
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/bit_kernels.inl"
