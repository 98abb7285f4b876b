#include "cli/machine.hpp"

#include <filesystem>

#include "knear/core/error.hpp"
#include "knear/cost/roofline.hpp"
#include "knear/io/atomic_file.hpp"

namespace knear::cli {

std::string machine_names() {
  std::string out;
  for (const KnownMachine& machine : known_machines())
    out += (out.empty() ? "" : ", ") + std::string(machine.name);
  return out;
}

void keep_peaks(const MachinePeaks& peaks) {
  const std::string path = peak_cache_file();
  if (path.empty()) throw IoError("no place to keep the figures: HOME is not set");
  const std::string text = peak_cache_with(peaks);
  std::error_code failed;
  std::filesystem::create_directories(cache_directory(), failed);
  if (failed) throw IoError("cannot make {}: {}", cache_directory(), failed.message());
  io::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

KnownPeaks measure_and_keep_peaks(int threads, double seconds) {
  const MachinePeaks peaks = measure_peaks(threads, seconds);
  try {
    keep_peaks(peaks);
  } catch (const IoError&) {  // nowhere to store them: the next run measures again
    return {peaks, true};
  }
  return known_peaks(peaks.isa, peaks.threads);
}

}  // namespace knear::cli
