#include "knear/core/processor_model.hpp"

#include <algorithm>
#include <istream>
#include <sstream>

namespace knear::detail {

std::string processor_model_in(std::istream& cpuinfo) {
  std::string implementer, part, variant;
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer") && implementer.empty()) implementer = value;
    if (line.starts_with("CPU part") && part.empty()) part = value;
    if (line.starts_with("CPU variant") && variant.empty()) variant = value;
  }
  if (implementer.empty() || part.empty()) return "";
  return "implementer " + implementer + ", part " + part +
         (variant.empty() ? "" : ", variant " + variant);
}

double processor_clock_in(std::istream& cpuinfo) {
  double highest = 0;
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos || !line.starts_with("cpu MHz")) continue;
    double megahertz = 0;
    if (std::istringstream(line.substr(colon + 2)) >> megahertz)
      highest = std::max(highest, 1e6 * megahertz);
  }
  return highest;
}

}  // namespace knear::detail
