// knear/scan/nearest_state.hpp -- what is known of the k nearest of some queries while tasks go
// over a base: the splits of a flat base, or the lists that a query probes, one after another or at
// once.
//
//   NearestState state(queries, packed, job);
//   scan_tasks(packed, job, table, state, stats, progress);       // as often as wanted
//   finish_nearest(packed, job, which, state, out, stats);        // measures what is left, once
//
// A task of scan_tasks() starts from the thresholds that tasks before it have left here, and leaves
// its candidates here; most are measured only in the end. (The splits of one scan() leave theirs
// here too, but start from nothing: they run at the same time.) Rows are those of one base. The
// rows of another base start from the keys that this one has given (ScanJob::upper_bounds), and
// answers merge as ExactNeighbors.
#pragma once
#include <cstdint>
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

struct NearestState {
  // For the queries of a job, all of them.
  NearestState(std::int64_t queries, const PackedBase& packed, const ScanJob& job);

  // [queries]. Certified codes have candidates and what their g means; whole numbers have the best
  // rows, and the key that the k-th is estimated not to exceed.
  std::vector<QueryCandidates> candidates;
  std::vector<KeyScale> scales;
  std::vector<TopK> best;
  std::vector<double> estimates;
  std::vector<char> given_up;  // whether the query's bound prunes too little (may_give_up)
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

}  // namespace knear::detail
