// knear/knn/lists/probed_search.hpp -- what an index asks of a search among the rows of a few lists
// of each query, wherever these are scanned: by the processor (list_search.hpp), a GPU
// (device/device_list_search.hpp) or several (device/device_grid.hpp).
#pragma once
#include <cstdint>
#include <span>

#include "knear/core/matrix.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/knn/report.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

// Search among the rows of lists, whatever these are made of.
class ProbedSearch {
 public:
  virtual ~ProbedSearch() = default;
  // Adds to `found` [queries x request.k or nothing yet] the nearest among the rows of some lists
  // of each query. probes [queries x lists at most]: numbers of lists, none of them twice or in a
  // call before, nearest first; no_id for none, behind the others. which: the queries that have
  // the rows of probes, ascending; empty: all.
  virtual void nearest(MatrixView<Id> probes, ExactNeighbors& found,
                       std::span<const std::int64_t> which = {}) = 0;
  // All rows whose key is at most `limit` in these lists.
  virtual void within(MatrixView<Id> probes, double limit, RangeLists& found) = 0;
  // What was done, but for the promise and the time, which the caller knows.
  virtual KnnReport report() = 0;
};

}  // namespace knear::detail
