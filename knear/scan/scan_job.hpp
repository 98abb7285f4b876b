// knear/scan/scan_job.hpp -- what a scan is asked to do, and what it counted while it did it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/row_filter.hpp"
#include "knear/core/row_set.hpp"
#include "knear/core/value_range.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/scan/packing/base_rows.hpp"
#include "knear/scan/packing/duplicates.hpp"

namespace knear::detail {

struct PerRowCodes;   // scan/packing/per_row_codes.hpp
class KeptQueries;    // scan/packing/kept_queries.hpp
class ProbedLists;    // scan/probed_lists.hpp
struct CodedQueries;  // scan/packing/coded_queries.hpp

// Which rows of a base may be found: all, or those that a filter allows and a set holds; row 0 of
// the base is row `offset` of the filter and `live_offset` of the set. Of joined bases, those of
// each part that may.
struct AllowedRows {
  const RowFilter* filter = nullptr;
  std::int64_t offset = 0;
  const RowSet* live = nullptr;
  std::int64_t live_offset = 0;
  const JoinedRows* joined = nullptr;
  const AllowedRows* of_parts = nullptr;  // [parts of joined], by the rows of each

  bool all() const { return !filter && !live && !joined; }
  bool operator()(std::int64_t row) const {
    if (joined) {
      const JoinedRows::Part& part = joined->part_of(row);
      return of_parts[&part - joined->parts().data()](row - part.first);
    }
    return (!filter || filter->allows(row + offset)) &&
           (!live || live->contains(row + live_offset));
  }
  // Whether the row, or one of the copies that it stands for, may be found. Nothing may be
  // concluded from a row of which this is false.
  bool any_of(std::uint32_t row, const Duplicates& copies) const {
    if ((*this)(row)) return true;
    if (!copies.any()) return false;
    const auto others = copies.others(row);
    return std::any_of(others.begin(), others.end(), *this);
  }
};

// Candidates of a query that may wait to be measured: usually, and where memory is limited. The
// more may wait, the seldomer they are cut down to what is still among the k, and the more memory
// they take.
constexpr std::int64_t usual_pending(std::int64_t k) { return 4 * k + 4096; }
constexpr std::int64_t least_pending(std::int64_t k) { return 4 * k + 64; }

// Fields without a default are required; a designated initialiser that leaves one out is a warning.
struct ScanJob {
  AnyMatrixView queries;
  BaseRows base;  // the rows that were packed; ids are their BaseRows::number()
  Metric metric;
  std::int64_t k;
  int threads;
  Isa isa;
  const MachinePeaks* peaks;  // by which the scan plans; all threads together

  ValueRange query_range = {};  // of all queries
  AllowedRows allowed = {};     // of the rows that were packed
  // The same by the slots of the panels to be scanned (TileArgs::allowed), if that was laid out:
  // then no other row comes out of a kernel.
  const std::uint32_t* allowed_slots = nullptr;
  // The lists that each query probes, for parts whose rows have a first list elsewhere
  // (BasePart::first_lists).
  const ProbedLists* probed = nullptr;
  // A key for each query that k rows found elsewhere do not exceed, so that only rows of this base
  // with at most that key are wanted; nullptr: none is known.
  const double* upper_bounds = nullptr;

  bool may_give_up = false;  // whether a query whose bound prunes too little may be handed back
  // Whether thresholds for many neighbours may be estimated from the tiles seen so far. A query
  // whose estimate proves wrong is scanned again without; the answer is the same.
  bool may_estimate = true;
  // Whether rows that are left may be scored again by per-row codes: where it is expected to pay,
  // or in any case. And those codes, in the order of rows and the space of the packed base.
  bool may_refine = true, must_refine = false;
  const PerRowCodes* per_row_codes = nullptr;
  // Packed queries of earlier scans of the same queries, to which this one adds its own.
  KeptQueries* kept = nullptr;
  // The queries, all coded for the packed base.
  const CodedQueries* coded = nullptr;
  // Whether candidates of many queries may be measured together, which takes memory.
  bool by_rows = true;

  std::int64_t pending = 0;  // candidates of a query kept before they are measured; 0: as usual
  std::int64_t most_pending() const { return pending > 0 ? pending : usual_pending(k); }
  // Queries scored side by side, and splits of the base for the same queries; 0: by their number.
  int group = 0, splits = 0;
};

struct ScanStats {
  // Sums over threads: the scan, of which packing queries, rows that are looked at first (a
  // prefix), the kernel, and what is done with the rows that it lets through; then measuring.
  double scan_seconds = 0, rescore_seconds = 0;
  double query_seconds = 0, seed_seconds = 0, score_seconds = 0, select_seconds = 0;
  std::int64_t hits = 0, survivors = 0;
  std::int64_t refined = 0;       // rows scored again by per-row codes
  int group = 0, splits = 0;      // of the last scan
  bool estimated = false;         // whether a threshold was estimated
  std::int64_t repeated = 0;      // queries whose estimated threshold was too good to be true
  std::int64_t buffer_bytes = 0;  // most memory that the threads' buffers took

  // Takes in what a task counted. Its buffers stand side by side with those of other tasks, of
  // which `at_once` run at a time.
  void add(const ScanStats& task, std::int64_t task_bytes = 0, std::int64_t at_once = 0) {
    scan_seconds += task.scan_seconds, rescore_seconds += task.rescore_seconds;
    query_seconds += task.query_seconds, seed_seconds += task.seed_seconds;
    score_seconds += task.score_seconds, select_seconds += task.select_seconds;
    estimated |= task.estimated;
    hits += task.hits, refined += task.refined, survivors += task.survivors;
    repeated += task.repeated;
    buffer_bytes = std::max(buffer_bytes, task_bytes * at_once);
  }
};

}  // namespace knear::detail
