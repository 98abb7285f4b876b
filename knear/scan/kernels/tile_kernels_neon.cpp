// The tile kernels for what every 64-bit ARM has. See tile_kernels.inl.
//
// Twelve queries and a panel go by products of bytes whose pairs are added to the sums as they are
// widened (SMULL, SADALP): two instructions for eight products. Each sum is two until the end, and
// a step of a query is kept as often as a register holds it, so that only loads stand beside these.
// Fewer queries, and rows of many dimensions, add up the pairs of each step.
#define KNEAR_TABLE scan_kernels_neon
#define KNEAR_SIGNED_ROWS
#include "knear/scan/kernels/tile_kernels_neon.inl"

namespace knear::detail {
namespace {

// Products of two signed bytes fit 16 bits, but not each sum of two (twice 128 * 128): pairs are
// added as they are widened.
static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  const int8x16_t y = (int8x16_t)rows, x = (int8x16_t)query;
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(y), vget_low_s8(x))),
                  high = vpaddlq_s16(vmull_high_s8(y, x));
  return add(sum, (Ints)vpaddq_s32(low, high));
}
template <int lane>
static inline Ints dot_int8_by(Ints sum, Ints rows, Ints queries) {
  return dot_int8(sum, rows, lane_of<lane>(queries));
}

// The products of a group of twelve queries with panels, one panel ahead of its use.
class PairProducts {
 public:
  static constexpr bool made = true;
  static bool serves(const TileArgs& a) { return a.steps <= most_steps; }

  explicit PairProducts(const TileArgs& a) {
    for (int q = 0; q < max_group; ++q) {
      int32_t sum = 0;
      for (int64_t step = 0; step < a.steps; ++step) {
        int8_t codes[step_bytes];
        __builtin_memcpy(codes, a.query_codes + (step * max_group + q) * step_bytes, step_bytes);
        for (int i = 0; i < 16; ++i)
          queries_[(step * max_group + q) * 16 + i] = codes[i % step_bytes];
        for (int i = 0; i < step_bytes; ++i) sum += codes[i];
      }
      lacks_[q] = 128 * sum;
    }
  }

  void compute(const TileArgs& a, int64_t panel) {
    const uint8_t* rows = a.codes + panel * a.steps * panel_step_bytes;
    for (int row = 0; row < panel_rows; row += 4)
      four_rows(rows + row * step_bytes, a.steps, products_[panel & 1] + row);
  }
  // [max_group x panel_rows]
  const int32_t* of(int64_t panel) const { return products_[panel & 1]; }

 private:
  static constexpr int64_t most_steps = 128;  // 24 KiB of queries: what a first-level cache holds

  void four_rows(const uint8_t* rows, int64_t steps, int32_t* out) const {
    int32x4_t low[max_group], high[max_group];  // of rows 0 and 1, and 2 and 3
#pragma GCC unroll 12
    for (int q = 0; q < max_group; ++q) low[q] = high[q] = vdupq_n_s32(0);
    const int8_t* queries = queries_;
    for (int64_t step = 0; step < steps; ++step, rows += panel_step_bytes) {
      const int8x16_t y = (int8x16_t)veorq_u8(vld1q_u8(rows), vdupq_n_u8(128));
#pragma GCC unroll 12
      for (int q = 0; q < max_group; ++q, queries += 16) {
        const int8x16_t x = vld1q_s8(queries);
        low[q] = vpadalq_s16(low[q], vmull_s8(vget_low_s8(y), vget_low_s8(x)));
        high[q] = vpadalq_s16(high[q], vmull_high_s8(y, x));
      }
    }
#pragma GCC unroll 12
    for (int q = 0; q < max_group; ++q)
      vst1q_s32(out + q * panel_rows,
                vaddq_s32(vpaddq_s32(low[q], high[q]), vdupq_n_s32(lacks_[q])));
  }

  alignas(64) int32_t products_[2][max_group * panel_rows];
  alignas(64) int8_t queries_[max_group * most_steps * 16];
  int32_t lacks_[max_group];  // what rows lose with 128 of each of their codes
};

}  // namespace
}  // namespace knear::detail

#define KNEAR_PRODUCTS PairProducts
#include "knear/scan/kernels/tile_kernels.inl"
