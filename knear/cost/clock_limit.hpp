// knear/cost/clock_limit.hpp -- the highest clock that a measurement is believed.
//
//   const bool believed = peaks.cycles_per_second <= peaks.threads * detail::clock_limit();
//
// A chain of operations that a processor resolves without executing them looks like a clock that no
// processor has. The limit is what the system reports, with some slack, and at most 8 GHz.
#pragma once
#include "knear/core/system.hpp"

namespace knear::detail {

inline constexpr double highest_clock = 8e9;

// Cycles per second of a thread beyond which a measurement is wrong. A clock that the system
// reports as the highest may be exceeded by a quarter. One that it reports as the nominal or
// current clock may be exceeded by a factor of 2.5, since boost clocks are about twice the nominal
// ones, and the limit is then at least 4 GHz, since an idle processor reports a low clock.
double clock_limit(const ProcessorClocks& clocks);
// Asks the system once.
double clock_limit();

}  // namespace knear::detail
