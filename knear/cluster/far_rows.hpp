// knear/cluster/far_rows.hpp -- where centroids without rows go: beside those whose rows cost most.
//
//   std::vector<Split> splits = splits_for_empty(far, weights, costs, metric, dim, 0);
//   make_splits(splits, numbers, rows, metric, centroids);
//
// A centroid without rows goes beside the one that costs most (ip: that has most rows), a short way
// towards the far row of that one, and takes the rows on that side: the far row at least. The other
// stays where it is, so that no row loses. A second one beside the same centroid goes in a
// direction of its own, and may get no row.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"

namespace knear::detail {

// The row of a centroid that gains most by a centroid of its own.
struct FarRow {
  double gain = 0;        // 0: no row gains
  std::int64_t row = -1;  // number among the rows of all processes
};

// Turns the order keys of rows into what each gains by a centroid of its own: its cost; for ip its
// length less its inner product. weights: of these rows; empty: 1.
void to_gains(AnyMatrixView rows, Metric metric, std::span<const float> weights, int threads,
              std::span<double> keys);

struct Split {
  std::int64_t empty, donor, row;  // row: the far row of the donor; -1: none
  double spread = 0;               // how far the rows of the donor are from it in a coordinate
};
// Chooses a donor for each of the centroids [fixed, count) that has no weight. far, weights, costs
// [count]: of each centroid its far row (or none of all), the weight of its rows and their cost.
std::vector<Split> splits_for_empty(std::span<const FarRow> far, std::span<const double> weights,
                                    const std::vector<double>& costs, Metric metric,
                                    std::int64_t dim, std::int64_t fixed);

// Writes the centroids without rows. rows: those of the splits, with these numbers, ascending.
void make_splits(std::span<const Split> splits, std::span<const std::int64_t> numbers,
                 AnyMatrixView rows, Metric metric, Matrix<float>& centroids);

}  // namespace knear::detail
