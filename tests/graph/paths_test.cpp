// PathFinder beside Boost.Graph: the largest step by Boost's spanning forest, the path by Boost's
// Dijkstra over the edges that are no longer. And the closure, the components and the bridges of
// graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/connected_components.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/kruskal_min_spanning_tree.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/graph/bridges.hpp"
#include "knear/graph/paths.hpp"
#include "knear/knn/knn.hpp"

namespace knear {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct DirectedNeighbors {
  Matrix<Id> ids;
  Matrix<float> distances;
};

// k neighbours of each of n rows, drawn at random; distances are whole numbers below `steps`, the
// same whichever way an edge is seen, so that there are many ties.
DirectedNeighbors random_neighbors(std::int64_t n, std::int64_t k, int steps, std::uint64_t seed) {
  Random random(seed);
  DirectedNeighbors out{Matrix<Id>(n, k), Matrix<float>(n, k)};
  std::map<std::pair<Id, Id>, float> known;
  for (Id i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      Id other = static_cast<Id>(random.uniform() * static_cast<double>(n));
      if (other == i || random.uniform() < 0.2) other = no_id;
      out.ids.row(i)[j] = other;
      out.distances.row(i)[j] = static_cast<float>(infinity);
      if (other == no_id) continue;
      const auto [at, is_new] = known.try_emplace(std::minmax(i, other), 0.0f);
      if (is_new) at->second = static_cast<float>(std::floor(random.uniform() * steps));
      out.distances.row(i)[j] = at->second;
    }
  return out;
}

using Weighted = boost::property<boost::edge_weight_t, double>;
using BoostGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS,
                                         boost::no_property, Weighted>;

// The edges that are no longer than `longest`, once each, with weights of a function's.
template <class Weight>
BoostGraph boost_graph(const DirectedNeighbors& near, double longest, Weight weight) {
  BoostGraph graph(static_cast<std::size_t>(near.ids.rows()));
  std::set<std::pair<Id, Id>> done;
  for (Id i = 0; i < near.ids.rows(); ++i)
    for (std::int64_t j = 0; j < near.ids.cols(); ++j) {
      const Id other = near.ids.row(i)[j];
      const double distance = near.distances.row(i)[j];
      if (other == no_id || distance > longest || !done.insert(std::minmax(i, other)).second)
        continue;
      boost::add_edge(static_cast<std::size_t>(i), static_cast<std::size_t>(other),
                      weight(distance), graph);
    }
  return graph;
}

// The largest step between a row and every other, by walking Boost's spanning forest.
std::vector<double> largest_steps(const DirectedNeighbors& near, Id from) {
  const BoostGraph graph = boost_graph(near, infinity, [](double x) { return x; });
  std::vector<boost::graph_traits<BoostGraph>::edge_descriptor> forest;
  boost::kruskal_minimum_spanning_tree(graph, std::back_inserter(forest));
  std::vector<std::vector<std::pair<Id, double>>> tree(boost::num_vertices(graph));
  const auto weights = boost::get(boost::edge_weight, graph);
  for (const auto& edge : forest) {
    const auto a = boost::source(edge, graph), b = boost::target(edge, graph);
    tree[a].push_back({static_cast<Id>(b), weights[edge]});
    tree[b].push_back({static_cast<Id>(a), weights[edge]});
  }
  std::vector<double> largest(tree.size(), infinity);
  largest[static_cast<std::size_t>(from)] = 0;
  std::vector<std::pair<Id, Id>> open{{from, no_id}};
  while (!open.empty()) {
    const auto [row, parent] = open.back();
    open.pop_back();
    for (const auto& [next, step] : tree[static_cast<std::size_t>(row)])
      if (next != parent) {
        largest[static_cast<std::size_t>(next)] =
            std::max(largest[static_cast<std::size_t>(row)], step);
        open.push_back({next, row});
      }
  }
  return largest;
}

// The path that PathFinder's comment describes, by Boost's Dijkstra from its end and a walk from
// its beginning that takes the smallest id.
std::vector<Id> plain_path(const DirectedNeighbors& near, Id from, Id to, double largest,
                           bool summed = true) {
  const double units = summed && largest > 0 ? std::exp2(39 - std::floor(std::log2(largest))) : 0;
  const auto weight = [&](double distance) { return std::max(1.0, std::round(distance * units)); };
  const BoostGraph graph = boost_graph(near, largest, weight);
  std::vector<double> left(boost::num_vertices(graph));
  boost::dijkstra_shortest_paths(graph, static_cast<std::size_t>(to),
                                 boost::distance_map(left.data()));
  const auto weights = boost::get(boost::edge_weight, graph);
  std::vector<Id> path{from};
  while (path.back() != to) {
    Id next = no_id;
    const auto [begin, end] = boost::out_edges(static_cast<std::size_t>(path.back()), graph);
    for (auto edge = begin; edge != end; ++edge) {
      const auto other = static_cast<Id>(boost::target(*edge, graph));
      if (left[static_cast<std::size_t>(other)] + weights[*edge] ==
              left[static_cast<std::size_t>(path.back())] &&
          (next == no_id || other < next))
        next = other;
    }
    path.push_back(next);
  }
  return path;
}

double step_between(const DirectedNeighbors& near, Id a, Id b) {
  for (const auto& [row, other] : {std::pair(a, b), std::pair(b, a)})
    for (std::int64_t j = 0; j < near.ids.cols(); ++j)
      if (near.ids.row(row)[j] == other) return near.distances.row(row)[j];
  ADD_FAILURE() << "no edge between " << a << " and " << b;
  return infinity;
}

// They are the edges that the smoothest path over all bridges has between components.
TEST(Bridges, between_two_rows_are_those_that_the_path_crosses) {
  Random random(3);
  constexpr std::int64_t parts = 12, each = 6, n = parts * each;
  Matrix<float> base(n, 2);
  for (std::int64_t part = 0; part < parts; ++part) {
    const double x = 100 * random.uniform(), y = 100 * random.uniform();
    for (std::int64_t i = part; i < n; i += parts)
      base.row(i)[0] = static_cast<float>(x + 0.1 * random.uniform()),
      base.row(i)[1] = static_cast<float>(y + 0.1 * random.uniform());
  }
  const Neighbors near = self_join(AnyMatrixView(base.view()), 3);
  const SparseGraph graph = symmetric(near.ids, near.distances, Metric::l2, Closure::either);
  const Components found = components(graph.view());
  ASSERT_GT(found.sizes.size(), 8u);
  const std::vector<Bridge> all = bridges(AnyMatrixView(base.view()), found, Metric::l2);
  const PathFinder finder(with_bridges(graph.view(), all).view());
  std::size_t most = 0;
  for (Id from = 0; from < n; from += 5)
    for (Id to = 0; to < n; to += 3) {
      std::vector<std::pair<Id, Id>> wanted, crossed;
      const std::vector<Id> path = finder.path(from, to).ids;
      for (std::size_t i = 1; i < path.size(); ++i)
        if (found.of_row[static_cast<std::size_t>(path[i - 1])] !=
            found.of_row[static_cast<std::size_t>(path[i])])
          wanted.push_back({path[i - 1], path[i]});
      for (const Bridge& bridge : bridges_between(all, found, from, to)) {
        crossed.push_back({bridge.from, bridge.to});
        EXPECT_EQ(bridge.distance, static_cast<float>(finder.largest_step(bridge.from, bridge.to)));
      }
      ASSERT_EQ(crossed, wanted) << from << " " << to;
      most = std::max(most, crossed.size());
    }
  EXPECT_GT(most, 3u);
  EXPECT_THROW(bridges_between(all, found, 0, n), InvalidArgument);
  EXPECT_THROW(bridges_between({}, found, 0, 1), InvalidArgument);
}

TEST(PathFinder, negative_distances_of_l2_are_refused) {
  Matrix<Id> ids(2, 1);
  Matrix<float> distances(2, 1);
  ids.row(0)[0] = 1, ids.row(1)[0] = 0;
  distances.row(0)[0] = distances.row(1)[0] = -2;
  EXPECT_THROW(PathFinder(ids, distances), InvalidArgument);
  EXPECT_EQ(PathFinder(ids, distances, Metric::ip).largest_step(0, 1), -2);
}

TEST(PathFinder, distances_of_cosine_are_between_0_and_2) {
  Matrix<Id> ids(2, 1);
  Matrix<float> distances(2, 1);
  ids.row(0)[0] = 1, ids.row(1)[0] = 0;
  const auto largest = [&](float distance) {
    distances.row(0)[0] = distances.row(1)[0] = distance;
    return PathFinder(ids, distances, Metric::cosine).largest_step(0, 1);
  };
  for (const float distance : {-2.2f, -0.002f, 2.002f, 7.0f})
    EXPECT_THROW(largest(distance), InvalidArgument) << distance;
  // What others have rounded.
  for (const float distance : {-0.0005f, -1e-7f, 0.0f, 1.0f, 2.0f, 2.0000002f, 2.0005f})
    EXPECT_EQ(largest(distance), distance);
}

// Three paths of the same largest step and sum: not the number of steps decides, but the ids.
TEST(PathFinder, equal_sums_are_told_apart_by_ids_alone) {
  const std::vector<std::tuple<Id, Id, float>> edges = {{0, 1, 1}, {1, 4, 2}, {4, 6, 3}, {0, 2, 3},
                                                        {2, 6, 3}, {0, 3, 2}, {3, 5, 1}, {5, 6, 3}};
  for (const float unit : {1.0f, 0x1p-100f, 0x1p90f}) {
    Matrix<Id> ids(7, 3);
    Matrix<float> distances(7, 3);
    std::fill_n(ids.data(), 21, no_id);
    std::vector<std::int64_t> degree(7, 0);
    for (const auto& [a, b, length] : edges) {
      const std::int64_t at = degree[static_cast<std::size_t>(a)]++;
      ids.row(a)[at] = b, distances.row(a)[at] = length * unit;
    }
    const PathFinder finder(ids, distances);
    EXPECT_EQ(finder.path(0, 6).ids, (std::vector<Id>{0, 1, 4, 6})) << unit;
    EXPECT_EQ(finder.path(0, 6).largest_step, static_cast<double>(3 * unit));
  }
}

TEST(PathFinder, agrees_with_boost_on_random_graphs) {
  std::int64_t paths = 0, unconnected = 0;
  for (const auto& [n, k, steps] :
       {std::tuple(2, 1, 3), std::tuple(30, 1, 4), std::tuple(60, 2, 3), std::tuple(200, 3, 8),
        std::tuple(200, 3, 1), std::tuple(500, 2, 1000000), std::tuple(400, 6, 20)})
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      const DirectedNeighbors near = random_neighbors(n, k, steps, seed);
      const PathFinder finder(near.ids, near.distances);
      const SparseGraph symmetric_graph =
          symmetric(near.ids, near.distances, Metric::l2, Closure::either);
      const PathFinder from_csr(symmetric_graph.view());
      for (const Id from : {Id{0}, Id{n / 2}, Id{n - 1}}) {
        const std::vector<double> largest = largest_steps(near, from);
        for (Id to = 0; to < n; ++to) {
          const double step = largest[static_cast<std::size_t>(to)];
          ASSERT_EQ(finder.largest_step(from, to), step) << n << " " << seed;
          ASSERT_EQ(finder.connected(from, to), step < infinity);
          if (to % 3 != 0) continue;
          const SmoothPath path = finder.path(from, to);
          if (step == infinity) {
            ++unconnected;
            EXPECT_FALSE(path.found());
            EXPECT_EQ(path.largest_step, infinity);
            EXPECT_EQ(path.sum_of_steps, infinity);
            continue;
          }
          ++paths;
          ASSERT_EQ(path.ids, plain_path(near, from, to, step)) << n << " " << seed;
          EXPECT_EQ(path.largest_step, step);
          double sum = 0;
          for (std::size_t i = 1; i < path.ids.size(); ++i)
            sum += step_between(near, path.ids[i - 1], path.ids[i]);
          EXPECT_EQ(path.sum_of_steps, sum);
          EXPECT_EQ(from_csr.path(from, to).ids, path.ids);
        }
      }
    }
  EXPECT_GT(paths, 3000);
  EXPECT_GT(unconnected, 100);
}

// More rows than the search looks ahead, so that it prunes; and many calls at once, which take up
// what others have left.
TEST(PathFinder, agrees_with_boost_on_a_large_graph_from_many_threads) {
  constexpr std::int64_t n = 20000;
  for (const int steps : {4, 1000000}) {
    const DirectedNeighbors near = random_neighbors(n, 4, steps, 5);
    const PathFinder finder(near.ids, near.distances);
    std::vector<std::pair<Id, Id>> pairs;
    std::vector<SmoothPath> wanted;
    Random random(7);
    while (pairs.size() < 12) {
      const auto from = static_cast<Id>(random.uniform() * n);
      const auto to = static_cast<Id>(random.uniform() * n);
      if (from == to || !finder.connected(from, to)) continue;
      pairs.push_back({from, to});
      wanted.push_back(finder.path(from, to));
      ASSERT_EQ(wanted.back().ids, plain_path(near, from, to, finder.largest_step(from, to)));
    }
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (std::size_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < 24; ++i) {
          const std::size_t which = (5 * t + i) % pairs.size();
          const SmoothPath path = finder.path(pairs[which].first, pairs[which].second);
          if (path.ids != wanted[which].ids || path.sum_of_steps != wanted[which].sum_of_steps)
            ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

// Each of so many steps counts almost 2^40 units, as many as there can be: their sum is beyond what
// is counted in 64 bits.
TEST(PathFinder, goes_along_a_line_of_millions_of_equal_steps) {
  constexpr std::int64_t n = 2200000;
  const float step = std::nextafter(2.0f, 0.0f);
  Matrix<Id> ids(n, 1);
  Matrix<float> distances(n, 1);
  for (Id i = 0; i < n; ++i) ids.row(i)[0] = i + 1 < n ? i + 1 : i - 1, distances.row(i)[0] = step;
  const SmoothPath path = PathFinder(ids, distances).path(0, n - 1);
  ASSERT_EQ(std::ssize(path.ids), n);
  for (Id i = 0; i < n; ++i) ASSERT_EQ(path.ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(path.largest_step, step);
  EXPECT_EQ(path.sum_of_steps, static_cast<double>(step) * (n - 1));
}

// For products the largest step is the smallest product, and fewer steps decide.
TEST(PathFinder, takes_the_largest_products) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    DirectedNeighbors near = random_neighbors(120, 3, 5, seed);
    DirectedNeighbors products{Matrix<Id>(120, 3), Matrix<float>(120, 3)};
    for (Id i = 0; i < 120; ++i)
      for (int j = 0; j < 3; ++j) {
        products.ids.row(i)[j] = near.ids.row(i)[j];
        products.distances.row(i)[j] = 2 - near.distances.row(i)[j];  // 2, 1, 0, -1, -2
      }
    const PathFinder finder(products.ids, products.distances, Metric::ip);
    const std::vector<double> largest = largest_steps(near, 5);
    for (Id to = 0; to < 120; ++to) {
      const double step = largest[static_cast<std::size_t>(to)];
      if (to == 5 || step == infinity) continue;
      const SmoothPath path = finder.path(5, to);
      EXPECT_EQ(path.largest_step, 2 - step);
      EXPECT_EQ(path.ids, plain_path(near, 5, to, step, false));
    }
  }
}

TEST(PathFinder, goes_along_a_line_of_copies_and_of_equal_steps) {
  // 0 - 1 - 2 - 3 in copies, and a way around by one longer step.
  Matrix<Id> ids(5, 2);
  Matrix<float> distances(5, 2);
  const auto edge = [&](Id a, int place, Id b, float distance) {
    ids.row(a)[place] = b, distances.row(a)[place] = distance;
  };
  for (Id i = 0; i < 5; ++i)
    for (int j = 0; j < 2; ++j) edge(i, j, no_id, static_cast<float>(infinity));
  edge(0, 0, 1, 0), edge(1, 0, 2, 0), edge(2, 0, 3, 0), edge(0, 1, 3, 1);
  const PathFinder finder(ids, distances);
  EXPECT_EQ(finder.path(0, 3).ids, (std::vector<Id>{0, 1, 2, 3}));
  EXPECT_EQ(finder.path(0, 3).largest_step, 0);
  EXPECT_EQ(finder.path(3, 0).ids, (std::vector<Id>{3, 2, 1, 0}));
  EXPECT_EQ(finder.path(2, 2).ids, (std::vector<Id>{2}));
  EXPECT_EQ(finder.path(2, 2).sum_of_steps, 0);
  EXPECT_FALSE(finder.path(0, 4).found());
  EXPECT_EQ(finder.component_count(), 2);
  EXPECT_THROW(finder.path(0, 5), InvalidArgument);
  EXPECT_THROW(finder.path(-1, 0), InvalidArgument);
  EXPECT_THROW(finder.connected(0, 7), InvalidArgument);
  EXPECT_THROW(finder.largest_step(9, 0), InvalidArgument);
}

TEST(PathFinder, refuses_graphs_that_are_none) {
  Matrix<Id> ids(2, 1);
  Matrix<float> distances(2, 1);
  ids.row(0)[0] = 2, ids.row(1)[0] = 0;
  EXPECT_THROW(PathFinder(ids, distances), InvalidArgument);
  ids.row(0)[0] = 1, distances.row(0)[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(PathFinder(ids, distances), InvalidArgument);
  distances.row(0)[0] = static_cast<float>(infinity), ids.row(1)[0] = no_id;
  EXPECT_THROW(PathFinder(ids, distances), InvalidArgument);
  EXPECT_THROW(PathFinder(ids, Matrix<float>(2, 2)), ShapeMismatch);
  const std::vector<Id> others{1};
  const std::vector<float> far{1};
  const auto refused = [&](std::vector<std::int64_t> begin) {
    EXPECT_THROW(PathFinder(SparseGraphView{begin, others, far}), InvalidArgument);
  };
  refused({}), refused({1, 1}), refused({0, 2}), refused({0, 2, 1}), refused({0, 1});
  const std::vector<std::int64_t> begin{0, 1, 1};
  EXPECT_EQ(PathFinder(SparseGraphView{begin, others, far}).path(1, 0).ids,
            (std::vector<Id>{1, 0}));
  const std::vector<float> fewer;
  EXPECT_THROW(PathFinder(SparseGraphView{begin, others, fewer}), ShapeMismatch);
}

// The closure beside sets of pairs, and components beside Boost's.
TEST(SparseGraph, is_the_closure_of_neighbours) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const DirectedNeighbors near = random_neighbors(150, 4, 6, seed);
    std::set<std::pair<Id, Id>> directed;
    for (Id i = 0; i < 150; ++i)
      for (int j = 0; j < 4; ++j)
        if (near.ids.row(i)[j] != no_id) directed.insert({i, near.ids.row(i)[j]});
    for (const Closure closure : {Closure::either, Closure::mutual}) {
      std::set<std::pair<Id, Id>> wanted;
      for (const auto& [a, b] : directed)
        if (closure == Closure::either || directed.count({b, a}) > 0)
          wanted.insert({a, b}), wanted.insert({b, a});
      for (const int threads : {1, 2}) {
        const SparseGraph graph = symmetric(near.ids, near.distances, Metric::l2, closure, threads);
        std::vector<std::pair<Id, Id>> found;
        for (Id i = 0; i < 150; ++i)
          for (std::int64_t e = graph.begin[static_cast<std::size_t>(i)];
               e < graph.begin[static_cast<std::size_t>(i) + 1]; ++e) {
            const auto at = static_cast<std::size_t>(e);
            found.push_back({i, graph.ids[at]});
            EXPECT_EQ(graph.distances[at], step_between(near, i, graph.ids[at]));
          }
        EXPECT_TRUE(std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()));
      }
    }
    const BoostGraph graph = boost_graph(near, infinity, [](double x) { return x; });
    std::vector<std::int64_t> numbers(150);
    const auto count = boost::connected_components(graph, numbers.data());
    const Components parts = components(near.ids);
    EXPECT_EQ(std::ssize(parts.sizes), count);
    EXPECT_EQ(parts.of_row, numbers);  // both number them by their first rows
    for (std::size_t c = 0; c < parts.sizes.size(); ++c)
      EXPECT_EQ(parts.sizes[c], std::count(numbers.begin(), numbers.end(), std::int64_t(c)));
    const SparseGraph closed = symmetric(near.ids, near.distances, Metric::l2, Closure::either);
    EXPECT_EQ(components(closed.view()).of_row, numbers);
    EXPECT_EQ(PathFinder(near.ids, near.distances).component_count(), count);
  }
}

TEST(SparseGraph, keeps_the_nearer_of_two_distances) {
  Matrix<Id> ids(2, 1);
  Matrix<float> distances(2, 1);
  ids.row(0)[0] = 1, distances.row(0)[0] = 3;
  ids.row(1)[0] = 0, distances.row(1)[0] = 2;
  EXPECT_EQ(symmetric(ids, distances, Metric::l2, Closure::mutual).distances,
            (std::vector<float>{2, 2}));
  EXPECT_EQ(symmetric(ids, distances, Metric::ip, Closure::either).distances,
            (std::vector<float>{3, 3}));
  EXPECT_EQ(parse_closure("mutual"), Closure::mutual);
  EXPECT_THROW(parse_closure("or"), InvalidArgument);
}

}  // namespace
}  // namespace knear
