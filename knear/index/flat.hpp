// knear/index/flat.hpp -- exact nearest neighbours over vectors that are added, changed and kept.
//
//   FlatIndex index(128, Metric::l2);
//   index.add(base);                               // [n x 128], ids 0 ... n - 1
//   Neighbors near = index.search(queries, 10);    // [q x 10], nearest first
//   index.remove(std::vector<Id>{17, 4});          // no other id changes
//
// The answers are those of knn() (knn/knn.hpp) over the rows that are there, ties by id, to the
// bit, whatever the history of the index.
//
// Memory. f32, f16 and bf16 vectors: as they came and packed codes of about d bytes a row and 16
// more; whole numbers of 8 bits of any element type (l2 and ip): packed codes alone, one byte a
// coordinate (5 % are padding) and 16 bytes a row. Own ids take 8 bytes a row more, and d + K + 26
// are added where searches without a memory limit have come to go by a prefix of K columns, 8 to
// 128, or optimize() made one, or d + 16 where rows that 8 bits leave are scored again, which they
// do once it has paid (knn/knn.hpp). Removed rows are given back when they are half of their
// segment, or by compact(). Adding copies nothing that is there.
//
// Threads: any call at any time. Every search sees one state of the index, the one at its begin;
// calls that change it follow one another and make one new state each, whole or not at all. Neither
// waits for the other. A progress callback must not search or change the index that it is called
// by.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/id_filter.hpp"
#include "knear/knn/knn.hpp"

namespace knear {

// Searches by the metric of the index, which is not theirs to choose.
struct MetricOfIndex {};
// As KnnOptions, with a filter of ids for one of row numbers. `memory` is beside the index too.
using SearchOptions = BasicKnnOptions<MetricOfIndex, IdFilter>;

// For calls that change an index.
struct ChangeOptions {
  int threads = 0;
  Progress progress = {};
};

enum class MergeIds : std::uint8_t {
  keep,    // each row keeps its id; one that both indexes hold is an error
  shifted  // next_id() is added to each
};

class FlatIndex {
 public:
  // Throws InvalidArgument unless 1 <= dim <= 65536.
  explicit FlatIndex(std::int64_t dim, Metric metric = Metric::l2);
  ~FlatIndex();
  FlatIndex(FlatIndex&&) noexcept;
  FlatIndex& operator=(FlatIndex&&) noexcept;

  std::int64_t dim() const;
  Metric metric() const;
  // Rows that are there.
  std::int64_t size() const;
  // The type of the first rows added; f32 before that.
  ElementType element_type() const;
  // Above every id that was ever given: what the next row gets that comes without one.
  Id next_id() const;
  // The number of the present state: of changes made so far.
  std::int64_t version() const;
  bool contains(Id id) const;
  // All ids, ascending.
  std::vector<Id> ids() const;
  // Bytes of rows, ids and packed rows.
  std::int64_t memory_bytes() const;

  // Appends copies of the rows [n x dim]; they get the ids next_id(), next_id() + 1, ... The first
  // rows decide the element type; later ones of another type are converted. Throws ShapeMismatch
  // for another number of columns; InvalidArgument for a NaN or infinity and for a value that the
  // element type of the index cannot hold exactly, naming the row; MemoryBudgetError; Cancelled.
  // Then nothing is added.
  void add(AnyMatrixView vectors, const ChangeOptions& options = {});
  // Appends rows with ids of the caller's, one a row, not negative, none of them twice or held by
  // the index: InvalidArgument, with its place. The id of a row that was removed may be given
  // again.
  void add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options = {});
  // Makes the next allocation large enough for as many rows in all. Never shrinks. Throws
  // MemoryBudgetError for more than the machine has.
  void reserve(std::int64_t rows);

  // Takes rows out. Throws InvalidArgument for an id that the index does not hold or that is given
  // twice, with its place; then nothing is removed.
  void remove(std::span<const Id> ids, const ChangeOptions& options = {});
  // Row i of the vectors takes the place of the row with ids[i]. Errors as for remove and add.
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options = {});
  // Takes over the rows of another index, of which it shares the memory as long as neither has
  // removed half of it. Throws ShapeMismatch or InvalidArgument if dim, metric or element type
  // differ, or for an id held by both.
  void merge(const FlatIndex& other, MergeIds ids = MergeIds::keep);
  // Gives back the memory of removed rows, and puts together what many changes left apart.
  void compact(const ChangeOptions& options = {});

  // Makes now, and has save() keep, the prefix (knn/knn.hpp) by which many searches would come to
  // go: the first one goes by it then, those with a memory limit too. Segments of fewer than 8,192
  // rows, indexes of fewer than 32 or more than 4,096 columns, rows too large for a prefix and data
  // for which none is forecast to be faster, be it for one query or for many at a time, go without,
  // as before; searches for which the plain scan is faster still take that. Rows added later are
  // searched beside it until optimize() is called again; what compact(), remove() and replace()
  // write anew loses it. No answer changes. Returns the number of rows that are reached by a
  // prefix. Throws MemoryBudgetError, Cancelled.
  std::int64_t optimize(const ChangeOptions& options = {});

  // Writes the index as it is now to a .knear file, whole or not at all: a process killed meanwhile
  // leaves the old file. Throws IoError, Cancelled.
  void save(const std::string& path, const Progress& progress = {}) const;
  // Opens a .knear file without reading vectors and codes: they stay in the file, which must not be
  // written to (save() replaces it, which is fine), and are compared with their checksums when they
  // are first used. Throws IoError; CorruptFile, naming the section that is cut off or altered,
  // as searches may later.
  static FlatIndex load(const std::string& path);

  // The rows with these ids [ids x dim], in the element type of the index, as they were added
  // (-0.0 may come back as 0.0). Throws InvalidArgument for an id that the index does not hold.
  AnyMatrix reconstruct(std::span<const Id> ids) const;

  // The k nearest rows of each query [q x dim] of any element type, padded with no_id beyond
  // size(). Errors as for knn(), and InvalidArgument for an id of a filter's list that the index
  // does not hold. report->version is that of the state searched.
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const;

  // All rows within a radius of each query, as knear::range_search.
  RangeNeighbors range_search(AnyMatrixView queries, double radius,
                              const SearchOptions& options = {}, KnnReport* report = nullptr) const;

  class Impl;

 private:
  explicit FlatIndex(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace knear
