// bench/gpu/targets.hpp -- compares the targets of the GPU code with what was measured in this run.
#pragma once
#include "bench/gpu/report.hpp"

namespace knear::bench {

// Fills report.targets from report.entries; a target without an entry is skipped with the reason.
void judge_targets(Report& report);

}  // namespace knear::bench
