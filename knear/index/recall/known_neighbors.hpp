// knear/index/recall/known_neighbors.hpp -- some vectors that an index of codes was trained on, and
// their nearest rows by the vectors themselves, which codes cannot tell: what recall is measured
// by.
//
//   auto known = KnownNeighbors::of(vectors, metric, seed);       // when it is trained
//   known = known->with(added, ids, threads);                     // as rows come
//   known = known->without(removed);                              // and go
//   auto known = KnownNeighbors::among(base, ids, filter, ...);   // of vectors kept elsewhere
//   auto known = KnownNeighbors::together(parts, holds, threads); // of several indexes
//
// Values, never changed once they are made.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/core/row_filter.hpp"

namespace knear::detail {

class KnownNeighbors {
 public:
  // Vectors that are kept, and neighbours of each: 100, and some more, since a vector may be its
  // own nearest row, have equals, and lose rows that are removed.
  static constexpr std::int64_t most_queries = 1000, most_neighbors = 128;

  using Row = std::pair<float, Id>;  // order_key(), rounded, and id
  // Rows in 8 bytes each, in 12 once an id does not fit in 32 bits.
  class Rows {
   public:
    Rows() = default;
    explicit Rows(std::span<const Row> rows);

    std::size_t size() const { return keys_.size(); }
    Row operator[](std::size_t i) const {
      const std::uint64_t high = high_.empty() ? 0 : high_[i];
      return {keys_[i], static_cast<Id>(high << 32 | low_[i])};
    }
    std::vector<Row> all() const;
    std::int64_t bytes() const {
      return static_cast<std::int64_t>(keys_.capacity() * sizeof(float) +
                                       (low_.capacity() + high_.capacity()) * sizeof low_[0]);
    }

   private:
    std::vector<float> keys_;
    std::vector<std::uint32_t> low_, high_;  // halves of ids; no high ones where all are 0
  };
  struct List {
    Rows rows;        // ascending; the nearest ones, without a gap
    bool all = true;  // whether there are no others
  };

  static std::shared_ptr<const KnownNeighbors> of(AnyMatrixView vectors, Metric metric,
                                                  std::uint64_t seed);
  // kept: neighbours of each vector at most.
  KnownNeighbors(std::shared_ptr<const AnyMatrix> queries, Metric metric, std::vector<List> lists,
                 std::int64_t kept = most_neighbors)
      : queries_(std::move(queries)), metric_(metric), lists_(std::move(lists)), kept_(kept) {
    for (const List& list : lists_)
      kept_ = std::max(kept_, static_cast<std::int64_t>(list.rows.size()));
  }

  // Of these queries, or if there are none of the rows, most_queries drawn at random,
  // among those rows of `base` that a filter allows, whose ids are given. Keeps as many neighbours
  // as truth(k) wants, if these are more than usual.
  static std::shared_ptr<const KnownNeighbors> among(AnyMatrixView base, std::span<const Id> ids,
                                                     const RowFilter& filter, AnyMatrixView queries,
                                                     std::int64_t k, Metric metric, int threads,
                                                     const Progress& progress);

  // With rows [n x dim] more.
  std::shared_ptr<const KnownNeighbors> with(AnyMatrixView vectors, std::span<const Id> ids,
                                             int threads) const;
  std::shared_ptr<const KnownNeighbors> without(std::span<const Id> ids) const;

  // What is known of the rows of several indexes together: of those that holds(part, id) says a
  // part has. Nullptr where one knows nothing, or of other vectors than the first.
  static std::shared_ptr<const KnownNeighbors> together(
      std::span<const std::shared_ptr<const KnownNeighbors>> parts,
      const std::function<bool(std::size_t, Id)>& holds, int threads);

  AnyMatrixView queries() const { return queries_->view(); }
  Metric metric() const { return metric_; }
  const std::vector<List>& lists() const { return lists_; }
  std::int64_t bytes() const;

  // The queries of which k neighbours, or all rows, are known, without rows that equal the query:
  // it may be one of them itself.
  struct Truth {
    std::vector<std::int64_t> queries;
    std::vector<std::vector<Id>> nearest;
    std::vector<std::vector<Id>> equal;  // rows that do not count
  };
  Truth truth(std::int64_t k) const;

 private:
  std::shared_ptr<const AnyMatrix> queries_;
  Metric metric_;
  std::vector<List> lists_;
  std::int64_t kept_;
};

}  // namespace knear::detail
