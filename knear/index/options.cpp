#include "knear/index/options.hpp"

#include <algorithm>

#include "knear/core/error.hpp"

namespace knear {

namespace {

// Returns the number of bytes of the printable character at the beginning of a text in UTF-8, or 0.
std::size_t printable_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if (byte(i) >> 6 != 2) return 0;
  // Overlong forms, surrogates, what is beyond Unicode, and the control characters after ASCII's.
  const unsigned second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) ||
      (first == 0xc2 && second < 0xa0))
    return 0;
  return bytes;
}

}  // namespace

TrafficName::TrafficName(std::string_view name) : size_(static_cast<std::uint8_t>(name.size())) {
  if (name.size() > longest)
    throw InvalidArgument("traffic must have at most {} bytes, but has {}", longest, name.size());
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t bytes = printable_bytes(name.substr(at));
    if (bytes == 0)
      throw InvalidArgument("traffic must be printable text in UTF-8, but byte {} is 0x{:02x}", at,
                            static_cast<unsigned char>(name[at]));
    at += bytes;
  }
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
