// bench/gpu/hash.hpp -- random numbers by place, the same on the host and on any device.
#pragma once
#include <cstdint>

#include "knear/simt/warp.hpp"

namespace knear::bench {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on seed and place.
KNEAR_HD constexpr std::uint64_t hash(std::uint64_t seed, std::uint64_t place) {
  std::uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u + place * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// [0, 1), in steps of 2^-24.
KNEAR_HD constexpr float unit_float(std::uint64_t bits) { return float(bits >> 40) * 0x1p-24f; }

}  // namespace knear::bench
