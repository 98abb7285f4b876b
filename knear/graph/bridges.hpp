// knear/graph/bridges.hpp -- the shortest edges that a k-NN graph lacks to be connected.
//
//   const Components parts = components(graph.ids());
//   const std::vector<Bridge> gaps = bridges(base, parts, Metric::l2);
//   const SparseGraph whole = with_bridges(symmetric(...).view(), gaps);
//
// Between two components the bridge is the nearest pair of rows, found exactly; of all bridges
// those of a least spanning tree are taken (Boruvka), so that the smoothest path over them is the
// smoothest there can be, and crosses those of bridges_between(). Work: each row outside the
// largest component is compared with all rows, some log2(components) times at most.
#pragma once
#include <span>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/graph/sparse_graph.hpp"

namespace knear {

struct Bridge {
  Id from = no_id, to = no_id;  // rows of two components
  float distance = 0;           // between them, as every search gives it
};

// One bridge less than there are components, nearest first. `base` [n x d] has the rows that the
// components are of. Throws ShapeMismatch for another number of rows; as knn() (knn/knn.hpp). The
// same bridges for any number of threads.
std::vector<Bridge> bridges(AnyMatrixView base, const Components& parts, Metric metric,
                            int threads = 0, const Progress& progress = {});

// Those of all bridges that the way between two rows crosses, from `from` on, each in the direction
// in which it is crossed; none within a component. `all` is what bridges() found for `parts`: a
// tree of components, in which one way leads from each to every other. Throws InvalidArgument for a
// row that is not there, and for bridges that do not connect both.
std::vector<Bridge> bridges_between(std::span<const Bridge> all, const Components& parts, Id from,
                                    Id to);

// A symmetric graph and these edges, both ways.
SparseGraph with_bridges(SparseGraphView graph, std::span<const Bridge> more);

}  // namespace knear
