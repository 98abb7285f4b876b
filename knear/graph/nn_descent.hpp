// knear/graph/nn_descent.hpp -- an approximate k-NN graph made better: neighbours of neighbours are
// likely to be neighbours.
//
//   NeighborGraph better = refine(graph, base, {.recall = 0.95});
//   Neighbors near = refine(ids, base, Metric::l2);          // a graph of whatever made it
//
// NN-descent (Dong, Moses, Li, "Efficient k-nearest neighbor graph construction for generic
// similarity measures", 2011). Each row brings its neighbours, and rows that have it as theirs,
// together: each pair of them in which one is new is scored, and either may become a neighbour of
// the other. Rounds go on until a sample of rows says that the graph is as accurate as was asked,
// or hardly anything changes.
//
// Pairs are scored by codes of 8 bits, in the tile kernels of the scan; what passes is measured in
// float64. So the distances of a refined graph are those of knn() for the same rows, to the bit.
// What the joins of a batch see is the state before that batch, and what they find is merged by
// (distance, id): the graph is the same for any number of threads and any instruction set.
//
// Rows are taken in an order in which neighbours stand close together. Work of a round: at most
// n (2 w)^2 products of dim bytes, with w the neighbours that a row keeps meanwhile: k and a
// quarter more, rounded up to a multiple of 16. Memory: dim + 40 + 20 w bytes a row and 256 MiB,
// beside base and graph (at most; RefineReport::memory_bytes).
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "knear/graph/neighbor_graph.hpp"

namespace knear {

struct RefineOptions {
  // The mean share of the k nearest others that is enough, in (0, 1]; none: as much as is found
  // until hardly anything changes. 1 is not reached for certain: an exact graph is that of
  // knn_graph().
  std::optional<double> recall = {};
  int most_rounds = 30;
  // A round that replaces no more than this share of the neighbours is the last one.
  double least_change = 0.001;
  std::uint64_t seed = 1;   // of what is drawn: neighbours for rows that lack them, the sample
  int threads = 0;          // 0: all that the process may use
  std::int64_t memory = 0;  // bytes beside base and graph; 0: no limit
  Progress progress = {};
  std::string name = "graph";  // stands in messages for the graph, a path say
};

struct RefineReport {
  int rounds = 0;
  // Whether the sample promises `recall`. False where that was not asked.
  bool reached = false;
  // Of a sample of 2,000 rows, where there was a target: the mean share that the graph had before,
  // has now, and at least has (the lower end of an interval, one side, 99.5 %).
  double found_before = 0, found = 0, promised = 0;
  std::int64_t measured = 0;  // pairs in float64
  std::int64_t changed = 0;   // neighbours that were replaced, of all rounds
  std::int64_t memory_bytes = 0;
  double seconds = 0;
};

// The refined graph of base [n x d]: ids [n x k] of the neighbours of each row, in any order,
// no_id where there is none. Each row keeps the nearest of what it had, was told of and found. It
// is never its own neighbour; ids that are listed twice count once. A row with fewer than k gets
// others that are drawn, if there are as many. Distances are those of knn(): nearest first, ties by
// ascending id.
//
// Throws ShapeMismatch unless there is a row of ids for each of the base; InvalidArgument for an id
// that is no row, k outside [1, 4096], 2^31 rows or more, a NaN or infinity (with its row), and
// options out of range; MemoryBudgetError; Cancelled.
Neighbors refine(MatrixView<Id> ids, AnyMatrixView base, Metric metric,
                 const RefineOptions& options = {}, RefineReport* report = nullptr);

// The same of a graph with its metric; of distinct vectors again, if it is one of these. Its
// promise is that of the sample ("calibrated") where there is a target, that of the graph before
// otherwise. Throws InvalidArgument for another base (NeighborGraph::check_base()).
NeighborGraph refine(const NeighborGraph& graph, AnyMatrixView base,
                     const RefineOptions& options = {}, RefineReport* report = nullptr);

// The same of ids that something else found, as for the first function: a graph that knows its
// base. Without a target it promises nothing.
NeighborGraph refined_graph(MatrixView<Id> ids, AnyMatrixView base, Metric metric,
                            const RefineOptions& options = {}, RefineReport* report = nullptr);

}  // namespace knear
