// cli/machine.hpp -- measuring the peaks of this machine and keeping them for later searches
// (cost/peak_cache.hpp).
#pragma once
#include <string>

#include "knear/cost/peak_cache.hpp"

namespace knear::cli {

// "v100, a100, ...": the machines of known_machines().
std::string machine_names();

// Keeps each figure if it is the best so far. Throws IoError if the file can't be written or there
// is no place for it.
void keep_peaks(const MachinePeaks& peaks);

// Measures for about `seconds`, keeps the figures where there is a place for them, and returns the
// best so far.
KnownPeaks measure_and_keep_peaks(int threads, double seconds);

}  // namespace knear::cli
