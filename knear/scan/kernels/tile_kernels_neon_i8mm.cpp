// The tile kernels for 64-bit ARM with products of matrices of bytes. Twelve queries and a panel go
// by USMMLA: two rows and two queries, eight bytes of each, are four sums of eight products. The
// sums go through memory, in the first-level cache, to the registers in which they are tested.
// Fewer queries go by USDOT, four products of an unsigned and a signed byte to a lane.
#define KNEAR_TABLE scan_kernels_neon_i8mm
#include "knear/scan/kernels/tile_kernels_neon.inl"

namespace knear::detail {
namespace {

static inline Ints dot_int8(Ints sum, Ints rows, Ints query) {
  return (Ints)vusdotq_s32((int32x4_t)sum, (uint8x16_t)rows, (int8x16_t)query);
}
template <int lane>
static inline Ints dot_int8_by(Ints sum, Ints rows, Ints queries) {
  return (Ints)vusdotq_laneq_s32((int32x4_t)sum, (uint8x16_t)rows, (int8x16_t)queries, lane);
}

// The products of a group of twelve queries with panels, one panel ahead of its use.
//
// A factor holds two steps of a row or query and then of its neighbour; in a panel a step of all
// rows stands together, so that pairs of registers are zipped: 4 zips for the 24 products of eight
// rows. Queries are zipped once.
class MatrixProducts {
 public:
  static constexpr bool made = true;
  static bool serves(const TileArgs& a) { return a.steps <= most_steps; }

  explicit MatrixProducts(const TileArgs& a) {
    const uint8_t* from = a.query_codes;
    int8_t* to = queries_;
    for (int64_t step = 0; step < a.steps; step += 2, from += 2 * max_group * step_bytes)
      for (int q = 0; q < max_group; q += 4, to += 32) {
        const uint32x4_t first = load(from + q * step_bytes);
        const uint32x4_t second =
            step + 1 < a.steps ? load(from + (max_group + q) * step_bytes) : vdupq_n_u32(0);
        vst1q_s8(to, (int8x16_t)vzip1q_u32(first, second));
        vst1q_s8(to + 16, (int8x16_t)vzip2q_u32(first, second));
      }
  }

  void compute(const TileArgs& a, int64_t panel) {
    const uint8_t* rows = a.codes + panel * a.steps * panel_step_bytes;
    for (int row = 0; row < panel_rows; row += 8)
      eight_rows(rows + row * step_bytes, a.steps, products_[panel & 1] + row);
  }
  // [max_group x panel_rows]
  const int32_t* of(int64_t panel) const { return products_[panel & 1]; }

 private:
  static constexpr int64_t most_steps = 512;
  static constexpr int pairs = max_group / 2;

  static inline uint32x4_t load(const uint8_t* p) { return (uint32x4_t)vld1q_u8(p); }

  // Two steps of eight rows with those of all queries; sums[j][i] of queries 2 j and 2 j + 1 and
  // rows 2 i and 2 i + 1: row 2 i first.
  static inline __attribute__((always_inline)) void add_steps(int32x4_t (*sums)[4],
                                                              const uint8_t* first, uint32x4_t low,
                                                              uint32x4_t high,
                                                              const int8_t* queries) {
    const uint32x4_t low_of_first = load(first), high_of_first = load(first + 16);
    const uint8x16_t rows[4] = {
        (uint8x16_t)vzip1q_u32(low_of_first, low), (uint8x16_t)vzip2q_u32(low_of_first, low),
        (uint8x16_t)vzip1q_u32(high_of_first, high), (uint8x16_t)vzip2q_u32(high_of_first, high)};
#pragma GCC unroll 6
    for (int j = 0; j < pairs; ++j) {
      const int8x16_t two = vld1q_s8(queries + 16 * j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[j][i] = vusmmlaq_s32(sums[j][i], rows[i], two);
    }
  }

  void eight_rows(const uint8_t* rows, int64_t steps, int32_t* out) const {
    int32x4_t sums[pairs][4];
#pragma GCC unroll 6
    for (int j = 0; j < pairs; ++j)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[j][i] = vdupq_n_s32(0);
    const int8_t* queries = queries_;
    int64_t step = 0;
    for (; step + 2 <= steps; step += 2, rows += 2 * panel_step_bytes, queries += 16 * pairs)
      add_steps(sums, rows, load(rows + panel_step_bytes), load(rows + panel_step_bytes + 16),
                queries);
    if (step < steps) add_steps(sums, rows, vdupq_n_u32(0), vdupq_n_u32(0), queries);
#pragma GCC unroll 6
    for (int j = 0; j < pairs; ++j)
#pragma GCC unroll 2
      for (int i = 0; i < 4; i += 2) {
        int32_t* const to = out + 2 * j * panel_rows + 2 * i;
        vst1q_s32(to, vuzp1q_s32(sums[j][i], sums[j][i + 1]));
        vst1q_s32(to + panel_rows, vuzp2q_s32(sums[j][i], sums[j][i + 1]));
      }
  }

  alignas(64) int32_t products_[2][max_group * panel_rows];
  alignas(64) int8_t queries_[max_group * most_steps * step_bytes];
};

}  // namespace
}  // namespace knear::detail

#define KNEAR_PRODUCTS MatrixProducts
#include "knear/scan/kernels/tile_kernels.inl"
