// knear/knn/knn.hpp -- the k nearest rows of a matrix, exactly: the front door of the scan.
//
//   Neighbors near = knn(queries, base, 10);                                // one shot, l2
//   KnnReport report;
//   Neighbors near = knn(queries, base, 10, {.metric = Metric::cosine}, &report);
//
//   ExactSearcher searcher(base, {.metric = Metric::ip});                   // packs the base once
//   Neighbors near = searcher.search(queries, 10);                          // many times
//
// The answer is that of reference_knn (distance/reference.hpp), to the bit, whatever the number of
// threads, the instruction set, the split into batches and the first pass.
#pragma once
#include <cstdint>
#include <memory>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/knn/check_device.hpp"
#include "knear/knn/options.hpp"
#include "knear/knn/report.hpp"

namespace knear {

// The k nearest rows of base [n x d] for each of queries [q x d], any element types.
//
// Nearest first: squared distances for l2, descending products for ip, 1 - cos for cosine; equal
// distances by ascending id; padded with no_id beyond n or the rows allowed. Throws ShapeMismatch
// if the columns differ or the filter is for another number of rows; InvalidArgument for k outside
// [1, 2^31), dim outside [1, 65536] or a NaN or infinity, naming its row; MemoryBudgetError;
// Cancelled. q = 0 and n = 0 are fine. With a filter the answer is that of the allowed rows alone,
// under their own ids; what it costs falls with their number.
Neighbors knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
              const KnnOptions& options = {}, KnnReport* report = nullptr);

// All rows of base [n x d] within a radius of each of queries [q x d]: at a distance of at most
// `radius` (squared for l2), or with a product of at least `radius` for ip, compared in
// float64 as the reference computes it. Nearest first; ties by ascending id. Options and errors as
// for knn; InvalidArgument for a radius of NaN; MemoryBudgetError once more rows are found
// than fit options.memory or the machine, at 64 bytes each. report.k is 0.
RangeNeighbors range_search(AnyMatrixView queries, AnyMatrixView base, double radius,
                            const KnnOptions& options = {}, KnnReport* report = nullptr);

// The k nearest other rows of each row of base [n x d], any element type: a k-NN graph. Row i of
// the answer is that of knn() for row i without i itself; copies of row i are rows like any other.
//
// Each pair of rows is scored once, for both, where that is forecast to be faster than a search for
// every row (report.scan.joined says so); with a filter, a memory limit or more rows than three
// quarters of the machine's memory hold every row is searched for. Errors as for knn; k = n - 1 and
// more is fine. Memory: beside what knn takes, at most 2 KB and 100 k bytes a row while it runs.
Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options = {},
                    KnnReport* report = nullptr);

// A base prepared once for many searches. Keeps a reference to `base`, which must stay unchanged
// while this lives. Memory: about a quarter of an f32 base and 16 bytes a row.
//
// Searches of many queries come to go by a prefix of K = 8 to 128 principal
// coordinates (docs/bounds.md, 8) where that is forecast to be faster: once the queries served so
// far would have saved the time that making it takes. It adds dim + K + 26 bytes a row; for a
// search with a memory limit none is made unless first_pass asks for it. Where 8-bit passes leave
// many more rows than are wanted, codes of rows by themselves are made in the same way
// (TuningOverrides::refine): dim + 16 bytes a row.
//
// Threads: any number of search() at once; a progress callback must not call it.
class ExactSearcher {
 public:
  ExactSearcher(AnyMatrixView base, const KnnOptions& options);
  ~ExactSearcher();
  ExactSearcher(ExactSearcher&&) noexcept;
  ExactSearcher& operator=(ExactSearcher&&) noexcept;

  // As knn() above; InvalidArgument unless options.metric is the one given at construction. The
  // first call packs the base, later ones find it packed.
  Neighbors search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                   KnnReport* report = nullptr) const;
  // As knear::self_join(); the same for options.metric.
  Neighbors self_join(std::int64_t k, const KnnOptions& options, KnnReport* report = nullptr) const;
  // As range_search(); the same for options.metric.
  RangeNeighbors range_search(AnyMatrixView queries, double radius, const KnnOptions& options,
                              KnnReport* report = nullptr) const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace knear
