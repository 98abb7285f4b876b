// knear/core/metric.hpp -- what 'near' means; a header of its own, since GPU kernels include it
// too.
#pragma once
#include <cstdint>
#include <string_view>

namespace knear {

// l2: squared Euclidean distance, ascending. ip: inner product, descending. cosine: 1 - cos,
// ascending, 1 where either vector is zero.
enum class Metric : std::uint8_t { l2, ip, cosine };

constexpr std::string_view name_of(Metric metric) {
  return metric == Metric::l2 ? "l2" : metric == Metric::ip ? "ip" : "cosine";
}

// Which end of a row of values a selection wants.
enum class Extreme : std::uint8_t { smallest, largest };

}  // namespace knear
