// The tile kernels for AVX-512 with VNNI where the processor also multiplies matrices of bytes in
// tiles (AMX). Twelve queries and a panel are one product of matrices: an instruction makes 12 x 16
// sums of up to 64 products each. The sums go through memory, in the first-level cache, to the
// registers in which they are tested.
//
// Tiles are state of a thread: each call of a kernel sets them up and gives them back.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {
namespace {

// The products of a group of twelve queries with panels, one panel ahead of its use.
//
// Tiles: 0 and 1 sums, of 12 queries and 16 rows each; 4 queries and 2, 3 rows of 16 steps; 7, 5
// and 6 the same for the last steps, 1 to 16.
class TileProducts {
 public:
  static constexpr bool made = true;
  static bool serves(const TileArgs& a) { return a.steps <= most_steps; }

  explicit TileProducts(const TileArgs& a) : full_((a.steps - 1) / tile_steps) {
    const int last = static_cast<int>(a.steps - full_ * tile_steps);
    struct alignas(64) {
      uint8_t palette = 1, start = 0, unused[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) shape.row_bytes[i] = 64, shape.rows[i] = max_group;
    shape.rows[2] = shape.rows[3] = tile_steps;
    shape.rows[5] = shape.rows[6] = static_cast<uint8_t>(last);
    shape.row_bytes[7] = static_cast<uint16_t>(last * step_bytes);
    _tile_loadconfig(&shape);
    // A query's steps one after another.
    const __m512i places =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(max_group));
    for (int64_t c = 0; c <= full_; ++c) {
      const __mmask16 there = static_cast<__mmask16>((1 << (c < full_ ? tile_steps : last)) - 1);
      for (int q = 0; q < max_group; ++q) {
        const uint8_t* from =
            a.query_codes + (c * tile_steps * max_group + q) * int64_t{step_bytes};
        _mm512_store_si512(
            queries_ + q * most_steps * step_bytes + c * 64,
            _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, places, from, step_bytes));
      }
    }
    _tile_loadd(4, queries_, most_steps * step_bytes);
    _tile_loadd(7, queries_ + full_ * 64, most_steps * step_bytes);
  }
  ~TileProducts() { _tile_release(); }

  void compute(const TileArgs& a, int64_t panel) {
    const uint8_t* rows = a.codes + panel * a.steps * panel_step_bytes;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t c = 0; c < full_; ++c, rows += tile_steps * panel_step_bytes) {
      if (full_ > 1) _tile_loadd(4, queries_ + c * 64, most_steps * step_bytes);
      _tile_loadd(2, rows, panel_step_bytes);
      _tile_loadd(3, rows + 64, panel_step_bytes);
      _tile_dpbsud(0, 4, 2);
      _tile_dpbsud(1, 4, 3);
    }
    _tile_loadd(5, rows, panel_step_bytes);
    _tile_loadd(6, rows + 64, panel_step_bytes);
    _tile_dpbsud(0, 7, 5);
    _tile_dpbsud(1, 7, 6);
    int32_t* out = products_[panel & 1];
    _tile_stored(0, out, panel_rows * 4);
    _tile_stored(1, out + 16, panel_rows * 4);
  }
  // [max_group x panel_rows]
  const int32_t* of(int64_t panel) const { return products_[panel & 1]; }

 private:
  static constexpr int64_t tile_steps = 16, most_steps = 512;
  const int64_t full_;  // tiles of 16 steps before the last one
  alignas(64) int32_t products_[2][max_group * panel_rows];
  alignas(64) uint8_t queries_[max_group * most_steps * step_bytes];
};

}  // namespace
}  // namespace knear::detail

#define KNEAR_TABLE scan_kernels_avx512_amx
#define KNEAR_PRODUCTS TileProducts
#include "knear/scan/kernels/tile_kernels_avx512_vnni.inl"
