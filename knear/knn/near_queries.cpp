#include "knear/knn/near_queries.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/core/unit_length.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/packing/coding.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t most_sampled = 128, steps = 4, queries_together = 256;

// The first principal component of some of the queries [columns], of length 1; empty where these
// are all alike.
std::vector<double> direction_of(AnyMatrixView queries, double& unit) {
  const std::int64_t dim = queries.cols(), count = std::min(queries.rows(), most_sampled);
  std::vector<double> some(count * dim);
  for (std::int64_t i = 0; i < count; ++i)
    row_as_doubles(queries, queries.rows() * i / count, some.data() + i * dim);
  // In a unit of which no square is too large.
  for (const double x : some) unit = std::max(unit, std::abs(x));
  if (unit == 0) return {};
  std::vector<double> mean(dim, 0.0);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < dim; ++j) {
      double& x = some[i * dim + j];
      x /= unit;
      mean[j] += x / static_cast<double>(count);
    }
  std::int64_t farthest = 0;
  double most = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    double* const row = some.data() + i * dim;
    for (std::int64_t j = 0; j < dim; ++j) row[j] -= mean[j];
    if (const double squares = dot(row, row, dim); squares > most) most = squares, farthest = i;
  }
  const double* const first = some.data() + farthest * dim;
  std::vector<double> direction(first, first + dim);
  for (std::int64_t step = 0; give_unit_length(direction.data(), dim); ++step) {
    if (step == steps) return direction;
    std::vector<double> next(direction.size(), 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      const double* const row = some.data() + i * dim;
      const double along = dot(row, direction.data(), dim);
      for (std::int64_t j = 0; j < dim; ++j) next[j] += along * row[j];
    }
    direction = std::move(next);
  }
  return {};
}

}  // namespace

std::vector<std::int64_t> order_of_near(AnyMatrixView queries, int threads) {
  const std::int64_t rows = queries.rows(), dim = queries.cols();
  std::vector<std::int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  double unit = 0;
  const std::vector<double> direction = direction_of(queries, unit);
  if (direction.empty()) return order;
  std::vector<double> along(order.size());
  parallel_for(threads, (rows + queries_together - 1) / queries_together, [&](std::int64_t b) {
    std::vector<double> row(dim);
    for (std::int64_t q = b * queries_together; q < std::min(rows, (b + 1) * queries_together);
         ++q) {
      row_as_doubles(queries, q, row.data());
      const double place = dot(row.data(), direction.data(), dim) / unit;
      // Infinities of either sign may be NaN together, by which nothing can be sorted.
      along[q] = std::isnan(place) ? 0 : place;
    }
  });
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return along[a] < along[b]; });
  return order;
}

}  // namespace knear::detail
