// knear/core/neighbors.hpp -- the answer of every search.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"

namespace knear {

using Id = std::int64_t;
inline constexpr Id no_id = -1;

// The metric of this name (name_of), or of another word for it that is usual elsewhere, in small or
// capital letters: "euclidean" and "sqeuclidean" mean l2, "dot", "dot_product" and "inner_product"
// ip, "angular", "cosinesimil" and "cosine_similarity" cosine, "manhattan" and "cityblock" l1.
// Distances are those of the metric: of "euclidean" squares, of "angular" 1 - cos. Throws
// InvalidArgument for any other word.
Metric parse_metric(std::string_view name);

// Throws InvalidArgument for a metric that does not follow from products of rows (metric.hpp), of
// which `what` ("k-means") knows nothing.
inline void check_by_products(Metric asked, std::string_view what) {
  if (traits_of(asked).by_products) return;
  std::string names;
  for (const Metric metric : all_metrics)
    if (traits_of(metric).by_products)
      names += (names.empty() ? "" : ", ") + std::string(name_of(metric));
  throw InvalidArgument("metric is {}, but {} takes {} alone", name_of(asked), what, names);
}

// The distance that stands beside no_id where there was no neighbour.
constexpr float no_distance(Metric metric) {
  return larger_is_nearer(metric) ? -std::numeric_limits<float>::infinity()
                                  : std::numeric_limits<float>::infinity();
}

// [queries x k] ids and distances, nearest first, equal distances by ascending id. Places beyond
// the number of rows hold no_id and no_distance().
struct Neighbors {
  Matrix<Id> ids;
  Matrix<float> distances;
};

// All rows within a radius of each query, nearest first, equal distances by ascending id. Those of
// query q stand at places begin[q], ..., begin[q + 1] - 1 of ids and distances; begin has queries +
// 1 elements.
struct RangeNeighbors {
  std::vector<std::int64_t> begin;
  std::vector<Id> ids;
  std::vector<float> distances;
};

}  // namespace knear
