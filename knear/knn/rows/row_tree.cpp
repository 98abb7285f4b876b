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
// More than underflow takes off a key.
constexpr double underflow = 1e-300;
// More than float64 rounds off keys of so many columns, of boxes and of the reference, relative to
// their terms; keys of cosine are at most 2. A sum of d terms in any order is right to d times
// 2^-53, and rows of length 1 are divided by the root of such a sum.
double rounding_of(std::size_t columns) { return 1e-12 + 0x1p-49 * static_cast<double>(columns); }

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
    : metric_(metric), dim_(points.cols()) {
  const std::int64_t leaves = (points.rows() + leaf_rows - 1) / leaf_rows;
  nodes_.resize(2 * leaves - 1);
  boxes_.resize(2 * nodes_.size() * dim_);
  leaf_nodes_.resize(leaves);
  order_.resize(points.rows());
  std::iota(order_.begin(), order_.end(), 0u);
  for (std::int64_t leaf = 0; leaf <= leaves; ++leaf)
    leaf_begin_.push_back(std::min(points.rows(), leaf * leaf_rows));
  nodes_[0] = {0, static_cast<std::int32_t>(leaves), static_cast<std::int32_t>(leaves / 2)};
  std::vector<std::size_t> level = {0};
  while (!level.empty()) {
    parallel_for(threads, std::ssize(level), [&](std::int64_t i) { split(points, level[i]); });
    std::vector<std::size_t> next;
    for (const std::size_t node : level)
      if (nodes_[node].leaves > 1) next.push_back(node + 1), next.push_back(right_of(node));
    level = std::move(next);
  }
}

BoxTree BoxTree::of_clusters(MatrixView<double> points, Metric metric) {
  BoxTree out;
  out.metric_ = metric, out.dim_ = static_cast<std::size_t>(points.cols());
  out.order_.resize(points.rows());
  std::iota(out.order_.begin(), out.order_.end(), 0u);
  out.leaf_begin_ = {0};
  out.add_clusters(points, 0, out.order_.size(), most_clusters);
  return out;
}

std::size_t BoxTree::set_box(MatrixView<double> points, std::size_t node, std::size_t begin,
                             std::size_t end) {
  double* const low = boxes_.data() + 2 * node * dim_;
  double* const high = low + dim_;
  std::fill_n(low, dim_, no_bound), std::fill_n(high, dim_, -no_bound);
  for (std::size_t i = begin; i < end; ++i) {
    const double* const x = points.row(order_[i]);
    for (std::size_t j = 0; j < dim_; ++j)
      low[j] = std::min(low[j], x[j]), high[j] = std::max(high[j], x[j]);
  }
  std::size_t longest = 0;
  for (std::size_t j = 1; j < dim_; ++j)
    if (high[j] - low[j] > high[longest] - low[longest]) longest = j;
  return longest;
}

void BoxTree::split(MatrixView<double> points, std::size_t node) {
  const Node& here = nodes_[node];
  const auto begin = static_cast<std::size_t>(begin_of(here.first_leaf)),
             end = static_cast<std::size_t>(begin_of(here.first_leaf + here.leaves));
  const auto column = static_cast<std::int64_t>(set_box(points, node, begin, end));
  if (here.leaves == 1) {
    leaf_nodes_[here.first_leaf] = static_cast<std::uint32_t>(node);
    return;
  }
  const std::int32_t left = here.left, right = here.leaves - left;
  const auto at = [&](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::size_t middle = begin_of(here.first_leaf + left);
  std::nth_element(at(begin), at(middle), at(end), [&](std::uint32_t a, std::uint32_t b) {
    return points.row(a)[column] < points.row(b)[column];
  });
  nodes_[node + 1] = {here.first_leaf, left, left / 2};
  nodes_[right_of(node)] = {here.first_leaf + left, right, right / 2};
}

namespace {

// Returns a number in the widest gap of the column of some rows, which lie between low and high;
// no_bound if no gap is wide.
double gap_of(MatrixView<double> points, std::span<const std::uint32_t> rows, std::int64_t column,
              double low, double high) {
  constexpr int buckets = 256, least_gap = 16;
  const double width = high / buckets - low / buckets;
  if (!(width > 0)) return no_bound;
  bool has_rows[buckets] = {};
  for (const std::uint32_t row : rows) {
    const double place = (points.row(row)[column] - low) / width;
    has_rows[static_cast<int>(std::clamp(place, 0.0, buckets - 1.0))] = true;
  }
  int last = 0, widest = 0, end = 0;
  for (int b = 1; b < buckets; ++b) {
    if (!has_rows[b]) continue;
    if (b - last > widest) widest = b - last, end = b;
    last = b;
  }
  return widest >= least_gap ? low + width * (end - widest / 2.0) : no_bound;
}

}  // namespace

void BoxTree::add_clusters(MatrixView<double> points, std::size_t begin, std::size_t end,
                           std::int64_t most) {
  const std::size_t node = nodes_.size();
  const auto first_leaf = static_cast<std::int32_t>(leaf_nodes_.size());
  nodes_.push_back({first_leaf, 1, 0});
  boxes_.resize(2 * nodes_.size() * dim_);
  const std::size_t longest = set_box(points, node, begin, end);
  const auto column = static_cast<std::int64_t>(longest);
  const std::span<std::uint32_t> rows = std::span(order_).subspan(begin, end - begin);
  const double gap =
      most > 1 ? gap_of(points, rows, column, low_of(node)[longest], high_of(node)[longest])
               : no_bound;
  const auto middle = std::partition(rows.begin(), rows.end(), [&](std::uint32_t row) {
    return gap != no_bound && points.row(row)[column] < gap;
  });
  const std::size_t at = begin + static_cast<std::size_t>(middle - rows.begin());
  // Without a gap; and numbers that are few units in the last place apart may be on one side.
  if (at == begin || at == end) {
    leaf_nodes_.push_back(static_cast<std::uint32_t>(node));
    leaf_begin_.push_back(static_cast<std::int64_t>(end));
    return;
  }
  add_clusters(points, begin, at, most - 1);
  const auto left = static_cast<std::int32_t>(leaf_nodes_.size()) - first_leaf;
  add_clusters(points, at, end, most - left);
  const auto leaves = static_cast<std::int32_t>(leaf_nodes_.size()) - first_leaf;
  nodes_[node] = {first_leaf, leaves, left};
}

double BoxTree::least_key(std::size_t node, const double* x) const {
  const double rounding = rounding_of(dim_);
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
    if (rows_of(nearer) < k) break;
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

ListCentres centres_of(const BoxTree& boxes) {
  const std::int64_t columns = boxes.leaves() > 0 ? std::ssize(boxes.low(0)) : 0;
  auto out = std::make_shared<Matrix<float>>(boxes.leaves(), columns);
  for (std::int64_t leaf = 0; leaf < boxes.leaves(); ++leaf)
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::size_t at = j;
      out->row(leaf)[j] = static_cast<float>(boxes.low(leaf)[at] / 2 + boxes.high(leaf)[at] / 2);
    }
  return {out->view(), out};
}

std::shared_ptr<const RowTree> RowTree::make(const BaseRows& rows, const CodingSpace& space,
                                             int threads, const Progress& progress) {
  auto out = std::make_shared<RowTree>();
  Duplicates copies = Duplicates::find(rows, {}, threads);
  const std::int64_t n = copies.any() ? std::ssize(copies.distinct()) : rows.rows();
  const auto row_of = [&](std::int64_t i) {
    return copies.any() ? copies.distinct()[i] : static_cast<std::uint32_t>(i);
  };
  Matrix<double> points(n, rows.cols());
  constexpr std::int64_t block = 4096;
  parallel_for(threads, (n + block - 1) / block, [&](std::int64_t b) {
    std::vector<std::byte> scratch(rows.scratch_bytes());
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
      std::copy_n(tree_points(rows.row_view(row_of(i), scratch.data()), space.metric, 1).data(),
                  rows.cols(), points.row(i));
  });
  const bool few = rows.cols() <= few_columns;
  out->boxes_ = few ? BoxTree(points.view(), space.metric, threads)
                    : BoxTree::of_clusters(points.view(), space.metric);
  const BoxTree& boxes = out->boxes_;
  if (few) {
    std::vector<std::uint32_t> order;
    for (const std::uint32_t point : boxes.order()) order.push_back(row_of(point));
    if (rows.cols() <= LeafPoints::most_columns) {
      out->points_ = LeafPoints(rows, order, space.metric, threads);
      out->lists_.packed.duplicates = std::move(copies);
      out->boxes_.drop_order();
      return out;
    }
    std::vector<std::int64_t>& first_panel = out->lists_.first_panel;
    for (std::int64_t leaf = 1; leaf <= boxes.leaves(); ++leaf)
      first_panel.push_back((boxes.begin_of(leaf) + panel_rows - 1) / panel_rows);
    out->lists_.packed = PackedBase::certified_around(rows, order, first_panel, format_int8, space,
                                                      centres_of(boxes), threads, progress);
  } else {
    std::vector<std::uint32_t> list_of(rows.rows(), PackedLists::no_list);
    for (std::int64_t leaf = 0; leaf < boxes.leaves(); ++leaf)
      for (std::int64_t i = boxes.begin_of(leaf); i < boxes.begin_of(leaf + 1); ++i)
        list_of[row_of(boxes.order()[i])] = static_cast<std::uint32_t>(leaf);
    out->lists_ = PackedLists::certified(rows, list_of, boxes.leaves(), format_int8, space, threads,
                                         progress, centres_of(boxes));
  }
  out->lists_.packed.duplicates = std::move(copies);
  out->boxes_.drop_order();
  return out;
}

}  // namespace knear::detail
