// knear/graph/knn_graph.hpp -- every row of a base connected to its k nearest others.
//
//   NeighborGraph graph = knn_graph(base, 10);                          // exact
//   NeighborGraph graph = knn_graph(base, 10, {.recall = 0.95});        // by inverted lists
//   build_graph_file(base, 10, "graph.knear", {}, Resume::yes);         // block by block
//
// Johnson et al., section 6.5. Exact graphs are those of knn() for every row without itself, to the
// bit, whatever they are made by: a self-join, which scores each pair of rows once for both, or a
// search for every row. For a recall below 1 rows are put into inverted lists, and all of them are
// searched for, list by list, with as many lists for each row as the recall takes
// (factory/factory.hpp).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "knear/graph/neighbor_graph.hpp"
#include "knear/knn/knn.hpp"

namespace knear {

struct KnnGraphReport;

struct KnnGraphOptions {
  Metric metric = Metric::l2;
  // The least mean share of the k nearest others that is found, in (0, 1]; none and 1: all. Fewer
  // than 100,000 rows are joined exactly all the same.
  std::optional<double> recall = {};
  // Neighbours are distinct vectors: of rows with equal elements only the first is one, and none
  // that is equal to the row itself. All of such rows have the same neighbours.
  bool distinct = false;
  int threads = 0;          // 0: all that the process may use
  std::int64_t memory = 0;  // bytes beside base and graph; 0: no limit
  // Of an exact graph, as KnnOptions has it: `prefix` scores each pair once, whatever is forecast.
  FirstPass first_pass = FirstPass::automatic;
  Progress progress = {};
  // Told once, before rows are searched for, how and how long it is going to take.
  std::function<void(const KnnGraphReport&)> planned = {};
};

struct KnnGraphReport {
  // "self-join", "search", "lists"; "none" of a file that was whole when it was to be resumed.
  std::string method;
  double seconds = 0;
  // Of this call, as it was expected before rows were searched for: what had gone by, and the time
  // of a few rows, brought to all of them; of rows spread over the base for an exact search in
  // blocks by the model of costs (cost/plan.hpp), of a self-join what the model says of the way
  // that it chose. Writing the graph is not in it. 0: nothing was expected.
  double predicted_seconds = 0;
  std::int64_t scratch_bytes = 0;  // of inverted lists in files
  double promised_recall = 1;
  std::string recall_argument = "exact";
  std::int64_t rows = 0, searched_rows = 0;  // all; those that this call searched for
  std::int64_t distinct_rows = 0;            // vectors, where copies are left out; else rows
  std::int64_t lists = 0;                    // of an approximate graph
  double probes = 0;                         // lists for each row, on average
};

// The graph of base [n x d], any element type. Row i has the k nearest other rows by the metric,
// nearest first, ties by ascending id, padded with no_id and no_distance() where there are fewer.
// Throws InvalidArgument for k outside [1, 2^31 - 1), d outside [1, 65536], a NaN or infinity (with
// its row) and a recall outside (0, 1]; MemoryBudgetError; Cancelled. The same graph for any number
// of threads; memory: 12 k bytes a row for it, beside that as self_join() (knn/knn.hpp) or an
// index IVFn,Flat of the base.
NeighborGraph knn_graph(AnyMatrixView base, std::int64_t k, const KnnGraphOptions& options = {},
                        KnnGraphReport* report = nullptr);

enum class Resume : std::uint8_t { no, yes };

// The same graph, to a file. What is finished is kept in PATH.partial, block by block, each safe on
// disk before it counts; a call that was stopped or killed is gone on with by Resume::yes, which
// leads to the same graph, and does nothing where PATH is that graph and nothing is begun. At the
// end PATH appears whole and PATH.partial is removed. Throws as knn_graph(); InvalidArgument if
// there is a PATH.partial and resume is Resume::no, or it is that of another base or of other
// arguments, or it is not there and PATH is another graph; IoError; CorruptFile for a PATH.partial
// that is none. Blocks have block_rows rows; 0: 131,072, and when a graph is gone on with those
// that it was begun with. The graph does not depend on them. Rows in inverted lists are found in
// the order of these, those of a self-join as it finishes them, and brought into their own at the
// end. What is left of a self-join that was stopped is searched for row by row.
//
// Bases larger than memory: base may be a mapped file, of which pages are given back while this
// works, so that beside the pages of the graph no more than options.memory is resident. Inverted
// lists that do not fit into that are kept in files, PATH.lists.1, PATH.lists.2, ... (about the
// bytes of the base and one more for each of its numbers), each whole or not there, which are gone
// on with too and removed at the end; the graph is the same. A self-join that was begun without a
// limit and is gone on with within one takes 16 bytes a row more. Throws MemoryBudgetError, before
// anything is made, where the memory is too small for that, and IoError where the disk is too full
// for lists and graph.
void build_graph_file(AnyMatrixView base, std::int64_t k, const std::string& path,
                      const KnnGraphOptions& options = {}, Resume resume = Resume::no,
                      KnnGraphReport* report = nullptr, std::int64_t block_rows = 0);

}  // namespace knear
