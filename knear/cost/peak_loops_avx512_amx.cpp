// The loop of the level with tiles: bytes of twelve queries and 32 rows, as the kernels of a scan
// multiply them, with the rows read from the first-level cache and the sums written to it. The
// instruction alone would run at twice that rate, which no scan could come near.
#include <immintrin.h>

#include "knear/cost/peak_loops.hpp"

namespace knear::detail {
namespace {

constexpr int queries = 12, rows = 32, columns = 64, blocks = 8;

void int8(long rounds) {
  struct alignas(64) {
    unsigned char palette = 1, start = 0, unused[14] = {};
    unsigned short row_bytes[16] = {};
    unsigned char rows[16] = {};
  } shape;
  for (int i = 0; i < 5; ++i) shape.row_bytes[i] = 64, shape.rows[i] = i < 3 ? queries : 16;
  _tile_loadconfig(&shape);
  alignas(64) signed char data[blocks * rows * columns];
  alignas(64) int out[queries * rows];
  for (int i = 0; i < blocks * rows * columns; ++i) data[i] = peak_integers[i % 61];
  _tile_loadd(2, data, 64);
  for (long round = 0; round < rounds; ++round) {
    const signed char* block = data + round % blocks * rows * columns;
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(3, block, 4 * rows);
    _tile_loadd(4, block + 64, 4 * rows);
    _tile_dpbsud(0, 2, 3);
    _tile_dpbsud(1, 2, 4);
    _tile_stored(0, out, 4 * rows);
    _tile_stored(1, out + 16, 4 * rows);
  }
  _tile_release();
}

}  // namespace

PeakLoops peak_loops_avx512_amx() {
  PeakLoops loops = peak_loops_avx512_vnni();
  loops.int8 = {int8, 2.0 * queries * rows * columns};
  return loops;
}

}  // namespace knear::detail
