#include "knear/knn/rows/row_tree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {
namespace {

constexpr double no_bound = std::numeric_limits<double>::infinity();
// More than float64 rounds off keys of so few columns, of boxes and of the reference, relative to
// their terms, and more than underflow takes off; keys of cosine are at most 2.
constexpr double rounding = 1e-12, underflow = 1e-300;

}  // namespace

Matrix<double> tree_points(AnyMatrixView rows, Metric metric, int threads) {
  Matrix<double> out(rows.rows(), rows.cols());
  constexpr std::int64_t block = 4096;
  parallel_for(threads, (rows.rows() + block - 1) / block, [&](std::int64_t b) {
    for (std::int64_t i = b * block; i < std::min(rows.rows(), (b + 1) * block); ++i) {
      double* const x = out.row(i);
      row_as_doubles(rows, i, x);
      if (!traits_of(metric).unit_rows) continue;
      double squares = 0;
      for (std::int64_t j = 0; j < rows.cols(); ++j) squares += x[j] * x[j];
      if (squares > 0)
        for (std::int64_t j = 0; j < rows.cols(); ++j) x[j] /= std::sqrt(squares);
    }
  });
  return out;
}

BoxTree::BoxTree(MatrixView<double> points, Metric metric, int threads)
    : metric_(metric),
      dim_(static_cast<std::size_t>(points.cols())),
      rows_(points.rows()),
      leaves_((points.rows() + leaf_rows - 1) / leaf_rows),
      nodes_(static_cast<std::size_t>(2 * leaves_ - 1)),
      boxes_(2 * nodes_.size() * dim_),
      leaf_nodes_(static_cast<std::size_t>(leaves_)),
      order_(static_cast<std::size_t>(points.rows())) {
  std::iota(order_.begin(), order_.end(), 0u);
  nodes_[0] = {0, static_cast<std::int32_t>(leaves_)};
  std::vector<std::size_t> level = {0};
  while (!level.empty()) {
    parallel_for(threads, std::ssize(level),
                 [&](std::int64_t i) { split(points, level[static_cast<std::size_t>(i)]); });
    std::vector<std::size_t> next;
    for (const std::size_t node : level)
      if (nodes_[node].leaves > 1) next.push_back(node + 1), next.push_back(right_of(node));
    level = std::move(next);
  }
}

void BoxTree::split(MatrixView<double> points, std::size_t node) {
  const Node& here = nodes_[node];
  const std::size_t begin = static_cast<std::size_t>(here.first_leaf * leaf_rows),
                    end = std::min(order_.size(), static_cast<std::size_t>(
                                                      (here.first_leaf + here.leaves) * leaf_rows));
  double* const low = boxes_.data() + 2 * node * dim_;
  double* const high = low + dim_;
  std::fill_n(low, dim_, no_bound), std::fill_n(high, dim_, -no_bound);
  for (std::size_t i = begin; i < end; ++i) {
    const double* const x = points.row(order_[i]);
    for (std::size_t j = 0; j < dim_; ++j)
      low[j] = std::min(low[j], x[j]), high[j] = std::max(high[j], x[j]);
  }
  if (here.leaves == 1) {
    leaf_nodes_[static_cast<std::size_t>(here.first_leaf)] = static_cast<std::uint32_t>(node);
    return;
  }
  std::size_t longest = 0;
  for (std::size_t j = 1; j < dim_; ++j)
    if (high[j] - low[j] > high[longest] - low[longest]) longest = j;
  const std::int32_t left = here.leaves / 2;
  const auto at = [&](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::size_t middle = static_cast<std::size_t>((here.first_leaf + left) * leaf_rows);
  const auto column = static_cast<std::int64_t>(longest);
  std::nth_element(at(begin), at(middle), at(end), [&](std::uint32_t a, std::uint32_t b) {
    return points.row(a)[column] < points.row(b)[column];
  });
  nodes_[node + 1] = {here.first_leaf, left};
  nodes_[right_of(node)] = {here.first_leaf + left, here.leaves - left};
}

double BoxTree::least_key(std::size_t node, const double* x) const {
  const double* const low = low_of(node).data();
  const double* const high = high_of(node).data();
  if (traits_of(metric_).product) {
    double sum = 0, size = 0;
    for (std::size_t j = 0; j < dim_; ++j) {
      const double a = x[j] * low[j], b = x[j] * high[j];
      sum += std::max(a, b), size += std::max(std::fabs(a), std::fabs(b));
    }
    return -sum - rounding * size - underflow;
  }
  double squares = 0;
  for (std::size_t j = 0; j < dim_; ++j) {
    const double beside = std::max({low[j] - x[j], 0.0, x[j] - high[j]});
    squares += beside * beside;
  }
  return traits_of(metric_).unit_rows ? squares / 2 - rounding
                                      : squares * (1 - rounding) - underflow;
}

BoxTree::Leaves BoxTree::start(const double* x, std::int64_t k) const {
  std::size_t node = 0;
  while (nodes_[node].leaves > 1) {
    const std::size_t left = node + 1, right = right_of(node);
    const std::size_t nearer = least_key(right, x) < least_key(left, x) ? right : left;
    const Node& next = nodes_[nearer];
    const std::int64_t end = (std::int64_t{next.first_leaf} + next.leaves) * leaf_rows;
    if (std::min(end, rows_) - next.first_leaf * leaf_rows < k) break;
    node = nearer;
  }
  return {nodes_[node].first_leaf, nodes_[node].first_leaf + nodes_[node].leaves};
}

void BoxTree::within(const double* x, double key, std::vector<std::int64_t>& out) const {
  std::vector<std::pair<std::size_t, double>> open;
  const auto look_at = [&](std::size_t node) {
    if (const double least = least_key(node, x); least <= key) open.emplace_back(node, least);
  };
  look_at(0);
  while (!open.empty()) {
    const std::size_t node = open.back().first;
    open.pop_back();
    if (nodes_[node].leaves == 1) {
      out.push_back(nodes_[node].first_leaf);
      continue;
    }
    look_at(node + 1), look_at(right_of(node));
  }
}

std::shared_ptr<const RowTree> RowTree::make(const BaseRows& rows, const CodingSpace& space,
                                             int threads, const Progress& progress) {
  auto out = std::make_shared<RowTree>();
  Duplicates copies = Duplicates::find(rows, {}, threads);
  const std::int64_t n = copies.any() ? std::ssize(copies.distinct()) : rows.rows();
  const auto row_of = [&](std::int64_t i) {
    return copies.any() ? copies.distinct()[static_cast<std::size_t>(i)]
                        : static_cast<std::uint32_t>(i);
  };
  Matrix<double> points(n, rows.cols());
  constexpr std::int64_t block = 4096;
  parallel_for(threads, (n + block - 1) / block, [&](std::int64_t b) {
    std::vector<std::byte> scratch(rows.scratch_bytes());
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
      std::copy_n(tree_points(rows.row_view(row_of(i), scratch.data()), space.metric, 1).data(),
                  rows.cols(), points.row(i));
  });
  out->boxes_ = BoxTree(points.view(), space.metric, threads);
  const BoxTree& boxes = out->boxes_;
  auto centres = std::make_shared<Matrix<float>>(boxes.leaves(), rows.cols());
  for (std::int64_t leaf = 0; leaf < boxes.leaves(); ++leaf)
    for (std::int64_t j = 0; j < rows.cols(); ++j) {
      const auto at = static_cast<std::size_t>(j);
      centres->row(leaf)[j] =
          static_cast<float>(boxes.low(leaf)[at] / 2 + boxes.high(leaf)[at] / 2);
    }
  std::vector<std::uint32_t> order;
  for (const std::uint32_t point : boxes.order()) order.push_back(row_of(point));
  std::vector<std::int64_t>& first_panel = out->lists_.first_panel;
  for (std::int64_t leaf = 1; leaf <= boxes.leaves(); ++leaf)
    first_panel.push_back((std::min(n, leaf * BoxTree::leaf_rows) + panel_rows - 1) / panel_rows);
  out->lists_.packed = PackedBase::certified_around(rows, order, first_panel, format_int8, space,
                                                    {centres->view(), centres}, threads, progress);
  out->lists_.packed.duplicates = std::move(copies);
  out->boxes_.drop_order();
  return out;
}

double leaves_of_query(const BaseRows& rows, AnyMatrixView queries, Metric metric, std::int64_t k) {
  constexpr std::int64_t most_rows = 8192, most_queries = 32;
  const AnyMatrix some = rows.sample(std::min(most_rows, rows.rows()));
  const Matrix<double> all = tree_points(some.view(), metric, 1);
  const Duplicates copies = Duplicates::find(some.view(), {}, 1);
  Matrix<double> points(copies.any() ? std::ssize(copies.distinct()) : all.rows(), all.cols());
  for (std::int64_t i = 0; i < points.rows(); ++i)
    std::copy_n(all.row(copies.any() ? copies.distinct()[static_cast<std::size_t>(i)] : i),
                all.cols(), points.row(i));
  const BoxTree tree(points.view(), metric, 1);
  const std::int64_t count = std::min(most_queries, queries.rows());
  std::vector<double> keys;
  std::vector<std::int64_t> leaves;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t q = queries.rows() * i / count;
    const Matrix<double> x = tree_points(queries.rows(q, q + 1), metric, 1);
    const BoxTree::Leaves first = tree.start(x.data(), k);
    keys.clear();
    const std::int64_t end = std::min(points.rows(), first.end * BoxTree::leaf_rows);
    for (std::int64_t at = first.begin * BoxTree::leaf_rows; at < end; ++at) {
      const double* const y = points.row(tree.order()[static_cast<std::size_t>(at)]);
      double key = 0;
      for (std::int64_t j = 0; j < points.cols(); ++j)
        key += traits_of(metric).product ? -x.data()[j] * y[j]
                                         : (x.data()[j] - y[j]) * (x.data()[j] - y[j]);
      keys.push_back(traits_of(metric).unit_rows ? key / 2 : key);
    }
    double kth = no_bound;
    if (std::ssize(keys) >= k) {
      std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
      kth = keys[static_cast<std::size_t>(k - 1)];
    }
    tree.within(x.data(), kth, leaves);
  }
  return static_cast<double>(leaves.size()) / static_cast<double>(count);
}

}  // namespace knear::detail
