#include "cli/machine.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "knear/core/error.hpp"
#include "knear/cost/roofline.hpp"
#include "knear/io/atomic_file.hpp"

namespace knear::cli {
namespace {

using Json = nlohmann::json;

struct Field {
  const char* name;
  double MachinePeaks::*value;
};
constexpr Field fields[] = {{"fp32_flops", &MachinePeaks::fp32_flops},
                            {"bf16_flops", &MachinePeaks::bf16_flops},
                            {"int16_ops", &MachinePeaks::int16_ops},
                            {"int8_ops", &MachinePeaks::int8_ops},
                            {"memory_bytes_per_second", &MachinePeaks::memory_bytes_per_second},
                            {"cop_per_second", &MachinePeaks::cop_per_second}};

std::string entry_name(Isa isa, int threads) {
  return fmt::format("{} / {} / {} threads", processor_name(), name_of(isa), threads);
}

std::string kept_file() {
  const std::string directory = cache_directory();
  return directory.empty() ? "" : directory + "/roofline.json";
}

// The whole file as an object, empty if there is none that parses.
Json read_kept() {
  const std::string path = kept_file();
  std::error_code none;
  if (path.empty() || std::filesystem::file_size(path, none) > 1 << 20 || none)
    return Json::object();
  std::ifstream file(path);
  Json kept = Json::parse(file, nullptr, false);
  return kept.is_object() ? kept : Json::object();
}

}  // namespace

std::string cache_directory() {
  // The XDG specification has relative paths ignored.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && xdg[0] == '/')
    return std::string(xdg) + "/knear";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.cache/knear" : "";
}

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  return "unknown processor";
}

KnownPeaks known_peaks(int threads) {
  const Isa isa = active_isa();
  KnownPeaks guess{estimated_peaks(isa, threads), false};
  const Json kept = read_kept();
  const auto entry = kept.find(entry_name(isa, threads));
  if (entry == kept.end() || !entry->is_object()) return guess;
  MachinePeaks peaks;
  peaks.isa = isa, peaks.threads = threads;
  for (const Field& field : fields) {
    const auto value = entry->find(field.name);
    const bool lacking = value == entry->end() || value->is_null();
    if (!lacking && !value->is_number()) return guess;
    peaks.*field.value = lacking ? std::numeric_limits<double>::quiet_NaN() : value->get<double>();
    if (field.value != &MachinePeaks::bf16_flops && !(peaks.*field.value > 0)) return guess;
  }
  return {peaks, true};
}

std::string machine_names() {
  std::string out;
  for (const KnownMachine& machine : known_machines())
    out += (out.empty() ? "" : ", ") + std::string(machine.name);
  return out;
}

void keep_peaks(const MachinePeaks& peaks) {
  const std::string path = kept_file();
  if (path.empty()) throw IoError("no place to keep the figures: HOME is not set");
  const KnownPeaks before = known_peaks(peaks.threads);
  Json kept = read_kept();
  Json& entry = kept[entry_name(peaks.isa, peaks.threads)] = Json::object();
  for (const Field& field : fields) {
    double value = peaks.*field.value;
    if (before.measured) value = std::fmax(value, before.peaks.*field.value);
    if (std::isfinite(value)) entry[field.name] = value;
  }
  std::error_code failed;
  std::filesystem::create_directories(cache_directory(), failed);
  if (failed) throw IoError("cannot make {}: {}", cache_directory(), failed.message());
  const std::string text = kept.dump(2) + "\n";
  io::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

KnownPeaks measure_and_keep_peaks(int threads, double seconds) {
  const MachinePeaks peaks = measure_peaks(threads, seconds);
  try {
    keep_peaks(peaks);
  } catch (const IoError&) {  // no place to keep them: the next run measures again
    return {peaks, true};
  }
  return known_peaks(threads);
}

}  // namespace knear::cli
