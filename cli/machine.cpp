#include "cli/machine.hpp"

#include <algorithm>
#include <filesystem>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/roofline.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/byte_source.hpp"

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

MachineDescription this_machine(const MachinePeaks& peaks) {
  MachineDescription out;
  out.name = processor_name(), out.peaks = peaks;
  out.memory_bytes = double(machine_memory());
  return out;
}

NamedMachine machine_of(const std::string& name_or_file) {
  if (name_or_file == "this") {
    const KnownPeaks known = known_peaks(active_isa(), resolve_threads(0));
    return {this_machine(known.peaks), known.measured};
  }
  for (const KnownMachine& machine : known_machines())
    if (machine.name == name_or_file)
      throw InvalidArgument(
          "--machine is {}, of which only the rates are known: a plan takes 'this', or a file that "
          "knear roofline --out wrote",
          name_or_file);
  std::error_code failed;
  if (!std::filesystem::exists(name_or_file, failed))
    throw IoError(
        "--machine is '{}', which is no file, nor 'this' (knear roofline --out writes one)",
        name_or_file);
  const io::MappedFile file(name_or_file);
  if (file.size() > 1 << 20)
    throw CorruptFile("{}: a machine's description has at most 1 MiB, but this has {} bytes",
                      name_or_file, file.size());
  const std::string text(reinterpret_cast<const char*>(file.data()), std::size_t(file.size()));
  return {parse_machine(text, name_or_file), true};
}

}  // namespace knear::cli
