#include "bench/gpu/ceiling.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace knear::bench {
namespace {

std::optional<double> best_rate(const Report& report, const std::string& name) {
  std::optional<double> out;
  for (const Entry& entry : report.entries)
    if (entry.name == name) out = std::max(out.value_or(0), entry.value);
  return out;
}

}  // namespace

Ceiling product_ceiling(const Report& report, const std::string& type) {
  const std::optional<double> product = best_rate(report, type + " product");
  if (!product)
    return {{},
            !report.no_cublaslt.empty() ? "unmeasured: no cuBLASLt"
                                        : fmt::format("unmeasured: no {} product", type)};
  return {std::max(*product, best_rate(report, type + " mma.sync").value_or(0)), type};
}

void hold_against(const Ceiling& ceiling, Entry& entry) {
  if (ceiling.rate) entry.of_peak = entry.value / *ceiling.rate;
  entry.peak = ceiling.name;
}

}  // namespace knear::bench
