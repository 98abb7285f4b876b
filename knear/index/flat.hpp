// knear/index/flat.hpp -- exact nearest neighbours over vectors that are added, changed and kept.
//
//   FlatIndex index(128, Metric::l2);
//   index.add(base);                               // [n x 128], ids 0 ... n - 1
//   Neighbors near = index.search(queries, 10);    // [q x 10], nearest first
//
// The answers are those of knn() (knn/knn.hpp) over the rows that are there, ties by id, to the
// bit, whatever the history of the index, unless less recall is asked for. It is also what faster
// indexes are measured against.
//
// Memory: as every index (index/index.hpp); d + K + 26 bytes a row more where searches without a
// memory limit have come to go by a prefix of K columns, 8 to 128, or optimize() made one, or
// d + 16 where rows that 8 bits leave are scored again, which they do once it has paid
// (knn/knn.hpp).
//
// A recall below 1 (SearchMethod::recall, with everything else left to the index) may go by
// inverted lists that the index makes of its rows: from 16,384 rows on, for k up to a 256th of
// them, once such searches have taken as long as making them does, or after tune(). They hold until
// the rows change, take d + 16 bytes a row, and are not kept by save(). Queries unlike the rows,
// filters and limited memory are answered by all rows; report.method says which it was.
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

 private:
  using Index::Index;
};

}  // namespace knear
