// knear/index/flat.hpp -- exact nearest neighbours over vectors kept as they came.
//
//   FlatIndex index(128, Metric::l2);
//   index.add(base);                               // [n x 128]
//   Neighbors near = index.search(queries, 10);    // [q x 10], nearest first
//
// The answers are those of knn() (knn/knn.hpp), to the bit. Memory: the vectors in the element type
// of the first add (up to half as much again after several adds), and from the first search on the
// packed form that ExactSearcher keeps.
//
// Threads: any call at any time. Searches run side by side; the first one after an add prepares the
// packed form while the others wait for it; add waits until running searches have ended.
#pragma once
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/knn/knn.hpp"

namespace knear {

// KnnOptions without the metric, which belongs to the index.
struct SearchOptions {
  int threads = 0;          // 0: all that the process may use
  std::int64_t memory = 0;  // bytes that the search may take beside index and queries; 0: no limit
  FirstPass first_pass = FirstPass::automatic;
  RowFilter filter = {};  // for size() rows: those that may be found
  Progress progress = {};
};

class FlatIndex {
 public:
  // Throws InvalidArgument unless 1 <= dim <= 65536.
  explicit FlatIndex(std::int64_t dim, Metric metric = Metric::l2);
  FlatIndex(const FlatIndex&) = delete;
  FlatIndex& operator=(const FlatIndex&) = delete;

  std::int64_t dim() const { return dim_; }
  Metric metric() const { return metric_; }
  std::int64_t size() const;
  // Of the first rows added; f32 before that.
  ElementType element_type() const;

  // Appends a copy of the rows [n x dim]; the first gets id size(). The first rows decide the
  // element type; later ones of another type are converted. Throws ShapeMismatch for another number
  // of columns; InvalidArgument for a NaN or infinity and for a value that the element type of the
  // index cannot hold exactly, naming the row; MemoryBudgetError. Then nothing is added.
  void add(AnyMatrixView vectors);

  // The k nearest rows of each query [q x dim] of any element type, padded with no_id beyond
  // size(). Errors as for knn().
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const;

  // All rows within a radius of each query, as knear::range_search.
  RangeNeighbors range_search(AnyMatrixView queries, double radius,
                              const SearchOptions& options = {}, KnnReport* report = nullptr) const;

 private:
  AnyMatrixView vectors() const;
  std::shared_ptr<const ExactSearcher> prepared(const KnnOptions& options) const;
  KnnOptions knn_options(const SearchOptions& options) const;

  const std::int64_t dim_;
  const Metric metric_;

  mutable std::shared_mutex vectors_mutex_;  // add alone, searches together
  AnyMatrix storage_;                        // rows [0, size_) are in use
  std::int64_t size_ = 0;

  // Taken after vectors_mutex_. A search keeps the searcher that it began with.
  mutable std::mutex searcher_mutex_;
  mutable std::shared_ptr<const ExactSearcher> searcher_;  // null: vectors were added since
  mutable FirstPass searcher_first_pass_ = FirstPass::automatic;
};

}  // namespace knear
