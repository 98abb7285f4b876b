// knear/scan/packing/interleaving.hpp -- which row goes to which tile of a packed base, and back;
// on any device.
//
// Rows are interleaved over the tiles in a pseudo-random order: each run of as many rows as there
// are tiles gives every tile one row, beginning with another tile each time, so that no order of
// the base, periodic ones included, makes the tiles differ.
#pragma once
#include <algorithm>
#include <cstdint>

#include "knear/scan/kernels/tile_kernels.hpp"
#include "knear/simt/warp.hpp"

namespace knear::detail {

// The number of tiles, and of panels of each, for `rows` rows; no tile has more than `most` panels.
struct Tiling {
  std::int64_t tiles, panels_per_tile;

  static Tiling of(std::int64_t rows, std::int64_t most) {
    const std::int64_t tiles =
        std::max<std::int64_t>(1, (rows + most * panel_rows - 1) / (most * panel_rows));
    return {tiles, ((rows + tiles - 1) / tiles + panel_rows - 1) / panel_rows};
  }
};

// Rows 0, ..., rows - 1 interleaved over the tiles.
struct Interleaving {
  std::int64_t rows, tiles;

  KNEAR_HD std::int64_t rows_of(std::int64_t tile) const {
    return (rows - tile + tiles - 1) / tiles;
  }
  // The j-th row of a tile.
  KNEAR_HD std::int64_t row(std::int64_t tile, std::int64_t j) const {
    const std::int64_t place = tile + first(j);
    return j * tiles + (place < tiles ? place : place - tiles);
  }
  // The tile of a row.
  KNEAR_HD std::int64_t tile_of(std::int64_t row) const {
    const std::int64_t j = row / tiles, tile = row % tiles - first(j);
    return tile < 0 ? tile + tiles : tile;
  }

 private:
  // The number of tiles by which run j is rotated; 0 for the last run, if it is not complete.
  KNEAR_HD std::int64_t first(std::int64_t j) const {
    if ((j + 1) * tiles > rows) return 0;
    const std::uint64_t mixed = (static_cast<std::uint64_t>(j) + 1) * 0x9e3779b97f4a7c15u;
    const std::uint64_t turned = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u >> 33;
    return static_cast<std::int64_t>(turned % static_cast<std::uint64_t>(tiles));
  }
};

}  // namespace knear::detail
