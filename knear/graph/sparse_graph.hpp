// knear/graph/sparse_graph.hpp -- a graph as compressed sparse rows, and what is symmetric of a
// k-NN graph.
//
//   SparseGraph graph = symmetric(near.ids, near.distances, Closure::either);   // "union"
//   Components parts = components(graph.view());
//
// The form of SciPy's csr_matrix: the edges of row i stand at places begin[i], ..., begin[i + 1] -
// 1 of ids and distances. An edge of distance 0 between copies is an edge like any other.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "knear/core/neighbors.hpp"

namespace knear {

struct SparseGraphView {
  std::span<const std::int64_t> begin;  // [rows + 1], from 0, ascending
  std::span<const Id> ids;              // [edges], of the row at the other end
  std::span<const float> distances;     // [edges]

  std::int64_t rows() const { return begin.empty() ? 0 : std::ssize(begin) - 1; }
  std::int64_t edges() const { return std::ssize(ids); }
};

struct SparseGraph {
  std::vector<std::int64_t> begin{0};
  std::vector<Id> ids;
  std::vector<float> distances;

  std::int64_t rows() const { return std::ssize(begin) - 1; }
  SparseGraphView view() const { return {begin, ids, distances}; }
};

// Throws InvalidArgument unless begin ascends from 0 to the number of edges, every id is a row and
// no distance is a NaN, naming the first place; ShapeMismatch unless there are as many distances as
// ids.
void check_graph(SparseGraphView graph);

// Which edges a symmetric graph has: where one of both rows has the other among its neighbours, or
// where each has.
enum class Closure : std::uint8_t { either, mutual };
// "union", "mutual"; and the inverse, which throws InvalidArgument for any other word.
std::string_view name_of(Closure closure);
Closure parse_closure(std::string_view name);

// The symmetric graph of the neighbours ids [n x k] of n rows, at distances [n x k] of this metric:
// ids ascending in each row, each once, none of the row itself. Where the two rows of an edge have
// it at different distances, it has the nearer one. Places of no_id are passed over. Throws
// ShapeMismatch unless both have the same shape; InvalidArgument for an id that is no row and for a
// distance that is a NaN, naming the place. Threads: all that `threads` says (0: all); the result
// does not depend on it.
SparseGraph symmetric(MatrixView<Id> ids, MatrixView<float> distances, Metric metric,
                      Closure closure, int threads = 0);
// The same of the edges of a graph. Errors as check_graph() has them.
SparseGraph symmetric(SparseGraphView graph, Metric metric, Closure closure, int threads = 0);

// The sets of rows that edges connect, whichever way these point.
struct Components {
  // [rows] the number of each row's component: 0 for that of row 0, and so on in the order of their
  // first rows.
  std::vector<std::int64_t> of_row;
  std::vector<std::int64_t> sizes;  // [components] rows of each
};
Components components(SparseGraphView graph);
Components components(MatrixView<Id> ids);  // of a k-NN graph

}  // namespace knear
