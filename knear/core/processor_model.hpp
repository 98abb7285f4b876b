// knear/core/processor_model.hpp -- the processor's name and clock in what Linux says of it.
#pragma once
#include <iosfwd>
#include <string>

namespace knear::detail {

// Of the text of /proc/cpuinfo, the name of the first processor: "Intel(R) Xeon(R) ...", or, of a
// 64-bit ARM, for which Linux has numbers only, "implementer 0x41, part 0xd40, variant 0x1" (part
// 0xd40 of Arm's is Neoverse V1). Empty: there is neither.
std::string processor_model_in(std::istream& cpuinfo);

// Returns the highest "cpu MHz" of the same text in Hz, or 0 if it names none.
double processor_clock_in(std::istream& cpuinfo);

}  // namespace knear::detail
