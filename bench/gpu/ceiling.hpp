// bench/gpu/ceiling.hpp -- what a rate is held against.
#pragma once
#include <optional>
#include <string>

#include "bench/gpu/report.hpp"

namespace knear::bench {

// The most that a device can do, in the unit of the entries that it comes from. `name` goes beside
// the share; where there is no rate it says so: "unmeasured: no cuBLASLt".
struct Ceiling {
  std::optional<double> rate;
  std::string name;
};

// The ceiling of products of one type, "fp32", "bf16" or "int8", is the best rate of cuBLASLt, or
// of mma.sync if that is faster. Where the library's was not measured there is none, since mma.sync
// alone is less than a device can do, and a share of it would look better than it is.
Ceiling product_ceiling(const Report& report, const std::string& type);

// Enters the share of the rate, or the reason why it is unknown.
void hold_against(const Ceiling& ceiling, Entry& entry);

}  // namespace knear::bench
