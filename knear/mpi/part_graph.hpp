// knear/mpi/part_graph.hpp -- an exact k-NN graph by processes that have a part of the rows each.
//
//   build_graph_of_parts(peers, mark, open_rows, 10, "graph.knear", {.metric = Metric::l2});
//
// Rows are searched for in blocks. A process has the blocks of one stretch of the base and searches
// one of them at a time, all processes together: the whole base is passed round in chunks, from
// whoever has the rows to all, and each process searches a chunk for its block. Blocks that are
// finished the first process keeps in PATH.partial, which is that of build_graph_file()
// (graph/knn_graph.hpp): either goes on with what the other has begun, with any number of
// processes. The graph is that of build_graph_file(), to the bit.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "knear/core/peers.hpp"
#include "knear/graph/knn_graph.hpp"

namespace knear {

struct PartGraphOptions {
  Metric metric = Metric::l2;
  int threads = 0;
  Resume resume = Resume::no;
  // Of a block, and of a chunk that is passed round, in bytes; 0: as many rows as leave each
  // process eight blocks, from 4,096 to 131,072 of them; 64 MiB. When a graph is gone on with,
  // blocks are those that it was begun with.
  std::int64_t block_rows = 0, chunk_bytes = 0;
  Progress progress = {};
  // Told once, in each process, when PATH.partial is there, with the number of its blocks.
  std::function<void(std::int64_t blocks)> begun = {};
  // Told once, in each process, when all blocks are there and PATH is about to be written.
  std::function<void()> searched = {};
};

struct PartGraphReport {
  double seconds = 0;
  std::int64_t searched_rows = 0, blocks = 0, blocks_before = 0;
  // Of the base, what processes were told by others, and what was expected; of the graph, what the
  // first was told.
  std::int64_t passed_bytes = 0, predicted_passed_bytes = 0, gathered_bytes = 0;
  // Nothing was done: PATH was whole when it was to be resumed.
  bool was_whole = false;
};

// base: what the graph is of; the checksum counts in the first process alone. open_rows(begin, end)
// gives rows of it and is called once in each process; they are to stay. Collective; throws in all
// processes what build_graph_file() throws.
void build_graph_of_parts(
    Peers& peers, const BaseMark& base,
    const std::function<AnyMatrixView(std::int64_t begin, std::int64_t end)>& open_rows,
    std::int64_t k, const std::string& path, const PartGraphOptions& options,
    PartGraphReport* report = nullptr);

}  // namespace knear
