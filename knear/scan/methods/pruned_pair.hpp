// knear/scan/methods/pruned_pair.hpp -- what a threshold leaves of a tile, whichever device
// computed it.
#pragma once
#include <cstdint>

namespace knear::detail {

// A row that a threshold did not exclude: its key is certainly in [low, high].
struct PrunedPair {
  double low, high;
  std::uint32_t query, row;  // query: its number among those of the tiles
};

}  // namespace knear::detail
