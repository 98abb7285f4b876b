// knear/knn/report.hpp -- what a search tells of itself, beside its answer: one part for each layer
// that knows something, which writes it once.
//
//   KnnReport report;
//   index.search(queries, 10, {.method = {.recall = 0.95}}, &report);
//   report.promise.promised_recall, report.lists.probes, report.scan.survivors_per_query
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/metric.hpp"

namespace knear {

// How rows were scored. Seconds are sums over threads.
struct ScanReport {
  std::string isa = {};         // level of the kernels
  std::string first_pass = {};  // the one that did most of the work: "integer", "int8", ...
  bool centred = false;         // the mean was subtracted before coding
  double scan_seconds = 0, rescore_seconds = 0;
  // Parts of scan_seconds: queries packed; rows that are looked at first, where there is a prefix;
  // all others scored by the kernel; those that it let through sorted out.
  double query_seconds = 0, seed_seconds = 0, score_seconds = 0, select_seconds = 0;
  double hits_per_query = 0;       // rows that passed the threshold test
  double refined_per_query = 0;    // rows scored again before that, as TuningOverrides::refine
  double survivors_per_query = 0;  // rows measured in float64
  // Rows in the lists that a query probed, nodes of a graph that a walk scored; 0 of other scans.
  double probed_rows = 0;
  // What was expected of these before: as earlier searches by the same pass for about as many
  // neighbours had it, and for a prefix the rows that it does not rule out. 0: nothing was known.
  double expected_hits = 0, expected_refined = 0, expected_survivors = 0;
  // Queries whose first pass was changed while running; with a GPU, that the processor answered.
  std::int64_t fallback_queries = 0;
  // Scanned again: a threshold was guessed too well (scan/threshold_estimates.hpp), or the list of
  // a GPU was full.
  std::int64_t repeated_queries = 0;
  std::int64_t chunks = 0;          // of the base, packed one after the other
  double multiply_adds = 0;         // of the first pass
  double bytes_read = 0;            // of the packed base, once per pass over it
  std::int64_t prefix_columns = 0;  // coordinates of a prefix, if one was used
  std::int64_t clusters = 0;        // of its rows
  std::int64_t leaves = 0;          // of the tree of few columns or far clusters, if used
  int group = 0, parts = 0;         // as TuningOverrides: of the last scan
  std::int64_t tile_rows = 0;       // of the largest tile; 0: every row was measured
  bool guessed = false;             // whether a threshold was
  bool joined = false;              // a self-join scored each pair of rows once, for both
};

// The proof or the promise of the answer.
struct PromiseReport {
  // The mean recall of the answer. promised_recall: what this many queries fall below once in 1,000
  // batches; by calibration 0 of a single one. expected_recall: the same without a
  // margin, the mean over all such batches. recall_argument: "exact", "analytic" (by how rows fall
  // into bins) or "calibrated" (by queries whose answer was known); with "none" nothing is
  // promised, and both are 0.
  double promised_recall = 1, expected_recall = 1;
  std::string recall_argument = "exact";
  // Number of audited queries that the calibration rests on (Index::set_audit()); 0 where it rests
  // on others.
  std::int64_t audited_queries = 0;
  // Queries whose answer is proven exact. For lists the radii prove it, if that was asked for: no
  // other list holds anything nearer.
  std::int64_t certified_queries = 0;
  // The others, ascending; none where a search of inverted lists or codes was not asked to certify.
  std::vector<std::int64_t> uncertified = {};
};

// Method threshold-heap.
struct ThresholdHeapReport {
  std::int64_t samples = 0;  // rows
  double sampling_seconds = 0;
  double sorting_seconds = 0;  // a sum over threads
  // Rows over the longest compressed row of a batch (Eq. 4 of the paper, mean over batches), and
  // the k-th distance over the threshold (Eq. 3; 0 for ip).
  double compression_ratio = 0, threshold_ratio = 0;
};

// Method partial-reduce: bins, rows kept of each, and queries that had no certificate and were
// searched again, exactly, for recall = 1.
struct PartialReduceReport {
  std::int64_t bins = 0, kept_per_bin = 0, repaired_queries = 0;
};

// Inverted lists.
struct ListReport {
  std::int64_t count = 0;     // 0: no lists
  double probes = 0;          // lists that a query probed, on average
  double coarse_seconds = 0;  // putting the lists of all queries in order
};

// A graph over the rows.
struct GraphReport {
  std::int64_t ef = 0;  // nodes that a search kept
};

// Rows that are codes.
struct CodeReport {
  std::int64_t parts = 0;         // sub-quantisers of a code; 0: rows are vectors
  int bits = 0;                   // of each
  bool refined_by_codes = false;  // what measures them again is codes too
};

// The device that scanned the base.
struct DeviceReport {
  std::string name = "cpu";
  std::int64_t bytes = 0;  // memory of that device that was in use at most
};

// An index in shards (index/index.hpp).
struct ShardReport {
  std::int64_t count = 0;     // shards that were searched; 0: the index is not in shards
  std::int64_t replicas = 0;  // between which queries were divided, of several GPUs too
  double merge_seconds = 0;   // putting together what these found
  // Shards that are missing, if the index was opened with allow_partial, and their rows.
  std::int64_t unsearched_rows = 0;
  std::vector<std::string> unsearched_shards = {};
};

// The plan of a search and what happened. Seconds are wall-clock.
struct KnnReport {
  // Rows and time, which the call writes that was made.
  std::int64_t rows = 0, dim = 0;
  std::int64_t version = 0;  // of an index: the number of the state that was searched
  double seconds = 0;        // of the call, less prepare_seconds

  // The request.
  std::int64_t queries = 0, k = 0;  // k is 0 of a range search
  // By the filter; without one, rows. -1: they were not counted, as few queries of codes look up
  // the rows that they probe alone.
  std::int64_t allowed_rows = 0;
  Metric metric = Metric::l2;
  int threads = 0;

  // The work.
  std::string method = "exact";    // "threshold-heap", "partial-reduce", "inverted-lists", ...
  double prepare_seconds = 0;      // packing the base; calibrating recall, where that came first
  std::int64_t memory_bytes = 0;   // packed base, buffers and answer
  std::int64_t short_queries = 0;  // of lists, codes and graphs: that found fewer than k rows
  std::string note = {};           // what the caller should know of the promise; empty: nothing

  ScanReport scan;
  PromiseReport promise;
  ThresholdHeapReport threshold_heap;
  PartialReduceReport partial_reduce;
  ListReport lists;
  GraphReport graph;
  CodeReport codes;
  DeviceReport device;
  ShardReport shards;
};

}  // namespace knear
