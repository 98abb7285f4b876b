#include "knear/knn/rows/leaf_points.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {
namespace {

// The sum of up to 8 terms in the order of distance/reference.hpp: term i is partial sum i, and the
// upper half of the sums is added to the lower one until one is left.
template <int dim, int half = 4>
double ordered_sum(double* terms) {
  if constexpr (half == 0) {
    return terms[0];
  } else {
    for (int j = 0; j + half < dim; ++j) terms[j] += terms[j + half];
    return ordered_sum<(dim < half ? dim : half), half / 2>(terms);
  }
}

// columns [dim][leaf_rows].
template <int dim, bool squared>
void sums_of(const double* columns, const double* x, double* out) {
  for (std::int64_t i = 0; i < LeafPoints::leaf_rows; ++i) {
    double terms[dim];
    for (int j = 0; j < dim; ++j) {
      const double y = columns[j * LeafPoints::leaf_rows + i];
      // A partial sum begins with 0, so that it is never -0.
      terms[j] = squared ? (x[j] - y) * (x[j] - y) : 0.0 + x[j] * y;
    }
    out[i] = ordered_sum<dim>(terms);
  }
}

using Sums = void (*)(const double*, const double*, double*);
template <bool squared, int... dims>
constexpr std::array<Sums, sizeof...(dims)> sums_by_columns(std::integer_sequence<int, dims...>) {
  return {sums_of<dims + 1, squared>...};
}
constexpr auto all_columns = std::make_integer_sequence<int, LeafPoints::most_columns>();

Sums sums_for(Metric metric, std::int64_t dim) {
  static constexpr auto squared = sums_by_columns<true>(all_columns),
                        product = sums_by_columns<false>(all_columns);
  return (traits_of(metric).squared ? squared : product)[dim - 1];
}

}  // namespace

LeafPoints::Query::Query(Metric metric, AnyMatrixView queries, std::int64_t i) : squares(0) {
  row_as_doubles(queries, i, x);
  if (!traits_of(metric).unit_rows) return;
  double one[leaf_rows], columns[most_columns * leaf_rows] = {};
  for (std::int64_t j = 0; j < queries.cols(); ++j) columns[j * leaf_rows] = x[j];
  sums_for(metric, queries.cols())(columns, x, one);
  squares = one[0];
}

LeafPoints::LeafPoints(const BaseRows& rows, std::span<const std::uint32_t> numbers, Metric metric,
                       int threads)
    : metric_(metric),
      dim_(rows.cols()),
      numbers_(numbers.begin(), numbers.end()),
      columns_(leaves() * dim_ * leaf_rows),
      squares_(traits_of(metric).unit_rows ? static_cast<std::size_t>(leaves() * leaf_rows) : 0) {
  parallel_for(threads, leaves(), [&](std::int64_t leaf) {
    std::vector<std::byte> scratch(rows.scratch_bytes());
    double* const columns = columns_.data() + leaf * dim_ * leaf_rows;
    const std::span<const std::uint32_t> of_leaf = rows_of(leaf);
    for (std::size_t i = 0; i < of_leaf.size(); ++i) {
      const Query row(metric, rows.row_view(of_leaf[i], scratch.data()), 0);
      for (std::int64_t j = 0; j < dim_; ++j)
        columns[j * leaf_rows + static_cast<std::int64_t>(i)] = row.x[j];
      if (!squares_.empty()) squares_[static_cast<std::size_t>(leaf * leaf_rows) + i] = row.squares;
    }
  });
}

void LeafPoints::measure(std::int64_t leaf, const Query& query, double* keys) const {
  double sums[leaf_rows];
  sums_for(metric_, dim_)(columns_.data() + leaf * dim_ * leaf_rows, query.x, sums);
  const double* const squares = squares_.empty() ? nullptr : squares_.data() + leaf * leaf_rows;
  for (std::int64_t i = 0; i < leaf_rows; ++i)
    keys[i] = exact_key(metric_, sums[i], query.squares, squares ? squares[i] : 0);
}

}  // namespace knear::detail
