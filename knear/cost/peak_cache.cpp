#include "knear/cost/peak_cache.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "knear/core/json.hpp"
#include "knear/core/process_mutex.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/clock_limit.hpp"

namespace knear {
namespace {

struct Field {
  const char* name;
  double MachinePeaks::*value;
};
constexpr Field fields[] = {{"fp32_flops", &MachinePeaks::fp32_flops},
                            {"bf16_flops", &MachinePeaks::bf16_flops},
                            {"int16_ops", &MachinePeaks::int16_ops},
                            {"int8_ops", &MachinePeaks::int8_ops},
                            {"memory_bytes_per_second", &MachinePeaks::memory_bytes_per_second},
                            {"cop_per_second", &MachinePeaks::cop_per_second},
                            {"cycles_per_second", &MachinePeaks::cycles_per_second}};

// Of the loops that the figures were measured with. The clock of an earlier version could be
// several times too high.
constexpr int loops_version = 2;

std::string entry_name(Isa isa, int threads) {
  return fmt::format("{} / {} / {} threads", processor_name(), name_of(isa), threads);
}

// The file's content as an object, empty if there is no file that parses.
nlohmann::ordered_json read_kept() {
  const std::string path = peak_cache_file();
  std::error_code none;
  if (path.empty() || std::filesystem::file_size(path, none) > 1 << 20 || none)
    return nlohmann::ordered_json::object();
  std::ifstream file(path);
  nlohmann::ordered_json kept = nlohmann::ordered_json::parse(file, nullptr, false);
  return kept.is_object() ? kept : nlohmann::ordered_json::object();
}

double number_in(const nlohmann::ordered_json& object, const char* name) {
  const auto value = object.find(name);
  return value != object.end() && value->is_number() ? value->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

// Whether a figure is plausible for a machine for which `guess` is the estimate.
bool plausible(double value, double guess) { return value > guess / 50 && value < guess * 50; }

}  // namespace

std::string cache_directory() {
  // The XDG specification says that relative paths are to be ignored.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && xdg[0] == '/')
    return std::string(xdg) + "/knear";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.cache/knear" : "";
}

std::string peak_cache_file() {
  const std::string directory = cache_directory();
  return directory.empty() ? "" : directory + "/roofline.json";
}

std::string processor_name() {
  const std::string model = detail::processor_model();
  return model.empty() ? "unknown processor" : model;
}

KnownPeaks known_peaks(Isa isa, int threads) {
  threads = resolve_threads(threads);
  const KnownPeaks guess{estimated_peaks(isa, threads), false};
  const nlohmann::ordered_json kept = read_kept();
  const auto entry = kept.find(entry_name(isa, threads));
  if (entry == kept.end() || !entry->is_object()) return guess;
  if (number_in(*entry, "version") != loops_version) return guess;
  MachinePeaks peaks;
  peaks.isa = isa, peaks.threads = threads;
  for (const Field& field : fields) {
    peaks.*field.value = number_in(*entry, field.name);
    if (field.value != &MachinePeaks::bf16_flops &&
        field.value != &MachinePeaks::cycles_per_second &&
        !plausible(peaks.*field.value, guess.peaks.*field.value))
      return guess;
  }
  if (!plausible(peaks.cycles_per_second, guess.peaks.cycles_per_second) ||
      peaks.cycles_per_second > threads * detail::clock_limit())
    peaks.cycles_per_second = 0;
  if (!plausible(peaks.bf16_flops, guess.peaks.fp32_flops))
    peaks.bf16_flops = std::numeric_limits<double>::quiet_NaN();
  const auto caches = entry->find("caches");
  if (caches != entry->end() && caches->is_array())
    for (std::size_t level = 0; level < std::min<std::size_t>(caches->size(), 3); ++level) {
      const nlohmann::ordered_json& cache = (*caches)[level];
      if (!cache.is_object()) continue;
      const double bytes = number_in(cache, "bytes"), rate = number_in(cache, "bytes_per_second");
      if (bytes >= 1 && bytes < 1e12 && plausible(rate, 20 * guess.peaks.memory_bytes_per_second))
        peaks.caches[level] = {static_cast<std::int64_t>(bytes), rate};
    }
  return {peaks, true};
}

MachinePeaks better_of(const MachinePeaks& a, const MachinePeaks& b) {
  MachinePeaks best = a;
  for (const Field& field : fields) best.*field.value = std::fmax(a.*field.value, b.*field.value);
  for (int level = 0; level < 3; ++level)
    if (b.caches[level].bytes == a.caches[level].bytes &&
        b.caches[level].bytes_per_second > a.caches[level].bytes_per_second)
      best.caches[level] = b.caches[level];
  return best;
}

std::string peak_cache_with(const MachinePeaks& peaks) {
  const KnownPeaks before = known_peaks(peaks.isa, peaks.threads);
  const MachinePeaks best = before.measured ? better_of(peaks, before.peaks) : peaks;
  nlohmann::ordered_json kept = read_kept();
  nlohmann::ordered_json& entry = kept[entry_name(peaks.isa, peaks.threads)] =
      nlohmann::ordered_json::object();
  entry["version"] = loops_version;
  for (const Field& field : fields)
    if (std::isfinite(best.*field.value)) entry[field.name] = best.*field.value;
  nlohmann::ordered_json& caches = entry["caches"] = nlohmann::ordered_json::array();
  for (const CachePeak& cache : best.caches)
    caches.push_back({{"bytes", cache.bytes}, {"bytes_per_second", cache.bytes_per_second}});
  return kept.dump(2) + "\n";
}

const MachinePeaks& planning_peaks(Isa isa, int threads) {
  // Every search that is planned takes it, and a child process may be forked meanwhile.
  static detail::ProcessMutex mutex;
  static std::map<std::pair<Isa, int>, MachinePeaks> known;
  threads = resolve_threads(threads);
  std::lock_guard lock(mutex);
  auto found = known.find({isa, threads});
  if (found == known.end())
    found = known.emplace(std::pair(isa, threads), known_peaks(isa, threads).peaks).first;
  return found->second;
}

}  // namespace knear
