#include "knear/distance/exact_neighbors.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"

namespace knear {
namespace {

// Calls f(query) for each query, on all threads where there are many numbers.
template <class F>
void each_query(std::int64_t queries, std::int64_t columns, int threads, F f) {
  const std::int64_t block = std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, columns));
  const std::int64_t tasks = (queries + block - 1) / block;
  parallel_for(tasks > 1 ? threads : 1, tasks, [&](std::int64_t task) {
    for (std::int64_t q = task * block; q < std::min(queries, (task + 1) * block); ++q) f(q);
  });
}

// Writes the answer of query q, without row `self` of the base unless that is no_id, to row `to`.
void round_query(const ExactNeighbors& all, Metric metric, std::int64_t q, Id self, std::int64_t to,
                 Neighbors& out) {
  std::int64_t from = 0;
  for (std::int64_t j = 0; j < out.ids.cols(); ++j, ++from) {
    if (self != no_id && from < all.columns() && all.ids.row(q)[from] == self) ++from;
    const bool has = from < all.columns() && all.ids.row(q)[from] != no_id;
    out.ids.row(to)[j] = has ? all.ids.row(q)[from] : no_id;
    out.distances.row(to)[j] =
        has ? static_cast<float>(distance_of_key(metric, all.keys.row(q)[from]))
            : no_distance(metric);
  }
}

}  // namespace

void merge(ExactNeighbors& all, const ExactNeighbors& more, std::int64_t k, int threads,
           bool may_share) {
  const std::int64_t have = all.columns(), coming = more.columns();
  ExactNeighbors merged(more.keys.rows(), std::min(k, have + coming));
  // What a list is padded with comes last, also behind rows that are infinitely far.
  const auto place = [](const ExactNeighbors& of, std::int64_t q, std::int64_t j) {
    const Id id = of.ids.row(q)[j];
    return std::pair(of.keys.row(q)[j], id == no_id ? std::numeric_limits<Id>::max() : id);
  };
  each_query(more.keys.rows(), merged.columns(), threads, [&](std::int64_t q) {
    std::int64_t a = 0, b = 0;
    for (std::int64_t j = 0; j < merged.columns(); ++j) {
      if (may_share && a == have && b == coming) {
        merged.keys.row(q)[j] = std::numeric_limits<double>::infinity();
        merged.ids.row(q)[j] = no_id;
        continue;
      }
      const bool from_all = b == coming || (a < have && place(all, q, a) <= place(more, q, b));
      if (may_share && from_all && b < coming && place(all, q, a) == place(more, q, b)) ++b;
      const ExactNeighbors& source = from_all ? all : more;
      const std::int64_t at = from_all ? a++ : b++;
      merged.keys.row(q)[j] = source.keys.row(q)[at];
      merged.ids.row(q)[j] = source.ids.row(q)[at];
    }
  });
  all = std::move(merged);
}

Neighbors rounded(const ExactNeighbors& all, Metric metric, std::int64_t queries,
                  std::int64_t columns, int threads, std::optional<Id> self) {
  Neighbors out{Matrix<Id>(queries, columns), Matrix<float>(queries, columns)};
  each_query(queries, columns, threads, [&](std::int64_t q) {
    round_query(all, metric, q, self ? *self + q : no_id, q, out);
  });
  return out;
}

Neighbors rounded_rows(const ExactNeighbors& all, Metric metric, std::span<const Id> rows,
                       std::int64_t columns, int threads) {
  const std::int64_t count = std::ssize(rows);
  Neighbors out{Matrix<Id>(count, columns), Matrix<float>(count, columns)};
  each_query(count, columns, threads, [&](std::int64_t i) {
    const Id row = rows[i];
    round_query(all, metric, row, row, i, out);
  });
  return out;
}

Matrix<double> distances_of(const ExactNeighbors& all, Metric metric, std::int64_t queries,
                            std::int64_t columns) {
  Matrix<double> out(queries, columns);
  for (std::int64_t q = 0; q < out.rows(); ++q)
    for (std::int64_t j = 0; j < columns; ++j)
      out.row(q)[j] = j < all.columns() && all.ids.row(q)[j] != no_id
                          ? distance_of_key(metric, all.keys.row(q)[j])
                          : no_distance(metric);
  return out;
}

}  // namespace knear
