#include "knear/graph/paths.hpp"

#include <algorithm>
#include <limits>
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

std::size_t place(std::int64_t row) { return static_cast<std::size_t>(row); }

}  // namespace

// How long a step is, for all metrics: shorter is better.
struct PathFinder::Forest {
  Forest(const SparseGraph& symmetric_graph, Metric graph_metric)
      : graph(symmetric_graph, graph_metric), metric(graph_metric), components(graph.rows()) {
    struct Edge {
      float length;
      std::uint32_t a, b;
    };
    std::vector<Edge> edges;
    edges.reserve(graph.steps.size() / 2);
    for (Id a = 0; a < graph.rows(); ++a) {
      if (a % rows_between_checks == 0) stop_if_asked();
      for (const auto& [b, length] : graph.from(a))
        if (a < b) edges.push_back({length, static_cast<std::uint32_t>(a), b});
    }
    std::sort(edges.begin(), edges.end(),
              [](const Edge& x, const Edge& y) { return x.length < y.length; });

    // The tree of joins: each set that is joined to a larger one hangs from it at the step that did
    // it. Steps grow towards the root, and no way to it is longer than log2(rows).
    parent.resize(place(graph.rows()));
    for (Id row = 0; row < graph.rows(); ++row) parent[place(row)] = row;
    joined_at.assign(place(graph.rows()), no_step);
    detail::DisjointSets sets(graph.rows());
    std::int64_t seen = 0;
    for (const Edge& edge : edges) {
      if (seen++ % rows_between_checks == 0) stop_if_asked();
      const Id a = sets.find(edge.a), b = sets.find(edge.b);
      if (!sets.join(a, b)) continue;
      const Id root = sets.find(a), other = root == a ? b : a;
      parent[place(other)] = root;
      joined_at[place(other)] = edge.length;
      --components;
    }
  }

  float length_between(Id a, Id b) const {
    const auto steps = graph.from(a);
    return std::find_if(steps.begin(), steps.end(), [&](const auto& step) { return step.row == b; })
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
      if (joined_at[place(a)] > joined_at[place(b)]) std::swap(a, b);
      if (joined_at[place(a)] == no_step) return {};
      largest = joined_at[place(a)];
      a = parent[place(a)];
    }
    return largest;
  }

  double as_distance(float step) const {
    return larger_is_nearer(metric) ? -static_cast<double>(step) : static_cast<double>(step);
  }

  detail::StepGraph graph;
  Metric metric;
  std::int64_t components;
  std::vector<Id> parent;
  std::vector<float> joined_at;
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
std::int64_t PathFinder::component_count() const { return forest_->components; }

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
