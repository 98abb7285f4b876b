// knear/mpi/part_search.hpp -- exact search of a base whose rows are divided between processes.
//
//   PartSearch part(own_rows, first_row, all_rows, options);       // in each process
//   ExactNeighbors found = part.search(queries, 10, options);      // of the own rows
//   merge_at_first(peers, found, queries.rows(), 10, threads, merged);   // of all, in rank 0
//
// What processes find is merged in a tree of ceil(log2(size)) steps, on float64 keys, ties to the
// smaller id (distance/exact_neighbors.hpp): the answer is that of one process with all rows, to
// the bit.
#pragma once
#include <cstdint>
#include <span>

#include "knear/core/peers.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/rows/prepared_rows.hpp"

namespace knear {

// Keeps a reference to the rows [n x d], of which row 0 is row `first` of `all`; options.filter is
// for all. Messages about rows have the numbers of all. Throws as ExactSearcher.
class PartSearch {
 public:
  PartSearch(AnyMatrixView rows, Id first, std::int64_t all, const KnnOptions& options);

  // The k nearest of these rows under their ids among all [queries x the least of k and the rows
  // allowed]; options but for the filter as given at construction. Throws as ExactSearcher.
  ExactNeighbors search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                        KnnReport* report = nullptr);

 private:
  detail::PreparedRows rows_;
  const RowFilter filter_;
  const Id first_;
};

// What merging has taken so far, in this process.
struct Merged {
  std::int64_t sent_bytes = 0;
  double seconds = 0;
};

// found: of each process for the same queries, at most k columns. In rank 0 then the k best of all;
// in the others nothing. Collective.
void merge_at_first(Peers& peers, ExactNeighbors& found, std::int64_t queries, std::int64_t k,
                    int threads, Merged& merged);

// Bytes that all processes together send for that, by the rows [processes] that each can find: 16
// for each neighbour, and 8 a process for each of so many calls.
std::int64_t merge_bytes(std::span<const std::int64_t> rows, std::int64_t queries, std::int64_t k,
                         std::int64_t calls);

}  // namespace knear
