// tests/small.hpp -- whether tests are asked to be small (KNEAR_SMALL_TESTS=1): those that would
// take minutes in an emulator of another processor, or under the address sanitiser, then take fewer
// rows and queries, in the same ways.
#pragma once
#include <cstdlib>
#include <vector>

#include "knear/core/cpu.hpp"

namespace knear::test {

inline bool small() { return std::getenv("KNEAR_SMALL_TESTS") != nullptr; }

// The levels that a test of every level goes over: all that this processor has, or, where
// KNEAR_BEST_LEVEL=1 says so, the best alone (of one that has no more, `scalar` and the next). Who
// runs tests as one processor after another so has each level once, as the least processor with it.
inline std::vector<Isa> levels() {
  std::vector<Isa> all = available_isas();
  if (std::getenv("KNEAR_BEST_LEVEL") && all.size() > 2) all.erase(all.begin(), all.end() - 1);
  return all;
}

}  // namespace knear::test
