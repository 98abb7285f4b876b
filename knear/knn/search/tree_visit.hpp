// knear/knn/search/tree_visit.hpp -- what a search by a tree of boxes (knn/rows/row_tree.hpp) would
// look at, found on a sample before the tree is made.
#pragma once
#include <cstdint>
#include <optional>

#include "knear/core/matrix.hpp"
#include "knear/scan/packing/base_rows.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// What a query looks at, on average.
struct TreeVisit {
  double leaves = 0;
  double share = 0;  // of the rows
  double rows = 0;   // of the sample, without copies
  // With more columns than RowTree::few_columns: whether codes around the middles of leaves spare
  // most of the rows that codes in one unit let through.
  bool pays = true;
};

// Finds it for queries for the k nearest, on a sample of the rows and of the queries. space: that
// in which all rows would be coded.
// With a key it is for queries for all rows up to that key.
TreeVisit visit_of_query(const BaseRows& rows, AnyMatrixView queries, const CodingSpace& space,
                         std::int64_t k, std::optional<double> key = {});

}  // namespace knear::detail
