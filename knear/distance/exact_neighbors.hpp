// knear/distance/exact_neighbors.hpp -- the answer of an exact search before anything is rounded:
// float64 keys and ids, in the one total order. Segments, blocks of a stream, devices and shards
// merge by it; float32 distances are made once, at the public edge.
//
//   ExactNeighbors found(queries, k);            // filled by a scan
//   merge(all, found, k, threads);               // the k best of both
//   Neighbors out = rounded(all, metric, queries, k, threads);
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear {

// [queries x columns], each row ascending by (key, id): order_key() of distance/reference.hpp, so
// that smaller is nearer for every metric. Padded with +infinity and no_id.
struct ExactNeighbors {
  Matrix<double> keys;
  Matrix<Id> ids;

  ExactNeighbors() = default;
  // All zeros, until a search fills it.
  ExactNeighbors(std::int64_t queries, std::int64_t columns)
      : keys(queries, columns), ids(queries, columns) {}
  std::int64_t columns() const { return keys.cols(); }
};

// The k best of both for each query, or all where they are fewer. They have no id in common, unless
// may_share is true: an id that is in both, with the same key, is taken once. Requires as many
// queries.
void merge(ExactNeighbors& all, const ExactNeighbors& more, std::int64_t k, int threads,
           bool may_share = false);

// Distances rounded to float32 [queries x columns], padded with no_id and no_distance(). With
// `self`, query i is row *self + i of the base and its answer leaves that row out. `all` may have
// no rows yet, when nothing was searched.
Neighbors rounded(const ExactNeighbors& all, Metric metric, std::int64_t queries,
                  std::int64_t columns, int threads, std::optional<Id> self = {});

// The same of some rows of the answer of a self-join, each without itself: [rows x columns].
Neighbors rounded_rows(const ExactNeighbors& all, Metric metric, std::span<const Id> rows,
                       std::int64_t columns, int threads);

// The float64 distances of the first `columns`, padded with no_distance().
Matrix<double> distances_of(const ExactNeighbors& all, Metric metric, std::int64_t queries,
                            std::int64_t columns);

}  // namespace knear
