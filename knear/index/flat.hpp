// knear/index/flat.hpp -- exact nearest neighbours over vectors that are added, changed and kept.
//
//   FlatIndex index(128, Metric::l2);
//   index.add(base);                               // [n x 128], ids 0 ... n - 1
//   Neighbors near = index.search(queries, 10);    // [q x 10], nearest first
//
// The answers are those of knn() (knn/knn.hpp) over the rows that are there, ties by id, to the
// bit, whatever the history of the index. It is also what faster indexes are measured against.
//
// Memory: as every index (index/index.hpp); d + K + 26 bytes a row more where searches without a
// memory limit have come to go by a prefix of K columns, 8 to 128, or optimize() made one, or
// d + 16 where rows that 8 bits leave are scored again, which they do once it has paid
// (knn/knn.hpp).
#pragma once
#include <string>

#include "knear/index/index.hpp"

namespace knear {

class FlatIndex : public Index {
 public:
  // Throws InvalidArgument unless 1 <= dim <= 65536.
  explicit FlatIndex(std::int64_t dim, Metric metric = Metric::l2);

  // As Index::load(), of a flat index.
  static FlatIndex load(const std::string& path);

  // Makes now, and has save() keep, the prefix (knn/knn.hpp) by which many searches would come to
  // go: the first one goes by it then, those with a memory limit too. Segments of fewer than 8,192
  // rows, indexes of fewer than 32 or more than 4,096 columns, rows too large for a prefix and data
  // for which none is forecast to be faster, be it for one query or for many at a time, go without,
  // as before; searches for which the plain scan is faster still take that. Rows added later are
  // searched beside it until optimize() is called again; what compact(), remove() and replace()
  // write anew loses it. No answer changes. Returns the number of rows that are reached by a
  // prefix. Throws MemoryBudgetError, Cancelled.
  std::int64_t optimize(const ChangeOptions& options = {});

 private:
  using Index::Index;
};

}  // namespace knear
