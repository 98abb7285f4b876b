// knear/graph/copies.hpp -- rows that are equal, for graphs of distinct vectors.
#pragma once
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/row_filter.hpp"

namespace knear::detail {

struct Copies {
  std::vector<Id> first;   // [rows] the first row with the same elements; 0 and -0 are the same
  std::vector<Id> firsts;  // the rows that are their own, ascending
  RowFilter filter;        // these; everything if there are no copies
};
// Requires that there is no NaN.
Copies find_copies(AnyMatrixView base);

}  // namespace knear::detail
