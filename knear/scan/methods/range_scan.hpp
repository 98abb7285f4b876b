// knear/scan/methods/range_scan.hpp -- all rows within a radius: the threshold stands from the
// beginning, and what is found goes into growing lists, one a query, of no more pairs in all than
// memory holds.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/scan/methods/pruned_pair.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {

// What lies within a radius: pairs (key, id), one list a query, in no order.
using RangeLists = std::vector<std::vector<std::pair<double, std::int64_t>>>;

// Takes what the threads find, and stops them once there are more pairs than may be.
class RangeSink {
 public:
  // ids: of the rows that are found. The lists may have pairs already, which count among the
  // `most`. which: the list of each query; empty: the first query has the first list.
  RangeSink(RangeLists& out, RowIds ids, std::int64_t most,
            std::span<const std::int64_t> which = {});
  // Shares the lists of `whole`; query q has the list of number which[q].
  RangeSink(const RangeSink& whole, std::span<const std::int64_t> which)
      : RangeSink(whole.out_, whole.ids_, whole.most_, which) {}

  // Called for pairs as they are found, before they are taken. Throws MemoryBudgetError.
  void count(std::int64_t more);
  // Moves the pairs of some queries over, of each a list. Any number of threads at once.
  void take(std::span<const std::int64_t> queries, RangeLists& found);
  // Counts and copies measured pairs whose key is at most `limit`, which come by query: pair.query
  // is a place in `queries`, which has their numbers. rows: the row for that of a pair; empty: the
  // same.
  void take(std::span<const PrunedPair> pairs, std::span<const std::int64_t> queries,
            std::span<const std::uint32_t> rows, double limit, int threads);

  RangeLists& lists() { return out_; }
  RowIds ids() const { return ids_; }

 private:
  auto& list_of(std::int64_t query) { return out_[which_.empty() ? query : which_[query]]; }

  std::mutex mutex_;
  RangeLists& out_;
  RowIds ids_;
  std::int64_t most_;
  std::span<const std::int64_t> which_;
  std::atomic<std::int64_t> count_ = 0;
};

// Gives to the sink every row whose key is at most `limit` from a query, for all queries of the
// job. job.k has a say in the size of tasks alone, job.upper_bounds and job.may_give_up have none.
// Throws MemoryBudgetError as the sink does.
void scan_range(const PackedBase& packed, const ScanJob& job, double limit, RangeSink& sink,
                ScanStats& stats, const Progress& progress);
// The same for the queries and panels of a table.
void scan_range(const PackedBase& packed, const ScanJob& job, const WorkTable& table, double limit,
                RangeSink& sink, ScanStats& stats, const Progress& progress);
// Gives the same answer by measuring every pair, of all rows or of `subset`.
void scan_range_directly(const ScanJob& job, std::span<const std::uint32_t> subset, double limit,
                         RangeSink& sink, ScanStats& stats, const Progress& progress);

}  // namespace knear::detail
