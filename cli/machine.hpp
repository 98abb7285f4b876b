// cli/machine.hpp -- the measured peaks of this machine, kept from one `knear roofline` to the next
// commands.
//
// Kept in $XDG_CACHE_HOME/knear/roofline.json (~/.cache without it), one entry per processor model,
// instruction set and number of threads. A file that makes no sense is as good as none.
#pragma once
#include <string>

#include "knear/cost/peaks.hpp"

namespace knear::cli {

// The directory for things that can be made again, without a trailing slash; empty where neither
// XDG_CACHE_HOME nor HOME is set.
std::string cache_directory();

// The model name that the system reports for this processor, or "unknown processor".
std::string processor_name();

struct KnownPeaks {
  MachinePeaks peaks;
  bool measured = false;  // else a guess from the instruction set
};

// The kept figures for the instruction set in use and this many threads, else estimated_peaks().
KnownPeaks known_peaks(int threads);

// "v100, a100, ...": the machines of known_machines().
std::string machine_names();

// Keeps each figure if it is the best so far: whatever else runs on a machine can only make a
// measurement too low. Throws IoError if the file can't be written or there is no place for it.
void keep_peaks(const MachinePeaks& peaks);

// Measures for about `seconds`, keeps the figures where there is a place for them, and returns the
// best so far.
KnownPeaks measure_and_keep_peaks(int threads, double seconds);

}  // namespace knear::cli
