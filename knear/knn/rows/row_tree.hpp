// knear/knn/rows/row_tree.hpp -- rows of few columns as the leaves of a tree of boxes, so that a
// search looks at few of them: a box says how near its rows may be.
//
//   const auto tree = RowTree::make(rows, space, threads, progress);
//   const BoxTree::Leaves first = tree->boxes().start(x, k);  // leaves that have k rows
//   tree->boxes().within(x, key, leaves);                     // all that may have a nearer one
//
// The tree is that of Friedman, Bentley and Finkel (1977): each node is split across its longest
// side. Leaves are inverted lists to the scan, each coded around the middle of its box.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/scan/packing/packed_lists.hpp"

namespace knear::detail {

class BoxTree {
 public:
  // Rows of a leaf: whole panels.
  static constexpr std::int64_t leaf_rows = 2 * panel_rows;

  // Leaves begin, ..., end - 1.
  struct Leaves {
    std::int64_t begin, end;
  };

  BoxTree() = default;
  // points [rows x dim]: rows of length 1 or 0 where the metric is cosine. Requires a row.
  BoxTree(MatrixView<double> points, Metric metric, int threads);

  std::int64_t leaves() const { return leaves_; }
  // The rows, leaf by leaf: leaf_rows each, the last has the rest.
  std::span<const std::uint32_t> order() const { return order_; }
  // The least and the largest value of each column in a leaf.
  std::span<const double> low(std::int64_t leaf) const { return low_of(leaf_nodes_[leaf]); }
  std::span<const double> high(std::int64_t leaf) const { return high_of(leaf_nodes_[leaf]); }

  // The leaves of the smallest box on the way down to x [dim] that has k rows, or of all.
  Leaves start(const double* x, std::int64_t k) const;
  // Adds the leaves that may have a row whose key is at most `key`.
  void within(const double* x, double key, std::vector<std::int64_t>& out) const;

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(boxes_.capacity() * sizeof(double) +
                                     nodes_.capacity() * sizeof(Node) +
                                     (order_.capacity() + leaf_nodes_.capacity()) * 4);
  }
  // What remains once rows are packed in this order.
  void drop_order() { order_ = {}; }

 private:
  // The left child of node i is i + 1; those of its leaves come first.
  struct Node {
    std::int32_t first_leaf, leaves;
  };
  std::size_t right_of(std::size_t node) const {
    return node + 2 * static_cast<std::size_t>(nodes_[node].leaves / 2);
  }
  std::span<const double> low_of(std::size_t node) const {
    return std::span(boxes_).subspan(2 * node * dim_, dim_);
  }
  std::span<const double> high_of(std::size_t node) const {
    return std::span(boxes_).subspan((2 * node + 1) * dim_, dim_);
  }
  void split(MatrixView<double> points, std::size_t node);
  // No row of the node has a smaller key.
  double least_key(std::size_t node, const double* x) const;

  Metric metric_ = Metric::l2;
  std::size_t dim_ = 0;
  std::int64_t rows_ = 0, leaves_ = 0;
  std::vector<Node> nodes_;    // [2 leaves - 1], each before its children
  std::vector<double> boxes_;  // [nodes][low, high][dim]
  std::vector<std::uint32_t> leaf_nodes_;
  std::vector<std::uint32_t> order_;
};

class RowTree {
 public:
  // Columns of rows that may have one.
  static constexpr std::int64_t most_columns = 16;

  // All rows; copies of a row are in it once. space: that of the rows, whose mean does not count.
  static std::shared_ptr<const RowTree> make(const BaseRows& rows, const CodingSpace& space,
                                             int threads, const Progress& progress);

  const BoxTree& boxes() const { return boxes_; }
  // Of the leaves.
  const PackedLists& lists() const { return lists_; }
  std::int64_t bytes() const { return boxes_.bytes() + lists_.bytes(); }

 private:
  BoxTree boxes_;
  PackedLists lists_;
};

// Rows as a tree compares them: as doubles, of length 1 where the metric is cosine.
Matrix<double> tree_points(AnyMatrixView rows, Metric metric, int threads);

// How many leaves a query for the k nearest of these rows looks at, on average, found on a sample
// of the rows and of the queries.
double leaves_of_query(const BaseRows& rows, AnyMatrixView queries, Metric metric, std::int64_t k);

}  // namespace knear::detail
