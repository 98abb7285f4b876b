// knear/scan/deal.hpp -- how rows are dealt to the tiles of a packed base, on any device.
//
// Tile t of T holds one of each run of T rows that follow one another, another one each time, so
// that no order of the base, periodic ones included, makes tiles unlike.
#pragma once
#include <cstdint>

#include "knear/simt/warp.hpp"

namespace knear::detail {

// How many rows a tile has.
KNEAR_HD inline std::int64_t dealt_rows(std::int64_t rows, std::int64_t tiles, std::int64_t tile) {
  return (rows - tile + tiles - 1) / tiles;
}

// The j-th row of a tile; they ascend.
KNEAR_HD inline std::int64_t dealt(std::int64_t rows, std::int64_t tiles, std::int64_t tile,
                                   std::int64_t j) {
  if ((j + 1) * tiles > rows) return j * tiles + tile;  // the last run is not whole
  const std::uint64_t mixed = (static_cast<std::uint64_t>(j) + 1) * 0x9e3779b97f4a7c15u;
  const std::uint64_t first = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u >> 33;
  return j * tiles + static_cast<std::int64_t>((static_cast<std::uint64_t>(tile) + first) %
                                               static_cast<std::uint64_t>(tiles));
}

}  // namespace knear::detail
