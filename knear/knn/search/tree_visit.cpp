#include "knear/knn/search/tree_visit.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "knear/knn/rows/list_centres.hpp"
#include "knear/knn/rows/row_tree.hpp"

namespace knear::detail {

TreeVisit visit_of_query(const BaseRows& rows, AnyMatrixView queries, const CodingSpace& space,
                         std::int64_t k, std::optional<double> key_of_all) {
  constexpr std::int64_t most_numbers = 1 << 20, most_queries = 32;
  const Metric metric = space.metric;
  const std::int64_t most_rows = std::clamp<std::int64_t>(most_numbers / rows.cols(), 1024, 8192);
  const AnyMatrix some = rows.sample(std::min(most_rows, rows.rows()));
  const Matrix<double> all = tree_points(some.view(), metric, 1);
  const Duplicates copies = Duplicates::find(some.view(), {}, 1);
  const auto row_of = [&](std::int64_t i) {
    return copies.any() ? std::int64_t{copies.distinct()[i]} : i;
  };
  Matrix<double> points(copies.any() ? std::ssize(copies.distinct()) : all.rows(), all.cols());
  for (std::int64_t i = 0; i < points.rows(); ++i)
    std::copy_n(all.row(row_of(i)), all.cols(), points.row(i));
  const bool few = rows.cols() <= RowTree::few_columns;
  const BoxTree tree =
      few ? BoxTree(points.view(), metric, 1) : BoxTree::of_clusters(points.view(), metric);
  TreeVisit out;
  out.rows = static_cast<double>(points.rows());
  if (!few) {
    std::vector<std::uint32_t> list_of(some.rows(), 0);
    for (std::int64_t leaf = 0; leaf < tree.leaves(); ++leaf)
      for (std::int64_t i = tree.begin_of(leaf); i < tree.begin_of(leaf + 1); ++i) {
        const std::uint32_t point = tree.order()[i];
        list_of[row_of(point)] = static_cast<std::uint32_t>(leaf);
      }
    out.pays =
        tree.leaves() > 1 && centres_that_pay(some.view(), list_of, space, centres_of(tree)).any();
    if (!out.pays) return out;
  }
  const std::int64_t count = std::min(most_queries, queries.rows());
  std::vector<double> keys;
  std::vector<std::int64_t> leaves;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t q = queries.rows() * i / count;
    const Matrix<double> x = tree_points(queries.rows(q, q + 1), metric, 1);
    if (key_of_all) {
      tree.within(x.data(), *key_of_all, leaves);
      continue;
    }
    const BoxTree::Leaves first = tree.start(x.data(), k);
    keys.clear();
    for (std::int64_t at = tree.begin_of(first.begin); at < tree.begin_of(first.end); ++at) {
      const double* const y = points.row(tree.order()[at]);
      double key = 0;
      for (std::int64_t j = 0; j < points.cols(); ++j)
        key += traits_of(metric).product ? -x.data()[j] * y[j]
                                         : (x.data()[j] - y[j]) * (x.data()[j] - y[j]);
      keys.push_back(traits_of(metric).unit_rows ? key / 2 : key);
    }
    double kth = std::numeric_limits<double>::infinity();
    if (std::ssize(keys) >= k) {
      std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
      kth = keys[k - 1];
    }
    tree.within(x.data(), kth, leaves);
  }
  double visited = 0;
  for (const std::int64_t leaf : leaves)
    visited += static_cast<double>(tree.begin_of(leaf + 1) - tree.begin_of(leaf));
  out.leaves = static_cast<double>(leaves.size()) / static_cast<double>(count);
  out.share = visited / static_cast<double>(count * points.rows());
  return out;
}

}  // namespace knear::detail
