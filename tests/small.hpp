// tests/small.hpp -- whether tests are asked to be small (KNEAR_SMALL_TESTS=1): those that would
// take minutes in an emulator of another processor, or under the address sanitiser, then take fewer
// rows and queries, in the same ways.
#pragma once
#include <cstdlib>

namespace knear::test {

inline bool small() { return std::getenv("KNEAR_SMALL_TESTS") != nullptr; }

}  // namespace knear::test
