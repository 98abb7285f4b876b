// knear/scan/scan.hpp -- the one scan: score, test against a threshold, keep candidates, rescore.
//
// For each tile of the base and each group of queries the kernel (scan/kernels/tile_kernels.hpp)
// hands back the few pairs that passed the test. Each becomes an interval that certainly holds its
// g; the k-th best lower end is the threshold G of its query, and whatever has its upper end below
// G is dropped. What is left at the end is measured in float64, best first, until the next interval
// lies beyond the k-th. Exact integers need no interval and no rescoring.
//
// For many neighbours the k-th best of what was seen is a poor threshold for long: the tiles are
// samples of the base, so of the first t of T tiles the best k t / T and a few are hoped to hold
// all of the k that lie there, and the worst of these is the threshold. In the end the k-th key
// shows whether that was right; a query for which it was not is scanned again without hope.
//
// Work is divided by queries, each thread going over the whole base; when there are too few
// queries for that, by tiles too, and the parts' candidates are put together before rescoring.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/core/row_filter.hpp"
#include "knear/core/row_set.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// [queries x k] in the total order: keys as order_key(), padded with +infinity and no_id.
struct ExactLists {
  Matrix<double> keys;
  Matrix<Id> ids;
};

struct ScanStats {
  // Sums over threads. Of the scan: packing queries, rows that are looked at first (a prefix), the
  // kernel, and what is done with the rows that it lets through.
  double scan_seconds = 0, rescore_seconds = 0;
  double query_seconds = 0, seed_seconds = 0, score_seconds = 0, select_seconds = 0;
  std::int64_t hits = 0, refined = 0, survivors = 0;  // refined: scored again by codes of their own
  int group = 0, parts = 0;                           // of the last scan
  bool guessed = false;                               // whether a threshold was hoped for
  std::int64_t repeated = 0;      // queries whose hoped-for threshold was too good to be true
  std::int64_t buffer_bytes = 0;  // most memory that the threads' buffers took

  // Takes in what a task counted; its buffers stand side by side with those of others.
  void add(const ScanStats& task) {
    scan_seconds += task.scan_seconds, rescore_seconds += task.rescore_seconds;
    query_seconds += task.query_seconds, seed_seconds += task.seed_seconds;
    score_seconds += task.score_seconds, select_seconds += task.select_seconds;
    guessed |= task.guessed;
    hits += task.hits, refined += task.refined, survivors += task.survivors;
    repeated += task.repeated;
  }
};

// Which rows of a base may be found: all, or those that a filter allows and a set holds; row 0 of
// the base is row `offset` of the filter and `live_offset` of the set.
struct AllowedRows {
  const RowFilter* filter = nullptr;
  std::int64_t offset = 0;
  const RowSet* live = nullptr;
  std::int64_t live_offset = 0;

  bool all() const { return !filter && !live; }
  bool operator()(std::int64_t row) const {
    return (!filter || filter->allows(row + offset)) &&
           (!live || live->contains(row + live_offset));
  }
};

struct PerRowCodes;  // scan/packing/per_row_codes.hpp

struct ScanJob {
  AnyMatrixView queries;
  BaseRows base;  // those that were packed
  Metric metric;
  std::int64_t k;
  int threads;
  Isa isa;
  ValueRange query_range;
  bool may_give_up;           // whether a query whose bound prunes too little may be handed back
  std::int64_t most_pending;  // candidates of a query kept before they are measured; above k
  AllowedRows allowed = {};   // of the rows that were packed
  // Whether thresholds for many neighbours may be guessed from the tiles seen so far. A query whose
  // guess proves wrong is scanned again without; the answer is the same.
  bool may_estimate = true;
  // Whether rows that are left may be scored again by codes of their own; and those codes, in the
  // order of rows and in the space of the packed base, if they were made.
  bool may_refine = true, must_refine = false;  // else where it is expected to pay
  const PerRowCodes* per_row_codes = nullptr;
  // Whether candidates of many queries may be measured together, which takes memory.
  bool by_rows = true;
  // Queries scored side by side, and parts of the base for the same queries; 0: by their number.
  int group = 0, parts = 0;
  // Of each query, a key that k rows found elsewhere do not exceed, so that of this base only rows
  // with at most that key are wanted; nullptr: none known.
  const double* upper_bounds = nullptr;
};

// The most queries that one thread takes at a time, so that their buffers stay within megabytes.
std::int64_t queries_in_block(std::int64_t k);

// The share of the rows that a first pass may leave to be measured before the next pass of the
// ladder, one of wider codes or after fp32 the direct one, costs less.
double worthwhile_survivors(Format format, std::int64_t dim, const MachinePeaks& peaks);

// Fills rows `which` of `out` (shapes [queries x k]); returns the queries given up, whose rows are
// untouched. Requires k >= 1, equal columns, finite elements; ids are rows of job.base. Rows whose
// key exceeds the query's bar may be missing.
std::vector<std::int64_t> scan(const PackedBase& packed, const ScanJob& job,
                               const std::vector<std::int64_t>& which, ExactLists& out,
                               ScanStats& stats, const Progress& progress);

// The same by measuring every pair in float64, of all rows of job.base or of a `subset` of them
// (ascending) if that is not empty: for very few queries or a k near the size of the
// base, where preparing codes would not pay.
void scan_directly(const ScanJob& job, std::span<const std::uint32_t> subset,
                   const std::vector<std::int64_t>& which, ExactLists& out, ScanStats& stats,
                   const Progress& progress);

// What lies within a radius: pairs (key, id), one list a query, in no order yet.
using RangeLists = std::vector<std::vector<std::pair<double, std::int64_t>>>;

// The ids of the rows of a base: ids[row], or if there are none first + row.
struct RowIds {
  Id first = 0;
  const Id* ids = nullptr;

  Id operator()(std::int64_t row) const { return ids ? ids[row] : first + row; }
  // Of the rows from `begin` on.
  RowIds from(std::int64_t begin) const { return {first + begin, ids ? ids + begin : nullptr}; }
};

class RangeSink;  // scan/methods/range_sink.hpp

// Gives to the sink every row whose key is at most `limit` from a query, for all queries of the
// job. job.k, job.bars and job.may_give_up do not count. Throws MemoryBudgetError as the sink does.
void scan_range(const PackedBase& packed, const ScanJob& job, double limit, RangeSink& sink,
                ScanStats& stats, const Progress& progress);
// The same by measuring every pair, of all rows or of `subset`.
void scan_range_directly(const ScanJob& job, std::span<const std::uint32_t> subset, double limit,
                         RangeSink& sink, ScanStats& stats, const Progress& progress);

}  // namespace knear::detail
