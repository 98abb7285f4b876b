// bench/gpu/targets.hpp -- what the GPU code is to reach, against what was measured in this run.
#pragma once
#include "bench/gpu/report.hpp"

namespace knear::bench {

// Fills report.targets from report.entries; what has no entry is skipped with the reason.
void judge_targets(Report& report);

}  // namespace knear::bench
