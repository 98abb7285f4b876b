// tests/small.hpp -- whether tests are asked to be small (KNEAR_SMALL_TESTS=1): those that would
// take minutes in an emulator of another processor then take fewer rows and queries, in the same
// ways.
#pragma once
#include <cstdlib>
#include <vector>

#include "knear/core/cpu.hpp"

namespace knear::test {

inline bool small() { return std::getenv("KNEAR_SMALL_TESTS") != nullptr; }

// The levels that a test of every level goes over: all that this processor has. Small tests are run
// as one processor after another; of one that has more than `scalar` and the next level they take
// the best alone, so that each level runs once, as the least processor that has it. (`scalar` runs
// with the next one.)
inline std::vector<Isa> levels() {
  std::vector<Isa> all = available_isas();
  if (small() && all.size() > 2) all.erase(all.begin(), all.end() - 1);
  return all;
}

}  // namespace knear::test
