// knear/cluster/row_values.hpp -- rows and centroids in the numbers by which k-means adds them up.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"

namespace knear::detail {

// Returns true if centroids have length 1.
inline bool is_spherical(Metric metric) { return !traits_of(metric).squared; }

// out [dim] = the row as doubles; of length 1 for cosine, unless it is zero.
template <class T>
void load_row(const T* row, std::int64_t dim, Metric metric, double* out) {
  double squares = 0;
  for (std::int64_t j = 0; j < dim; ++j) {
    out[j] = to_double(row[j]);
    squares += out[j] * out[j];
  }
  if (!traits_of(metric).unit_rows || squares == 0) return;
  const double length = std::sqrt(squares);
  for (std::int64_t j = 0; j < dim; ++j) out[j] /= length;
}

inline void load_row(AnyMatrixView rows, std::int64_t i, Metric metric, double* out) {
  visit(rows, [&](auto typed) { load_row(typed.row(i), typed.cols(), metric, out); });
}

// Writes a centroid; one of spherical k-means gets length 1. False, and nothing is written, if that
// is impossible.
bool write_centroid(const std::vector<double>& from, bool spherical, float* to);

}  // namespace knear::detail
