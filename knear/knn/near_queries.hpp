// knear/knn/near_queries.hpp -- queries in an order in which those that are near one another come
// together, for searches that divide a batch: those of one part then probe the same inverted lists.
//
//   const std::vector<std::int64_t> order = order_of_near(queries, threads);
//   const AnyMatrix together = copies_of(queries, order);
//
// They are ordered along the line on which they spread most, the first principal component: the
// order says nothing of two queries that lie side by side, but parts of it have a border of which
// few queries are near.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"

namespace knear::detail {

// queries [rows x columns], finite. A permutation of 0, ..., rows - 1: by the coordinate along the
// first principal component, ascending, of equal ones the lower number first; as they came where
// all are alike. The component is that of at most 128 queries, by a few steps of power iteration
// from the one farthest from their mean. The same for any number of threads.
std::vector<std::int64_t> order_of_near(AnyMatrixView queries, int threads);

}  // namespace knear::detail
