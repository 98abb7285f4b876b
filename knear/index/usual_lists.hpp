// knear/index/usual_lists.hpp -- how many inverted lists an index has where its maker does not say.
#pragma once
#include <cstdint>

namespace knear {

// How many inverted lists suit so many rows: about 2.7 times their root, a power of two.
std::int64_t usual_lists(std::int64_t rows);

}  // namespace knear
