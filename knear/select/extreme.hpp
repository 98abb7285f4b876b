// knear/select/extreme.hpp -- which end of a row is wanted.
#pragma once
#include <cstdint>

namespace knear {

enum class Extreme : std::uint8_t { smallest, largest };

}  // namespace knear
