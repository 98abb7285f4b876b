#include "knear/graph/sparse_graph.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/graph/disjoint_sets.hpp"

namespace knear {
namespace {

constexpr std::int64_t block_rows = 4096;

void check_id(Id id, std::int64_t row, std::int64_t rows) {
  if (id < 0 || id >= rows)
    throw InvalidArgument("graph: row {} has the neighbour {}, but there are {} rows", row, id,
                          rows);
}

void check_distance(float distance, std::int64_t row, Id id) {
  if (std::isnan(distance))
    throw InvalidArgument("graph: the distance of rows {} and {} is not a number", row, id);
}

void check_neighbors(MatrixView<Id> ids, MatrixView<float> distances) {
  if (ids.rows() != distances.rows() || ids.cols() != distances.cols())
    throw ShapeMismatch("graph: ids are {} x {}, but distances {} x {}", ids.rows(), ids.cols(),
                        distances.rows(), distances.cols());
  for (std::int64_t i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j) {
      const Id id = ids.row(i)[j];
      if (id == no_id) continue;
      check_id(id, i, ids.rows());
      check_distance(distances.row(i)[j], i, id);
    }
}

Components numbered(detail::DisjointSets& sets) {
  Components out;
  const std::int64_t rows = sets.rows();
  out.of_row.assign(rows, -1);
  for (std::int64_t i = 0; i < rows; ++i) {
    // A set's number stands at its root, which is a row that may come later.
    std::int64_t& number = out.of_row[sets.find(i)];
    if (number < 0) {
      number = std::ssize(out.sizes);
      out.sizes.push_back(0);
    }
    const std::int64_t own = number;
    out.of_row[i] = own;
    ++out.sizes[own];
  }
  return out;
}

// edges(take) calls take(row, neighbour, distance) for every edge, in the same order each time.
template <class Edges>
SparseGraph symmetric_of(std::int64_t n, const Edges& edges, Metric metric, Closure closure,
                         int threads) {
  const std::int64_t blocks = (n + block_rows - 1) / block_rows;
  const auto each_row = [&](const std::function<void(std::int64_t)>& f) {
    parallel_for(threads, blocks, [&](std::int64_t block) {
      for (std::int64_t i = block * block_rows; i < std::min(n, (block + 1) * block_rows); ++i)
        f(i);
    });
  };
  // Every edge at both of its rows, as often as these have it.
  struct End {
    Id id;
    float distance;
    bool own;  // the row has it among its neighbours, rather than the other way round
  };
  std::vector<std::int64_t> begin(static_cast<std::size_t>(n) + 1, 0);
  edges([&](Id from, Id to, float) {
    if (from == to) return;
    ++begin[from + 1];
    ++begin[to + 1];
  });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<End> ends(begin.back());
  std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
  edges([&](Id from, Id to, float distance) {
    if (from == to) return;
    const auto put = [&](Id at, const End& end) { ends[next[at]++] = end; };
    put(from, {to, distance, true});
    put(to, {from, distance, false});
  });

  // Each row's ends in order, one of each neighbour, moved to the front of its places.
  std::vector<std::int64_t> kept(n);
  each_row([&](std::int64_t i) {
    End* const from = ends.data() + begin[i];
    End* const to = ends.data() + begin[i + 1];
    std::sort(from, to, [&](const End& a, const End& b) {
      if (a.id != b.id) return a.id < b.id;
      return larger_is_nearer(metric) ? a.distance > b.distance : a.distance < b.distance;
    });
    End* out = from;
    for (const End* end = from; end != to;) {
      bool own = false, others = false;
      const End nearest = *end;
      for (; end != to && end->id == nearest.id; ++end) (end->own ? own : others) = true;
      if (closure == Closure::either || (own && others)) *out++ = nearest;
    }
    kept[i] = out - from;
  });

  SparseGraph graph;
  graph.begin.resize(static_cast<std::size_t>(n) + 1);
  std::partial_sum(kept.begin(), kept.end(), graph.begin.begin() + 1);
  graph.ids.resize(graph.begin.back());
  graph.distances.resize(graph.ids.size());
  each_row([&](std::int64_t i) {
    std::size_t to = graph.begin[i];
    const End* from = ends.data() + begin[i];
    for (std::int64_t e = 0; e < kept[i]; ++e, ++from, ++to)
      graph.ids[to] = from->id, graph.distances[to] = from->distance;
  });
  return graph;
}

}  // namespace

std::string_view name_of(Closure closure) {
  return closure == Closure::either ? "union" : "mutual";
}

Closure parse_closure(std::string_view name) {
  for (const Closure closure : {Closure::either, Closure::mutual})
    if (name == name_of(closure)) return closure;
  throw InvalidArgument("closure must be one of union, mutual, but is '{}'", name);
}

void check_graph(SparseGraphView graph) {
  if (graph.ids.size() != graph.distances.size())
    throw ShapeMismatch("graph: there are {} ids, but {} distances", graph.ids.size(),
                        graph.distances.size());
  const std::int64_t rows = graph.rows();
  if (graph.begin.empty() || graph.begin.front() != 0 || graph.begin.back() != graph.edges())
    throw InvalidArgument("graph: its rows have to begin at 0 and end at {}, the number of edges",
                          graph.edges());
  // All of them first: a row that ends beyond the edges must not be looked at.
  for (std::int64_t i = 0; i < rows; ++i)
    if (const auto at = static_cast<std::size_t>(i); graph.begin[at] > graph.begin[at + 1])
      throw InvalidArgument("graph: row {} ends at {}, but begins at {}", i, graph.begin[at + 1],
                            graph.begin[at]);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t e = graph.begin[i]; e < graph.begin[i + 1]; ++e) {
      check_id(graph.ids[e], i, rows);
      check_distance(graph.distances[e], i, graph.ids[e]);
    }
}

SparseGraph symmetric(MatrixView<Id> ids, MatrixView<float> distances, Metric metric,
                      Closure closure, int threads) {
  return detail::public_call([&] {
    check_neighbors(ids, distances);
    const auto edges = [&](auto&& take) {
      for (std::int64_t i = 0; i < ids.rows(); ++i) {
        if (i % block_rows == 0) stop_if_asked();
        for (std::int64_t j = 0; j < ids.cols(); ++j)
          if (ids.row(i)[j] != no_id) take(i, ids.row(i)[j], distances.row(i)[j]);
      }
    };
    return symmetric_of(ids.rows(), edges, metric, closure, resolve_threads(threads));
  });
}

SparseGraph symmetric(SparseGraphView graph, Metric metric, Closure closure, int threads) {
  return detail::public_call([&] {
    check_graph(graph);
    const auto edges = [&](auto&& take) {
      for (std::int64_t i = 0; i < graph.rows(); ++i) {
        if (i % block_rows == 0) stop_if_asked();
        for (auto e = static_cast<std::size_t>(graph.begin[i]);
             e < static_cast<std::size_t>(graph.begin[i + 1]); ++e)
          take(i, graph.ids[e], graph.distances[e]);
      }
    };
    return symmetric_of(graph.rows(), edges, metric, closure, resolve_threads(threads));
  });
}

Components components(SparseGraphView graph) {
  check_graph(graph);
  detail::DisjointSets sets(graph.rows());
  for (std::int64_t i = 0; i < graph.rows(); ++i)
    for (std::int64_t e = graph.begin[i]; e < graph.begin[i + 1]; ++e) sets.join(i, graph.ids[e]);
  return numbered(sets);
}

Components components(MatrixView<Id> ids) {
  detail::DisjointSets sets(ids.rows());
  for (std::int64_t i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j)
      if (const Id id = ids.row(i)[j]; id != no_id) {
        check_id(id, i, ids.rows());
        sets.join(i, id);
      }
  return numbered(sets);
}

}  // namespace knear
