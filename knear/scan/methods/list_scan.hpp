// knear/scan/methods/list_scan.hpp -- the k nearest among the rows of a few lists for each query:
// what an index of inverted lists asks once it knows which lists are near.
//
//   ScoredLists scan(lists, job, probes.view(), stats, progress);
//   scan.finish(nullptr, out, stats);
//
// Thresholds travel from list to list. First every query goes to the list that it names first, and
// starts the others from the k-th best of it. Many queries go list by list: those that probe the
// same list are scored together, as by a scan of a flat base. Few go query by query: each is coded
// once for all of its lists. What is left is measured once, at the end. The order of work changes
// no bit of the answer.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/methods/range_scan.hpp"
#include "knear/scan/packing/packed_lists.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

class FilteredLists;  // filtered_lists.hpp
class NearestState;   // knear/scan/nearest_state.hpp

// Lists of which each is the rows of several packed lists with its number, one part after another:
// row 0 of parts[i] is row first_rows[i] of job.base. Rows may be in a second list too: those lists
// are parts of their own, over the same rows of job.base.
struct ListParts {
  ListParts() = default;
  ListParts(const PackedLists& lists) { add(lists); }  // implicit: of one part

  // Requires that queries are coded alike for all parts (Coding::shares_queries), that they go
  // together with whole numbers of the range of all (integer_fits), as many lists in each, and
  // fewer rows than PackedBase::no_row in all.
  void add(const PackedLists& lists);
  // Adds the second lists of the rows that were added last, or of all rows of job.base if none
  // were. first_lists [rows]: the first list of each row; a query that probes both of a row's lists
  // finds it in its first.
  void add_second(const PackedLists& lists, std::span<const std::uint32_t> first_lists);
  // Whether these are one part, each row of which counts wherever it is found.
  bool are_plain() const { return parts.size() == 1 && !repeat_rows(); }
  bool repeat_rows() const { return repeats; }
  // That stands for all where they do not differ.
  const PackedLists& first() const { return *parts.front(); }
  std::int64_t lists() const { return first().lists(); }
  // Panels of a list that are scanned, in all parts.
  std::int64_t panels(std::int64_t list) const;

  std::vector<const PackedLists*> parts;
  std::vector<std::uint32_t> first_rows;
  std::vector<const std::uint32_t*> first_lists;  // of parts of second lists; else nullptr
  std::uint32_t next_row = 0;                     // behind the rows that were added
  bool repeats = false;                           // whether there are second lists
  // For each part the runs of panels with copies of one row (CopyRuns), and how many panels of each
  // run are scanned. Empty: all are.
  std::vector<const std::vector<CopyRuns::Run>*> copies = {};
  std::int64_t copied_panels = 0;
};

// A search in two steps. Where a base has several parts, the rows of all are scored before those of
// any are measured, so that only what may be among the k nearest of all is.
//
//   ScoredLists first(lists, job, probes, stats, progress), second(...);
//   first.add_keys(q, keys), second.add_keys(q, keys);   // the k-th of them is a bound
//   first.finish(bounds, out, stats);
//
// Parts that are joined are scored and measured as one instead: a query that probes a list is
// packed once for the rows of all, and has one threshold.
class ScoredLists {
 public:
  // Scores. probes [queries x lists at most]: numbers of lists, none twice, nearest first; no_id
  // for none, behind the others. Lists, what the job refers to but its bounds, and probes stay
  // until the end. Joined parts are those that job.base joins, in the same order (JoinedRows); rows
  // of theirs that pass are looked up in job.allowed, by which nothing is laid out.
  ScoredLists(ListParts lists, const ScanJob& job, MatrixView<Id> probes, ScanStats& stats,
              const Progress& progress);
  ~ScoredLists();
  ScoredLists(const ScoredLists&) = delete;
  ScoredLists& operator=(const ScoredLists&) = delete;

  // How many places of panels were scored, by all queries: with a filter fewer than the lists have
  // (filtered_lists.hpp), and fewer of copies.
  std::int64_t scored() const { return scored_; }
  // Adds keys of which each is not exceeded by another row that waits: k of them at least, or one
  // for each row that does.
  void add_keys(std::int64_t query, std::vector<double>& keys) const;
  // Measures what waits, once, and fills all rows of `out` [queries x k]: the exact k nearest of
  // the rows of the lists that a query probes; fewer rows leave places at no_id. Ids are rows of
  // job.base, those that were packed. bounds [queries]: keys that k rows do not exceed, here or
  // elsewhere, so that rows beyond need not be in `out`; nullptr: none are known.
  void finish(const double* bounds, ExactNeighbors& out, ScanStats& stats);

 private:
  ListParts lists_;
  ScanJob job_;
  MatrixView<Id> probes_;  // those that are scored
  std::unique_ptr<NearestState> state_;
  std::unique_ptr<ProbedLists> probed_;      // nullptr: rows are in one list each
  std::unique_ptr<FilteredLists> filtered_;  // nullptr: nothing is laid out by lists
  std::int64_t scored_ = 0;
};

// Gives the same answer by measuring every row of the lists: for few rows.
void scan_lists_directly(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                         ExactNeighbors& out, ScanStats& stats, const Progress& progress);

// Gives to the sink every row of the lists whose key is at most `limit` from the query. Requires
// one part, which may be second lists. Throws as scan_range() does; returns what was scored, as
// ScoredLists does.
std::int64_t scan_lists_range(const ListParts& lists, const ScanJob& job, MatrixView<Id> probes,
                              double limit, RangeSink& sink, ScanStats& stats,
                              const Progress& progress);
void scan_lists_range_directly(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                               double limit, RangeSink& sink, ScanStats& stats,
                               const Progress& progress);

}  // namespace knear::detail
