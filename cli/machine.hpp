// cli/machine.hpp -- measures the peaks of this machine and stores them for later searches
// (cost/peak_cache.hpp); machines as files describe them (cost/machine_description.hpp).
#pragma once
#include <string>

#include "knear/cost/machine_description.hpp"
#include "knear/cost/peak_cache.hpp"

namespace knear::cli {

// "v100, a100, ...": the machines of known_machines().
std::string machine_names();

// Stores each figure if it is the best so far. Throws IoError if the file cannot be written or
// there is no place for it.
void keep_peaks(const MachinePeaks& peaks);

// Measures for about `seconds`, stores the figures if possible, and returns the best so far.
KnownPeaks measure_and_keep_peaks(int threads, double seconds);

// This machine with these peaks: its memory and name; its network and price are not known.
MachineDescription this_machine(const MachinePeaks& peaks);

struct NamedMachine {
  MachineDescription description;
  bool measured = true;  // if not, its rates are estimated_peaks()
};
// "this", with the peaks that are known of it, or the file of a description. Throws IoError,
// CorruptFile, and InvalidArgument for a name of known_machines(), of which a plan knows too
// little.
NamedMachine machine_of(const std::string& name_or_file);

}  // namespace knear::cli
