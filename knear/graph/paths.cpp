#include "knear/graph/paths.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "knear/core/public_call.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/graph/disjoint_sets.hpp"
#include "knear/graph/path_search.hpp"

namespace knear {
namespace {

constexpr float no_step = std::numeric_limits<float>::infinity();

// Rows, edges or steps after which it is asked whether to go on.
constexpr std::int64_t rows_between_checks = 16384;

std::size_t place(std::int64_t row) { return row; }

struct Edge {
  float length;
  std::uint32_t a, b;
};

// The least spanning forest of a graph, by Kruskal.
struct SpanningForest {
  SpanningForest(const SparseGraph& symmetric, Metric metric) : components(symmetric.rows()) {
    const Id rows = symmetric.rows();
    std::vector<Edge> edges;
    edges.reserve(symmetric.ids.size() / 2);
    for (Id a = 0; a < rows; ++a) {
      if (a % rows_between_checks == 0) stop_if_asked();
      for (auto e = place(symmetric.begin[place(a)]); e < place(symmetric.begin[place(a) + 1]); ++e)
        if (const Id b = symmetric.ids[e]; a < b)
          edges.push_back({detail::step_length(symmetric.distances[e], metric),
                           static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)});
    }
    std::sort(edges.begin(), edges.end(),
              [](const Edge& x, const Edge& y) { return x.length < y.length; });

    // The tree of joins: each set that is joined to a larger one hangs from it at the step that did
    // it. Steps grow towards the root, and no way to it is longer than log2(rows).
    parent.resize(place(rows));
    for (Id row = 0; row < rows; ++row) parent[place(row)] = row;
    joined_at.assign(place(rows), no_step);
    detail::DisjointSets sets(rows);
    std::int64_t seen = 0;
    std::size_t kept = 0;
    for (const Edge& edge : edges) {
      if (seen++ % rows_between_checks == 0) stop_if_asked();
      const Id a = sets.find(edge.a), b = sets.find(edge.b);
      if (!sets.join(a, b)) continue;
      const Id root = sets.find(a), other = root == a ? b : a;
      parent[place(other)] = root;
      joined_at[place(other)] = edge.length;
      --components;
      edges[kept++] = edge;
    }
    edges.resize(kept);
    order = depth_first(edges, place(rows));
  }

  // The rows of each tree as one comes to them from its first, so that those which few short steps
  // connect lie near each other.
  static std::vector<std::uint32_t> depth_first(const std::vector<Edge>& tree, std::size_t rows) {
    std::vector<std::size_t> begin(rows + 2, 0);
    std::vector<std::uint32_t> ends(2 * tree.size());
    for (const Edge& edge : tree) ++begin[place(edge.a) + 2], ++begin[place(edge.b) + 2];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const Edge& edge : tree) {
      ends[begin[place(edge.a) + 1]++] = edge.b;
      ends[begin[place(edge.b) + 1]++] = edge.a;
    }
    std::vector<std::uint32_t> out, open;
    out.reserve(rows);
    std::vector<bool> seen(rows, false);
    for (std::size_t first = 0; first < rows; ++first) {
      if (seen[first]) continue;
      seen[first] = true;
      open.push_back(static_cast<std::uint32_t>(first));
      while (!open.empty()) {
        const std::size_t row = open.back();
        open.pop_back();
        if (out.size() % rows_between_checks == 0) stop_if_asked();
        out.push_back(static_cast<std::uint32_t>(row));
        for (std::size_t e = begin[row]; e < begin[row + 1]; ++e) {
          if (seen[ends[e]]) continue;
          seen[ends[e]] = true;
          open.push_back(ends[e]);
        }
      }
    }
    return out;
  }

  std::int64_t components;
  std::vector<Id> parent;
  std::vector<float> joined_at;
  std::vector<std::uint32_t> order;
};

}  // namespace

struct PathFinder::Forest {
  Forest(const SparseGraph& symmetric, Metric graph_metric)
      : metric(graph_metric),
        joins((detail::check_steps(symmetric, metric), SpanningForest(symmetric, metric))),
        graph(symmetric, metric, std::move(joins.order)) {}

  float length_between(Id a, Id b) const {
    const auto steps = graph.from(graph.place_of(a));
    const std::uint32_t to = graph.place_of(b);
    return std::find_if(steps.begin(), steps.end(),
                        [&](const auto& step) { return step.place == to; })
        ->length;
  }

  void check(const char* name, Id row) const {
    if (row < 0 || row >= graph.rows())
      throw InvalidArgument("{} is row {}, but the graph has {} rows", name, row, graph.rows());
  }

  // The largest step of the smoothest path between two rows that are not the same.
  std::optional<float> largest_between(Id a, Id b) const {
    float largest = -no_step;
    while (a != b) {
      if (joins.joined_at[place(a)] > joins.joined_at[place(b)]) std::swap(a, b);
      largest = joins.joined_at[place(a)];
      if (largest == no_step) return {};
      a = joins.parent[place(a)];
    }
    return largest;
  }

  double as_distance(float step) const {
    return larger_is_nearer(metric) ? -static_cast<double>(step) : static_cast<double>(step);
  }

  Metric metric;
  SpanningForest joins;
  detail::StepGraph graph;
  mutable detail::PathSearches searches{graph};
};

PathFinder::PathFinder(SparseGraphView graph, Metric metric, int threads)
    : forest_(detail::public_call([&] {
        return std::make_unique<const Forest>(symmetric(graph, metric, Closure::either, threads),
                                              metric);
      })) {}
PathFinder::PathFinder(MatrixView<Id> ids, MatrixView<float> distances, Metric metric, int threads)
    : forest_(detail::public_call([&] {
        return std::make_unique<const Forest>(
            symmetric(ids, distances, metric, Closure::either, threads), metric);
      })) {}
PathFinder::~PathFinder() = default;
PathFinder::PathFinder(PathFinder&&) noexcept = default;
PathFinder& PathFinder::operator=(PathFinder&&) noexcept = default;

std::int64_t PathFinder::rows() const { return forest_->graph.rows(); }
std::int64_t PathFinder::component_count() const { return forest_->joins.components; }

bool PathFinder::connected(Id from, Id to) const {
  forest_->check("from", from), forest_->check("to", to);
  return from == to || forest_->largest_between(from, to).has_value();
}

double PathFinder::largest_step(Id from, Id to) const {
  forest_->check("from", from), forest_->check("to", to);
  if (from == to) return 0;
  const std::optional<float> step = forest_->largest_between(from, to);
  return step ? forest_->as_distance(*step) : std::numeric_limits<double>::infinity();
}

SmoothPath PathFinder::path(Id from, Id to) const {
  return detail::public_call([&]() -> SmoothPath {
    const Forest& forest = *forest_;
    forest.check("from", from), forest.check("to", to);
    if (from == to) return {{from}, 0, 0};
    const std::optional<float> largest = forest.largest_between(from, to);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (!largest) return {{}, infinity, infinity};

    const bool summed = !larger_is_nearer(forest.metric) && *largest > 0;
    SmoothPath path{
        forest.searches.shortest(from, to, *largest,
                                 summed ? detail::PathWeights::lengths : detail::PathWeights::ones),
        forest.as_distance(*largest), 0};
    for (std::size_t i = 1; i < path.ids.size(); ++i)
      path.sum_of_steps += forest.as_distance(forest.length_between(path.ids[i - 1], path.ids[i]));
    return path;
  });
}

}  // namespace knear
