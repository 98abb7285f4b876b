// knear/core/float_modes.hpp -- the bits of the modes that knear/core/cpu.hpp reads and sets, for
// whoever wants another one than the usual: tests do, since a caller may have it.
#pragma once
#include <cstdint>

namespace knear::detail {

// The bits of a mode by which denormals are taken for zeros and results that would be are flushed,
// and those by which results are rounded down; 0 where no mode can be set (set_float_mode()).
std::uint64_t flushing_mode();
std::uint64_t rounding_down_mode();

}  // namespace knear::detail
