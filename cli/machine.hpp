// cli/machine.hpp -- measures the peaks of this machine and stores them for later searches
// (cost/peak_cache.hpp).
#pragma once
#include <string>

#include "knear/cost/peak_cache.hpp"

namespace knear::cli {

// "v100, a100, ...": the machines of known_machines().
std::string machine_names();

// Stores each figure if it is the best so far. Throws IoError if the file cannot be written or
// there is no place for it.
void keep_peaks(const MachinePeaks& peaks);

// Measures for about `seconds`, stores the figures if possible, and returns the best so far.
KnownPeaks measure_and_keep_peaks(int threads, double seconds);

}  // namespace knear::cli
