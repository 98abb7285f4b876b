// knear/knn/rows/leaf_points.hpp -- the rows of the leaves of a tree of few columns as doubles, so
// that all rows of a leaf are measured side by side.
//
//   const LeafPoints points(rows, numbers, metric, threads);
//   const LeafPoints::Query query(metric, queries, 7);
//   double keys[LeafPoints::leaf_rows];
//   points.measure(leaf, query, keys);             // those of rows points.rows_of(leaf)
//
// Keys are those of ExactDistance, to the bit: with so few columns the order of a sum is that of a
// few additions. Memory: 8 bytes a column and row, and 4 a row; 8 more where the metric is cosine.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/scan/packing/base_rows.hpp"

namespace knear::detail {

class LeafPoints {
 public:
  static constexpr std::int64_t leaf_rows = 64, most_columns = 8;

  // A row of a matrix of queries, as doubles.
  struct Query {
    Query(Metric metric, AnyMatrixView queries, std::int64_t i);
    double x[most_columns];
    double squares;  // their sum, where the metric is cosine
  };

  LeafPoints() = default;
  // numbers: rows of the base, leaf_rows for each leaf but the last. Requires at most most_columns.
  LeafPoints(const BaseRows& rows, std::span<const std::uint32_t> numbers, Metric metric,
             int threads);

  bool empty() const { return numbers_.empty(); }
  std::int64_t leaves() const { return (std::ssize(numbers_) + leaf_rows - 1) / leaf_rows; }
  // The rows of a leaf.
  std::span<const std::uint32_t> rows_of(std::int64_t leaf) const {
    const std::size_t begin = leaf * leaf_rows;
    return std::span(numbers_).subspan(
        begin, std::min(static_cast<std::size_t>(leaf_rows), numbers_.size() - begin));
  }
  // Writes the keys of all rows of a leaf to keys [leaf_rows]; those beyond its last row mean
  // nothing.
  void measure(std::int64_t leaf, const Query& query, double* keys) const;

  std::int64_t bytes() const {
    return static_cast<std::int64_t>((columns_.capacity() + squares_.capacity()) * sizeof(double) +
                                     numbers_.capacity() * sizeof numbers_[0]);
  }

 private:
  Metric metric_ = Metric::l2;
  std::int64_t dim_ = 0;
  std::vector<std::uint32_t> numbers_;
  std::vector<double> columns_;  // [leaves][dim][leaf_rows]
  std::vector<double> squares_;  // [leaves][leaf_rows]: sums of squares, where the metric is cosine
};

}  // namespace knear::detail
