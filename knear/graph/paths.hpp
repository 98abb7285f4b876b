// knear/graph/paths.hpp -- the smoothest path between two rows: the one whose largest step is as
// small as can be.
//
//   const Neighbors near = knn_graph(base, 10);
//   const PathFinder finder(near.ids, near.distances);
//   const SmoothPath path = finder.path(17, 4711);        // ids from one end to the other
//
// Johnson et al., section 6.6: among all paths in the k-NN graph the one that minimises the largest
// distance between neighbours on it (Eq. 12). Edges are walked in both directions.
//
// A spanning forest of least steps (Kruskal) is built once and tells the largest step between any
// two rows in log(rows) memory accesses; of the edges that are no longer than that a search from
// both ends takes the path with the least sum of steps (path_search.hpp). Memory: 28 bytes a
// row (52 while it is made) and 8 for each direction of an edge (32 while it is made); 16 bytes a
// row for each path looked for at once, which are kept for the next one, those of four at most.
// Threads: any number of calls at once.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "knear/graph/sparse_graph.hpp"

namespace knear {

struct SmoothPath {
  std::vector<Id> ids;  // from one end to the other; none where no path connects them
  // The distance of the longest step, as the graph has it (ip: the smallest product), and the sum
  // of all in float64. Both 0 where there is no step, infinity where there is no path.
  double largest_step = 0, sum_of_steps = 0;

  bool found() const { return !ids.empty(); }
};

class PathFinder {
 public:
  // Of a graph, or of the neighbours ids [n x k] of n rows at distances [n x k]. Errors as for
  // symmetric(); InvalidArgument for an infinite distance, a negative one of l2, one of cosine that
  // is outside of [0, 2] by more than 2^-10, and for more than 2^32 - 1 rows.
  explicit PathFinder(SparseGraphView graph, Metric metric = Metric::l2, int threads = 0);
  PathFinder(MatrixView<Id> ids, MatrixView<float> distances, Metric metric = Metric::l2,
             int threads = 0);
  ~PathFinder();
  PathFinder(PathFinder&&) noexcept;
  PathFinder& operator=(PathFinder&&) noexcept;

  std::int64_t rows() const;
  std::int64_t component_count() const;
  // Whether a path connects two rows. Throws InvalidArgument for a row that is not there, as the
  // calls below do.
  bool connected(Id from, Id to) const;
  // The largest step of the smoothest path; infinity where there is none.
  double largest_step(Id from, Id to) const;
  // The path of the least largest step; among these of the least sum of steps; among these the one
  // with the smaller id where they part first, seen from `from`. Steps are summed in whole units of
  // a power of two, of which the largest step has at least 2^39 and less than 2^40, each rounded,
  // and at least one unit: so sums do not depend on their order, those of whole numbers below 2^40
  // exact, and of steps between copies the fewest are taken. Products are not summed up: for ip the
  // number of steps decides.
  SmoothPath path(Id from, Id to) const;

 private:
  struct Forest;
  std::unique_ptr<const Forest> forest_;
};

}  // namespace knear
