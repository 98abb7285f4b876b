// knear/core/metric.hpp -- what 'near' means; a header of its own, since GPU kernels include it
// too.
#pragma once
#include <cstdint>
#include <string_view>

namespace knear {

// l2: squared Euclidean distance, ascending. ip: inner product, descending. cosine: 1 - cos,
// ascending, 1 where either vector is zero.
enum class Metric : std::uint8_t { l2, ip, cosine };

// Functions of a metric are switches without a default, so that the compiler names those which do
// not know a new one.
constexpr std::string_view name_of(Metric metric) {
  switch (metric) {
    case Metric::l2:
      return "l2";
    case Metric::ip:
      return "ip";
    case Metric::cosine:
      break;
  }
  return "cosine";
}

// Whether the distances of a metric descend from the nearest on.
constexpr bool larger_is_nearer(Metric metric) {
  switch (metric) {
    case Metric::ip:
      return true;
    case Metric::l2:
    case Metric::cosine:
      break;
  }
  return false;
}

// Which end of a row of values a selection wants.
enum class Extreme : std::uint8_t { smallest, largest };

}  // namespace knear
