#include "knear/index/options.hpp"

#include <algorithm>

#include "knear/core/error.hpp"

namespace knear {

TrafficName::TrafficName(std::string_view name) : size_(static_cast<std::uint8_t>(name.size())) {
  if (name.size() > longest)
    throw InvalidArgument("traffic must have at most {} bytes, but has {}", longest, name.size());
  std::copy(name.begin(), name.end(), bytes_.begin());
}

}  // namespace knear

namespace knear::detail {

MethodOptions method_of_scan(const SearchMethod& method) {
  if (method.probes != 0)
    throw InvalidArgument("probes is {}, but there are no inverted lists", method.probes);
  if (method.lists.widen) throw InvalidArgument("widen is on, but there are no inverted lists");
  if (method.ef != 0) throw InvalidArgument("ef is {}, but there is no graph", method.ef);
  if (method.lists.certify) throw InvalidArgument("certify is on, but there are no inverted lists");
  if (method.codes.refine_factor != 0)
    throw InvalidArgument("refine_factor is {}, but there are no codes to refine",
                          method.codes.refine_factor);
  return {method.kind, method.recall, method.threshold_heap, method.partial_reduce};
}

KnnOptions options_of_scan(const SearchOptions& options, Metric metric) {
  return options.with(metric, RowFilter{}, method_of_scan(options.method));
}

KnnOptions options_of_part(const SearchOptions& options, Metric metric) {
  return {.metric = metric,
          .threads = options.threads,
          .memory = options.memory,
          .progress = options.progress,
          .device = options.device};
}

}  // namespace knear::detail
