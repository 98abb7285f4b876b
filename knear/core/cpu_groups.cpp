#include "knear/core/cpu_groups.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

// Takes a number from the front of a text; -1: there is none.
int take_number(std::string_view& text) {
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || out < 0 || out >= detail::CpuMask::most) return -1;
  text.remove_prefix(end - text.data());
  return out;
}

// None where the system does not say.
CpuSet numbers_of(const std::optional<detail::CpuMask>& mask) {
  CpuSet out;
  if (mask)
    for (int cpu = 0; cpu < detail::CpuMask::most; ++cpu)
      if (mask->has(cpu)) out.push_back(cpu);
  return out;
}

// Of each node that the system tells of.
std::vector<CpuSet> read_nodes() {
  std::map<int, CpuSet> nodes;
  std::error_code none;
  const std::filesystem::path folder = "/sys/devices/system/node";
  for (std::filesystem::directory_iterator entry(folder, none), end; !none && entry != end;
       entry.increment(none)) {
    const std::string name = entry->path().filename().string();
    std::string_view rest = name;
    if (!rest.starts_with("node")) continue;
    rest.remove_prefix(4);
    const int number = take_number(rest);
    if (number < 0 || !rest.empty()) continue;
    std::ifstream file(entry->path() / "cpulist");
    std::string line;
    if (std::getline(file, line)) nodes[number] = parse_cpu_list(line);
  }
  std::vector<CpuSet> out;
  for (auto& [number, cpus] : nodes) out.push_back(std::move(cpus));
  return out;
}

std::vector<CpuSet> groups_asked_for(std::string_view text) {
  // As it was at first: later the first thread may be within run_on().
  static const CpuSet usable = numbers_of(detail::cpus_of_first_thread());
  std::vector<CpuSet> out;
  CpuSet seen;
  for (std::string_view rest = text;;) {
    const std::size_t colon = rest.find(':');
    const CpuSet cpus = parse_cpu_list(rest.substr(0, colon));
    if (cpus.empty())
      throw InvalidArgument(
          "KNEAR_CPU_GROUPS is '{}', which is no list of groups like 0-7,16-23:8-15,24-31", text);
    for (const int cpu : cpus) {
      if (!std::binary_search(usable.begin(), usable.end(), cpu))
        throw InvalidArgument("KNEAR_CPU_GROUPS names processor {}, which this process may not use",
                              cpu);
      if (std::find(seen.begin(), seen.end(), cpu) != seen.end())
        throw InvalidArgument("KNEAR_CPU_GROUPS names processor {} twice", cpu);
      seen.push_back(cpu);
    }
    out.push_back(cpus);
    if (colon == std::string_view::npos) return out;
    rest.remove_prefix(colon + 1);
  }
}

}  // namespace

CpuSet parse_cpu_list(std::string_view text) {
  CpuSet out;
  while (true) {
    const int first = take_number(text);
    int last = first;
    if (first >= 0 && text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first) return {};
    for (int cpu = first; cpu <= last; ++cpu) out.push_back(cpu);
    if (text.empty()) break;
    if (!text.starts_with(',')) return {};
    text.remove_prefix(1);
  }
  std::sort(out.begin(), out.end());
  return std::adjacent_find(out.begin(), out.end()) == out.end() ? out : CpuSet{};
}

std::vector<CpuSet> cpu_groups() {
  CpuSet usable = numbers_of(detail::cpus_of_thread());
  if (is_within_run_on()) return {std::move(usable)};
  static const std::vector<CpuSet> nodes = read_nodes();
  const char* asked = std::getenv("KNEAR_CPU_GROUPS");
  std::vector<CpuSet> out;
  for (const CpuSet& group : asked ? groups_asked_for(asked) : nodes) {
    CpuSet both;
    std::set_intersection(group.begin(), group.end(), usable.begin(), usable.end(),
                          std::back_inserter(both));
    if (!both.empty()) out.push_back(std::move(both));
  }
  if (out.empty() || (!asked && out.size() < 2)) return {std::move(usable)};
  return out;
}

CpuSet cpus_of_part(const std::vector<CpuSet>& groups, std::int64_t part, std::int64_t parts) {
  const std::int64_t count = std::ssize(groups);
  const std::int64_t first = part * count / parts,
                     last = std::max(first + 1, (part + 1) * count / parts);
  CpuSet out;
  for (std::int64_t g = first; g < last; ++g)
    out.insert(out.end(), groups[g].begin(), groups[g].end());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace knear
