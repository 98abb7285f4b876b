// knear/cost/peak_cache.hpp -- the measured peaks of this machine, which `knear roofline` stores
// and later searches plan by, and the estimates that they plan by until then.
//
//   const MachinePeaks& peaks = planning_peaks(active_isa(), threads);
//
// The file is $XDG_CACHE_HOME/knear/roofline.json (~/.cache without it), with one entry per
// processor model, instruction set and number of threads. One that makes no sense, or that
// an earlier version measured otherwise, is ignored: figures decide how fast an answer comes, not
// which.
#pragma once
#include <string>

#include "knear/cost/peaks.hpp"

namespace knear {

// The directory for files that can be made again, without a trailing slash; empty where neither
// XDG_CACHE_HOME nor HOME is set.
std::string cache_directory();

// The file of the figures; empty where there is no directory for it.
std::string peak_cache_file();

// The model name that the system reports for this processor, or "unknown processor".
std::string processor_name();

struct KnownPeaks {
  MachinePeaks peaks;
  bool measured = false;  // if not, they are estimated_peaks()
};

// The figures of the file as it is now. threads as in resolve_threads.
KnownPeaks known_peaks(Isa isa, int threads);

// The better figures of two measurements with the same instructions and threads: whatever else runs
// on a machine can only make one too low.
MachinePeaks better_of(const MachinePeaks& a, const MachinePeaks& b);

// The text of the file with these figures added, each if it is the best so far.
std::string peak_cache_with(const MachinePeaks& peaks);

// What known_peaks() says when a program first asks; the file is not read again. May be called from
// any thread.
const MachinePeaks& planning_peaks(Isa isa, int threads);

}  // namespace knear
