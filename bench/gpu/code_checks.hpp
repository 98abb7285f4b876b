// bench/gpu/code_checks.hpp -- compares searches of codes on a device with the processor and with a
// plain loop, bit for bit.
#pragma once
#include <string>

#include "bench/gpu/case_share.hpp"
#include "bench/gpu/report.hpp"

namespace knear::bench {

// Codes of 4 to 64 bytes, of 8 and 4 bits, every metric, ks around those of kernels, ties, short
// and long lists, one query and many, by both ways; and whole indexes of codes, which are refined
// or not, filtered or not. Runs its share of the cases. device: "cuda:N", the current one. A
// DeviceError ends the checks.
void check_codes(const std::string& device, const CaseShare& share, Report& report);

}  // namespace knear::bench
