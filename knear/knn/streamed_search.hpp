// knear/knn/streamed_search.hpp -- exact search of a base that comes in blocks, each seen once.
//
//   StreamedSearch search(queries, 10, {.memory = 1 << 30}, total_rows);
//   while (...) search.add(block);                 // [rows x d], ids count on
//   Neighbors near = search.finish(&report);
//
// For bases that lie in no memory and cannot be mapped: gzipped files, other number types. The
// answer is that of knn() over all blocks, to the bit.
#pragma once
#include <memory>

#include "knear/knn/knn.hpp"

namespace knear {

class StreamedSearch {
 public:
  // `queries` must stay unchanged while this lives. total_rows: of all blocks, for which
  // options.filter must be if there is one; options.memory is for each block's search, beside
  // queries and block. Errors as for knn().
  StreamedSearch(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                 std::int64_t total_rows);
  ~StreamedSearch();

  // Searches the next rows.
  void add(AnyMatrixView rows);
  // Call last; throws InvalidArgument unless total_rows were added.
  Neighbors finish(KnnReport* report = nullptr);
  // The float64 distances of the answer [queries x k], padded with the metric's no_distance();
  // once, after finish().
  Matrix<double> take_distances();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace knear
