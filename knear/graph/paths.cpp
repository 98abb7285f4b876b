#include "knear/graph/paths.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "knear/core/public_call.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/graph/disjoint_sets.hpp"

namespace knear {
namespace {

constexpr float no_step = std::numeric_limits<float>::infinity();

// Rows, edges or steps after which it is asked whether to go on.
constexpr std::int64_t rows_between_checks = 16384;

std::size_t place(std::int64_t row) { return static_cast<std::size_t>(row); }

}  // namespace

// How long a step is, for all metrics: shorter is better.
struct PathFinder::Forest {
  Forest(SparseGraph symmetric_graph, Metric graph_metric)
      : graph(std::move(symmetric_graph)), metric(graph_metric), components(graph.rows()) {
    struct Edge {
      float length;
      Id a, b;
    };
    std::vector<Edge> edges;
    edges.reserve(graph.ids.size() / 2);
    for (Id a = 0; a < graph.rows(); ++a) {
      if (a % rows_between_checks == 0) stop_if_asked();
      for (std::size_t e = place(graph.begin[place(a)]); e < place(graph.begin[place(a) + 1]);
           ++e) {
        if (std::isinf(graph.distances[e]))
          throw InvalidArgument("graph: the distance of rows {} and {} is infinite", a,
                                graph.ids[e]);
        if (a < graph.ids[e]) edges.push_back({length(e), a, graph.ids[e]});
      }
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

  float length(std::size_t edge) const {
    return larger_is_nearer(metric) ? -graph.distances[edge] : graph.distances[edge];
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

  SparseGraph graph;
  Metric metric;
  std::int64_t components;
  std::vector<Id> parent;
  std::vector<float> joined_at;
};

namespace {

// One of the two searches: Dijkstra's, in whole numbers, so that sums do not depend on their order.
class Side {
 public:
  Side(Id start, std::int64_t rows) : far_(place(rows), unseen), settled_(place(rows), false) {
    offer(start, 0);
  }

  // The least distance of what is not settled; the largest number if nothing is left.
  std::int64_t next_distance() {
    while (!queue_.empty() && settled(queue_.top().second)) queue_.pop();
    return queue_.empty() ? unseen : queue_.top().first;
  }
  Id settle() {
    const Id row = queue_.top().second;
    queue_.pop();
    settled_[place(row)] = true;
    return row;
  }
  void offer(Id row, std::int64_t distance) {
    if (distance >= far_[place(row)]) return;
    far_[place(row)] = distance;
    queue_.push({distance, row});
  }
  bool seen(Id row) const { return far_[place(row)] != unseen; }
  bool settled(Id row) const { return settled_[place(row)]; }
  std::int64_t distance(Id row) const { return far_[place(row)]; }
  std::size_t waiting() const { return queue_.size(); }

  static constexpr std::int64_t unseen = std::numeric_limits<std::int64_t>::max() / 4;

 private:
  using Entry = std::pair<std::int64_t, Id>;
  std::vector<std::int64_t> far_;
  std::vector<bool> settled_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

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

    const SparseGraph& graph = forest.graph;
    const bool summed = !larger_is_nearer(forest.metric) && *largest > 0;
    const auto weight = [&](std::size_t edge) -> std::int64_t {
      if (!summed) return 1;
      const double share =
          std::max(0.0, static_cast<double>(graph.distances[edge])) / static_cast<double>(*largest);
      return std::llround(share * 0x1p40) + 1;
    };
    // Calls f(row at the other end, weight) for the edges of a row that are not too long.
    const auto each_edge = [&](Id row, auto&& f) {
      for (std::size_t e = place(graph.begin[place(row)]); e < place(graph.begin[place(row) + 1]);
           ++e)
        if (forest.length(e) <= *largest) f(graph.ids[e], weight(e));
    };

    // The two searches go on until neither can meet the other at less, nor at as much: then each
    // row of a shortest path is settled by one of them, those before some step by the first and
    // those behind it by the second. Of each step between the two `met` has the first one's row.
    std::array<Side, 2> sides{Side(from, graph.rows()), Side(to, graph.rows())};
    std::int64_t shortest = Side::unseen;
    struct Meeting {
      Id row;
      std::int64_t length;
    };
    std::vector<Meeting> met;
    for (std::int64_t steps = 0;; ++steps) {
      if (steps % rows_between_checks == 0) stop_if_asked();
      const std::int64_t first = sides[0].next_distance(), second = sides[1].next_distance();
      if (first + second > shortest) break;
      const std::size_t turn = sides[0].waiting() <= sides[1].waiting() ? 0 : 1;
      Side &own = sides[turn], &other = sides[1 - turn];
      const Id row = own.settle();
      each_edge(row, [&](Id neighbor, std::int64_t step) {
        own.offer(neighbor, own.distance(row) + step);
        if (!other.seen(neighbor)) return;
        const std::int64_t length = own.distance(row) + step + other.distance(neighbor);
        if (length > shortest) return;
        shortest = length;
        met.push_back({turn == 0 ? row : neighbor, length});
      });
    }

    // The rows of shortest paths that the first search settled: backwards from where it met.
    std::vector<bool> on_path(place(graph.rows()), false);
    std::vector<Id> open;
    const auto mark = [&](Id row) {
      if (!sides[0].settled(row) || on_path[place(row)]) return;
      on_path[place(row)] = true;
      open.push_back(row);
    };
    for (const Meeting& meeting : met)
      if (meeting.length == shortest) mark(meeting.row);
    mark(to);
    while (!open.empty()) {
      const Id row = open.back();
      open.pop_back();
      each_edge(row, [&](Id neighbor, std::int64_t step) {
        if (sides[0].seen(neighbor) && sides[0].distance(neighbor) + step == sides[0].distance(row))
          mark(neighbor);
      });
    }

    SmoothPath path{{from}, forest.as_distance(*largest), 0};
    for (std::int64_t gone = 0; path.ids.back() != to;) {
      Id next = no_id;
      std::int64_t its_step = 0;
      each_edge(path.ids.back(), [&](Id neighbor, std::int64_t step) {
        const std::int64_t reached = gone + step;
        const bool leads_on =
            (on_path[place(neighbor)] && sides[0].distance(neighbor) == reached) ||
            (sides[1].settled(neighbor) && reached + sides[1].distance(neighbor) == shortest);
        if (leads_on && (next == no_id || neighbor < next)) next = neighbor, its_step = step;
      });
      for (std::size_t e = place(graph.begin[place(path.ids.back())]);
           e < place(graph.begin[place(path.ids.back()) + 1]); ++e)
        if (graph.ids[e] == next) path.sum_of_steps += static_cast<double>(graph.distances[e]);
      path.ids.push_back(next);
      gone += its_step;
    }
    return path;
  });
}

}  // namespace knear
