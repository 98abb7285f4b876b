// knear/knn/rows/row_tree.hpp -- rows of few columns, or in far clusters, as the leaves of a tree
// of boxes, so that a search looks at few of them: a box says how near its rows may be.
//
//   const auto tree = RowTree::make(rows, space, threads, progress);
//   const BoxTree::Leaves first = tree->boxes().start(x, k);  // leaves that have k rows
//   tree->boxes().within(x, key, leaves);                     // all that may have a nearer one
//
// The tree is that of Friedman, Bentley and Finkel (1977): each node is split across its longest
// side. Leaves are inverted lists to the scan, each coded around the middle of its box. Rows of few
// columns have leaves of a few rows each; up to 8 columns these are measured as they are
// (knn/rows/leaf_points.hpp). With more than 16 columns boxes only tell clusters apart: then
// each cluster is a leaf.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/knn/rows/leaf_points.hpp"
#include "knear/scan/packing/packed_lists.hpp"

namespace knear::detail {

class BoxTree {
 public:
  // Rows of a leaf of few columns: whole panels.
  static constexpr std::int64_t leaf_rows = 2 * panel_rows;
  static_assert(leaf_rows == LeafPoints::leaf_rows);
  // The largest number of clusters.
  static constexpr std::int64_t most_clusters = 64;

  // Leaves begin, ..., end - 1.
  struct Leaves {
    std::int64_t begin, end;
  };

  BoxTree() = default;
  // points [rows x dim]: rows of length 1 or 0 where the metric is cosine. Requires a row.
  BoxTree(MatrixView<double> points, Metric metric, int threads);
  // Splits the rows where the longest side of their box has a wide gap, until no box has one.
  static BoxTree of_clusters(MatrixView<double> points, Metric metric);

  std::int64_t leaves() const { return std::ssize(leaf_nodes_); }
  // The rows, leaf by leaf; and the place of the first row of a leaf, or of all if leaf is
  // leaves().
  std::span<const std::uint32_t> order() const { return order_; }
  std::int64_t begin_of(std::int64_t leaf) const { return leaf_begin_[leaf]; }
  // The least and the largest value of each column in a leaf.
  std::span<const double> low(std::int64_t leaf) const { return low_of(leaf_nodes_[leaf]); }
  std::span<const double> high(std::int64_t leaf) const { return high_of(leaf_nodes_[leaf]); }

  // The leaves of the smallest box on the way down to x [dim] that has k rows, or of all.
  Leaves start(const double* x, std::int64_t k) const;
  // Adds the leaves that may have a row whose key is at most `key`.
  void within(const double* x, double key, std::vector<std::int64_t>& out) const;
  // Calls take(leaf) for the leaves that may have a row whose key is at most bound() at that time,
  // nearer ones first, until it returns false.
  template <class Bound, class Take>
  void visit(const double* x, Bound bound, Take take) const {
    struct Open {
      std::size_t node;
      double least;
    };
    // A node is replaced by its children, and no way down is longer: boxes are halved.
    Open open[most_depth];
    std::size_t count = 1;
    open[0] = {0, least_key(0, x)};
    while (count > 0) {
      const auto [node, least] = open[--count];
      if (least > bound()) continue;
      if (nodes_[node].leaves == 1) {
        if (!take(std::int64_t{nodes_[node].first_leaf})) return;
        continue;
      }
      Open nearer{node + 1, least_key(node + 1, x)},
          farther{right_of(node), least_key(right_of(node), x)};
      if (farther.least < nearer.least) std::swap(nearer, farther);
      open[count++] = farther, open[count++] = nearer;
    }
  }

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(boxes_.capacity() * sizeof(double) +
                                     nodes_.capacity() * sizeof(Node) +
                                     leaf_begin_.capacity() * sizeof(std::int64_t) +
                                     (order_.capacity() + leaf_nodes_.capacity()) * 4);
  }
  // What remains once rows are packed in this order.
  void drop_order() { order_ = {}; }

 private:
  // Leaves of few columns are fewer than 2^31, and clusters than most_clusters.
  static constexpr std::size_t most_depth = 128;

  // The left child of node i is i + 1. Its leaves come first, `left` of all.
  struct Node {
    std::int32_t first_leaf, leaves, left;
  };
  std::size_t right_of(std::size_t node) const {
    return node + 2 * static_cast<std::size_t>(nodes_[node].left);
  }
  std::int64_t rows_of(std::size_t node) const {
    return begin_of(nodes_[node].first_leaf + nodes_[node].leaves) -
           begin_of(nodes_[node].first_leaf);
  }
  std::span<const double> low_of(std::size_t node) const {
    return std::span(boxes_).subspan(2 * node * dim_, dim_);
  }
  std::span<const double> high_of(std::size_t node) const {
    return std::span(boxes_).subspan((2 * node + 1) * dim_, dim_);
  }
  // Sets the box of a node that has rows [begin, end) of the order; returns its longest side.
  std::size_t set_box(MatrixView<double> points, std::size_t node, std::size_t begin,
                      std::size_t end);
  void split(MatrixView<double> points, std::size_t node);
  // Adds a node for rows [begin, end) of the order, and all below it: `most` leaves at most.
  void add_clusters(MatrixView<double> points, std::size_t begin, std::size_t end,
                    std::int64_t most);
  // No row of the node has a smaller key.
  double least_key(std::size_t node, const double* x) const;

  Metric metric_ = Metric::l2;
  std::size_t dim_ = 0;
  std::vector<Node> nodes_;                // [2 leaves - 1], each before its children
  std::vector<double> boxes_;              // [nodes][low, high][dim]
  std::vector<std::uint32_t> leaf_nodes_;  // [leaves]
  std::vector<std::int64_t> leaf_begin_;   // [leaves + 1] places in the order
  std::vector<std::uint32_t> order_;
};

class RowTree {
 public:
  // Up to this many columns leaves are of a few rows each.
  static constexpr std::int64_t few_columns = 16;

  // All rows; copies of a row are in it once. space: that of the rows, whose mean does not count.
  static std::shared_ptr<const RowTree> make(const BaseRows& rows, const CodingSpace& space,
                                             int threads, const Progress& progress);

  const BoxTree& boxes() const { return boxes_; }
  // The rows of leaves of up to LeafPoints::most_columns; of others there are none.
  const LeafPoints& points() const { return points_; }
  // The rows of other leaves.
  const PackedLists& lists() const { return lists_; }
  // Which rows stand for others in the leaves.
  const Duplicates& copies() const { return lists_.packed.duplicates; }
  std::int64_t bytes() const { return boxes_.bytes() + points_.bytes() + lists_.bytes(); }

 private:
  BoxTree boxes_;
  LeafPoints points_;
  PackedLists lists_;
};

// Rows as a tree compares them: as doubles, of length 1 where the metric is cosine.
Matrix<double> tree_points(AnyMatrixView rows, Metric metric, int threads);

// Returns the middles of the boxes of leaves.
ListCentres centres_of(const BoxTree& boxes);

}  // namespace knear::detail
