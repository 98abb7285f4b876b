// knear/scan/nearest_state.hpp -- what is known of the k nearest of some queries while tasks go
// over a base: the splits of a flat base, or the lists that a query probes, one after another or at
// once.
//
//   NearestState state(queries, packed, job);
//   scan_tasks(packed, job, table, state, stats, progress);       // as often as wanted
//   finish_nearest(packed, job, which, state, out, stats);        // measures what is left, once
//
// A task of scan_tasks() starts from the thresholds that tasks before it have left here, and leaves
// its candidates here; most are measured only in the end. Rows are those of one base. The
// rows of another base start from the keys that this one has given (ScanJob::upper_bounds), and
// answers merge as ExactNeighbors.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"
#include "knear/scan/work_table.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {

class NearestState {
 public:
  // For the queries of a job, all of them.
  NearestState(std::int64_t queries, const PackedBase& packed, const ScanJob& job);

  // [queries]. Certified codes have candidates and what their g means; whole numbers have the best
  // rows, and the key that the k-th is estimated not to exceed.
  std::vector<QueryCandidates> candidates;
  std::vector<KeyScale> scales;
  std::vector<TopK> best;
  std::vector<double> estimates;
  std::vector<char> given_up;  // whether the query's bound prunes too little (may_give_up)
  // [queries]: what rows have to reach, for tasks that begin: the threshold of the candidates, or
  // the bound of the best rows. It may be read at any time, and be behind.
  std::vector<std::atomic<double>> limits;

  // Calls f(q, number) for those q of 0, ..., count - 1 that are wanted(q), where number =
  // number_of(q) is that of a query whose candidates, scale, best rows and estimate no other task
  // touches meanwhile. Numbers that are near each other follow each other, as a work table has
  // them.
  template <class Wanted, class NumberOf, class F>
  void each_alone(std::int64_t count, Wanted wanted, NumberOf number_of, F f) {
    std::unique_lock<std::mutex> lock;
    for (std::int64_t q = 0; q < count; ++q) {
      if (!wanted(q)) continue;
      const std::size_t number = number_of(q);
      std::mutex& mutex = locks_[number * locks_.size() / given_up.size()];
      if (lock.mutex() != &mutex) {
        if (lock) lock.unlock();
        lock = std::unique_lock(mutex);
      }
      if (q + ahead < count && !candidates.empty() && wanted(q + ahead))
        __builtin_prefetch(&candidates[number_of(q + ahead)]);
      f(q, number);
    }
  }

 private:
  static constexpr std::int64_t ahead = 8;

  std::array<std::mutex, 64> locks_;  // of equal parts of the queries
};

// Scores the tasks of a table. Any number of tasks may share a query.
void scan_tasks(const PackedBase& packed, const ScanJob& job, const WorkTable& table,
                NearestState& state, ScanStats& stats, const Progress& progress);

// Measures what is left of queries `which`, writes their rows of `out` [queries x k], and uses
// their state up. Returns the queries whose threshold was estimated too good to be true, ascending:
// their answer may lack rows.
std::vector<std::int64_t> finish_nearest(const PackedBase& packed, const ScanJob& job,
                                         const std::vector<std::int64_t>& which,
                                         NearestState& state, ExactNeighbors& out,
                                         ScanStats& stats);

// The queries of a scan that are left to others: those handed back since their bounds prune too
// little, and those to scan again since their estimated thresholds proved wrong, ascending.
struct LeftByScan {
  std::vector<std::int64_t> given_up, mispredicted;
};

// Does both for the queries of a table, once. A task that has its queries alone finishes them
// itself. Splits of a base run at the same time, so that none starts from another's thresholds.
LeftByScan scan_and_finish(const PackedBase& packed, const ScanJob& job, const WorkTable& table,
                           ExactNeighbors& out, ScanStats& stats, const Progress& progress);

}  // namespace knear::detail
