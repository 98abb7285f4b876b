// knear/core/metric.hpp -- what 'near' means; a header of its own, since GPU kernels include it
// too.
#pragma once
#include <cstdint>
#include <string_view>

namespace knear {

// l2: squared Euclidean distance, ascending. ip: inner product, descending. cosine: 1 - cos,
// ascending, 1 where either vector is zero. l1: sum of absolute differences, ascending. hamming:
// how many bits differ, ascending, of rows of u8 that hold eight bits a byte.
enum class Metric : std::uint8_t { l2, ip, cosine, l1, hamming };

// What the code asks of a metric, instead of comparing it with one by name.
struct MetricTraits {
  std::string_view name;
  bool larger_is_nearer;  // distances descend from the nearest on
  // The distance follows from the product of two rows and their lengths, so that rows are scanned
  // by codes with a bound, in lists, by graphs and on a GPU.
  bool by_products;
  bool squared;    // it is a sum of squares, whose root is a distance of points
  bool unit_rows;  // it is that of the rows divided by their lengths
  bool product;    // it is the product of the rows itself
  // Lists and graphs add a coordinate to each row, with which all rows have the same length, so
  // that the largest product is the least distance.
  bool lifted;
  bool bits;  // rows are bits, eight in a byte
};

// A switch without a default, so that the compiler names it where a metric is added. Inlined, so
// that asking costs no more than a comparison.
[[gnu::always_inline]] constexpr MetricTraits traits_of(Metric metric) {
  switch (metric) {
    case Metric::l2:
      return {.name = "l2",
              .larger_is_nearer = false,
              .by_products = true,
              .squared = true,
              .unit_rows = false,
              .product = false,
              .lifted = false,
              .bits = false};
    case Metric::ip:
      return {.name = "ip",
              .larger_is_nearer = true,
              .by_products = true,
              .squared = false,
              .unit_rows = false,
              .product = true,
              .lifted = true,
              .bits = false};
    case Metric::l1:
      return {.name = "l1",
              .larger_is_nearer = false,
              .by_products = false,
              .squared = false,
              .unit_rows = false,
              .product = false,
              .lifted = false,
              .bits = false};
    case Metric::hamming:
      return {.name = "hamming",
              .larger_is_nearer = false,
              .by_products = false,
              .squared = false,
              .unit_rows = false,
              .product = false,
              .lifted = false,
              .bits = true};
    case Metric::cosine:
      return {.name = "cosine",
              .larger_is_nearer = false,
              .by_products = true,
              .squared = false,
              .unit_rows = true,
              .product = false,
              .lifted = false,
              .bits = false};
  }
  __builtin_unreachable();  // files and callers name no other metric
}

inline constexpr Metric all_metrics[] = {Metric::l2, Metric::ip, Metric::cosine, Metric::l1,
                                         Metric::hamming};

constexpr std::string_view name_of(Metric metric) { return traits_of(metric).name; }

// Whether the distances of a metric descend from the nearest on.
constexpr bool larger_is_nearer(Metric metric) { return traits_of(metric).larger_is_nearer; }

// By which rows are given to the nearest of several centroids.
constexpr Metric centroid_metric(Metric metric) {
  return traits_of(metric).unit_rows ? Metric::cosine : Metric::l2;
}

// Which end of a row of values a selection wants.
enum class Extreme : std::uint8_t { smallest, largest };

}  // namespace knear
