// knear/graph/partial_graph.hpp -- the blocks of a graph that are done, in a file that survives a
// kill at any moment.
//
//   header      what the graph is of and how it is made, with a checksum; at the end of its page,
//               of rows of inverted lists, the XXH3 of their order
//   sums        XXH3 of each block, 0 for one that is not there; written once the block is on disk
//   ids         [n x k] i64
//   distances   [n x k] f32
//   rows        [n] i64, of rows in the order in which they were found
//
// Rows that are not in their own order come once more in it, ids and distances, filled in at the
// end.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "knear/graph/neighbor_graph.hpp"

namespace knear::detail {

// What is in the places of blocks: rows by their numbers, rows as their inverted lists have them,
// or rows as they are found, whose numbers the file has too.
enum class RowOrder : std::uint8_t { by_number, by_list, as_found };

// All that decides what is in a block. Another plan is another graph.
struct GraphPlan {
  BaseMark base;
  std::int64_t k = 0, block_rows = 0;
  Metric metric = Metric::l2;
  double recall = 1;
  bool distinct = false;
  RowOrder order = RowOrder::by_number;
};

// Whether the graph in a file, of which nothing is left to do, is the one that was asked for.
// Throws InvalidArgument if it is another one; IoError, CorruptFile.
void check_finished(const std::string& path, const GraphPlan& plan, double promised_recall,
                    const std::string& recall_argument, const Progress& progress);

class PartialGraph {
 public:
  // Where the sums are in the file, 8 bytes each; that of a block is 0 until it is finished.
  static constexpr std::int64_t sums_at = 4096;

  // Whether there is a file of this name.
  static bool exists(const std::string& path);
  // Makes the file, or opens that of the same plan; of block_rows 0: whatever blocks it has; of
  // rows as they are found: rows by their numbers too. Throws IoError; InvalidArgument for that of
  // another plan; CorruptFile.
  static PartialGraph create(const std::string& path, const GraphPlan& plan);
  static PartialGraph open(const std::string& path, GraphPlan plan);
  ~PartialGraph();
  PartialGraph(PartialGraph&&) noexcept;

  const std::string& path() const;
  std::int64_t blocks() const;
  std::int64_t block_rows() const;
  // Whether a block is there; one that was written in part, or altered since, is not.
  bool has(std::int64_t block) const;
  // Writes what is in the places of a block [block_rows x k], the last one fewer, and waits until
  // it is on disk; `rows`: of which rows, where these come as they are found.
  void write(std::int64_t block, MatrixView<Id> ids, MatrixView<float> distances,
             std::span<const Id> rows = {});
  // Of rows as they are found: those of a block that is there, mapped. Throws CorruptFile for a
  // number that no row has.
  std::span<const Id> rows(std::int64_t block) const;
  RowOrder order() const;
  // Of rows in lists: which row each place has. Throws InvalidArgument where what is there was
  // found in another order.
  void set_order(std::span<const Id> order);
  // Brings everything into the order of rows, so many bytes at a time: order[i] is the row in place
  // i. Nothing is to be done where the order is empty or that of rows.
  void arrange(std::span<const Id> order, std::int64_t bytes);
  // Everything in the order of rows, mapped: valid as long as this lives.
  MatrixView<Id> ids() const;
  MatrixView<float> distances() const;
  // Throws CorruptFile where a row has itself or no row among its neighbours, or a distance that is
  // no number. After arrange().
  void check_edges() const;
  // Takes the file away.
  void remove();

 private:
  struct File;
  explicit PartialGraph(std::unique_ptr<File> file);
  std::unique_ptr<File> file_;
};

}  // namespace knear::detail
