// knear/scan/work_table.hpp -- the work of a scan as plain tables: sets of queries, and ranges of
// panels that each set is scored against.
//
//   WorkTable table = divide(packed, all_queries, job, stats);       // every query, every panel
//   for (const ScanTask& task : table.tasks) ...
//
// A flat base gives each set all of its panels, or a few splits of them where there are more
// threads than sets. Inverted lists (methods/list_scan.hpp) have a set for the queries of each list
// and the list's panels as its task, or a set for each query and its lists as one task, or a few.
// Queries of a set are packed once, whatever the number of its tasks.
//
// Ranges may be of several packed bases, the parts of one, where queries are coded alike for all:
// then a task goes over the panels of a list in one part after another.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// Queries [begin, end) of the table, and the tasks [first_task, last_task) of them.
struct QuerySet {
  std::int64_t begin, end;
  std::int64_t first_task, last_task;
  std::int64_t list = -1;  // the list around whose centre the queries are coded; -1: there is none

  std::int64_t count() const { return end - begin; }
  bool alone() const { return last_task == first_task + 1; }
};

// Panels [begin, end) of a base, or of a part of it. They are gone over tile by tile, a tile being
// as many panels as that says.
struct PanelRange {
  std::int64_t begin, end;
  std::int64_t part = 0;
};

// A packed base whose row 0 is row first_row of all.
struct BasePart {
  const PackedBase* packed;
  std::uint32_t first_row = 0;
  // The first list of each row of a part that holds rows in their second lists. A row does not
  // count for queries that probe its first list (ScanJob::probed). nullptr: every row counts.
  const std::uint32_t* first_lists = nullptr;
};

// A set against a range of panels, and then those [more_begin, more_end) of the table, one after
// another.
struct ScanTask {
  std::int64_t set;
  PanelRange panels;
  std::int64_t more_begin = 0, more_end = 0;
};

struct WorkTable {
  GroupSize group = group_12;         // queries of a set that are scored side by side
  std::vector<std::int64_t> queries;  // rows of the job's queries: set after set
  std::vector<QuerySet> sets;
  std::vector<ScanTask> tasks;   // set after set
  std::vector<PanelRange> more;  // of tasks that have several ranges
  // What ranges are of, for a scan whose accumulator knows parts; queries are coded alike for all
  // of them (Coding::shares_queries). Empty: all are of the base that is scanned.
  std::vector<BasePart> parts;

  BasePart part_of(const PanelRange& range, const PackedBase& scanned) const {
    return parts.empty() ? BasePart{&scanned} : parts[range.part];
  }
  std::span<const std::int64_t> queries_of(std::int64_t set) const {
    const QuerySet& of = sets[set];
    return std::span(queries).subspan(of.begin, of.count());
  }
  // Adds a set of the next `count` queries, with one task for each range of panels, or with fewer
  // tasks, each of several ranges. Requires 1 <= tasks <= panels.size().
  void add(std::int64_t count, const std::vector<PanelRange>& panels);
  void add(std::int64_t count, const std::vector<PanelRange>& panels, std::int64_t tasks);
  // Those of a task but the first.
  std::span<const PanelRange> more_of(const ScanTask& task) const {
    return std::span(more).subspan(task.more_begin, task.more_end - task.more_begin);
  }
  // Tiles of all tasks; of parts, by what these say.
  std::int64_t tiles(std::int64_t panels_per_tile) const;
};

// All panels of a base for these queries, in blocks of queries that keep a thread's buffers within
// megabytes; few queries split the base, so that every thread has a task. Notes in stats what was
// chosen.
WorkTable divide(const PackedBase& packed, std::vector<std::int64_t> queries, const ScanJob& job,
                 ScanStats& stats);

// How many queries are scored side by side.
GroupSize group_for(std::int64_t queries, const ScanJob& job);

// The most queries that one thread takes at a time, so that their buffers stay within megabytes.
std::int64_t queries_in_block(std::int64_t k);

// Queries by the first list that they probe [queries x lists]: those that come together share it.
std::vector<std::int64_t> by_first_list(MatrixView<Id> probes);

}  // namespace knear::detail
