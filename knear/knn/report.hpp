// knear/knn/report.hpp -- what a search tells of itself, beside its answer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "knear/core/metric.hpp"

namespace knear {

// What was planned and what happened. Seconds are wall-clock; sums over threads say so.
struct KnnReport {
  std::int64_t rows = 0, dim = 0, queries = 0, k = 0;
  // By the filter; without one, rows. -1: they were not counted, as few queries of codes look up
  // the rows that they probe alone.
  std::int64_t allowed_rows = 0;
  Metric metric = Metric::l2;
  std::string isa;         // level of the kernels
  std::string first_pass;  // the one that did most of the work: "integer", "int8", ...
  bool centred = false;    // the mean was subtracted before coding
  int threads = 0;
  double prepare_seconds = 0;  // packing the base; calibrating recall, where that came first
  double seconds = 0;          // the search itself, packing of queries included
  double scan_seconds = 0, rescore_seconds = 0;  // sums over threads
  // Parts of scan_seconds, sums over threads: queries packed; rows that are looked at first, where
  // there is a prefix; all others scored by the kernel; those that it let through sorted out.
  double query_seconds = 0, seed_seconds = 0, score_seconds = 0, select_seconds = 0;
  double hits_per_query = 0;       // rows that passed the threshold test
  double refined_per_query = 0;    // rows scored again before that, as TuningOverrides::refine
  double survivors_per_query = 0;  // rows measured in float64
  // What was expected of these before: as earlier searches by the same pass for about as many
  // neighbours had it, and for a prefix the rows that it does not rule out. 0: nothing was known.
  double expected_hits = 0, expected_refined = 0, expected_survivors = 0;
  // Queries whose first pass was changed while running; with a GPU, that the processor answered.
  std::int64_t fallback_queries = 0;
  // Scanned again: a threshold was guessed too well (scan/threshold_estimates.hpp), or the list of
  // a GPU was full.
  std::int64_t repeated_queries = 0;
  std::int64_t certified_queries = 0;  // queries whose answer is proven exact
  std::int64_t memory_bytes = 0;       // packed base, buffers and answer
  std::int64_t chunks = 0;             // of the base, packed one after the other
  double multiply_adds = 0;            // of the first pass
  std::int64_t prefix_columns = 0;     // coordinates of a prefix, if one was used
  std::int64_t clusters = 0;           // of its rows
  int group = 0, parts = 0;            // as TuningOverrides: of the last scan
  std::int64_t tile_rows = 0;          // of the largest tile; 0: every row was measured
  bool guessed = false;                // whether a threshold was
  bool joined = false;                 // a self-join scored each pair of rows once, for both
  double bytes_read = 0;               // of the packed base, once per pass over it
  std::string method = "exact";        // or "threshold-heap", "partial-reduce"
  // What the recall of the answer is, on average over queries: promised (recall_argument: "exact",
  // "analytic", by how rows fall into bins, or "calibrated", by queries whose answer was known;
  // with "none" nothing is promised, and both are 0) and, with no margin, expected.
  double promised_recall = 1, expected_recall = 1;
  std::string recall_argument = "exact";
  // partial-reduce: bins of rows, of which so many were kept; queries that had no certificate and
  // were searched again, exactly, for recall = 1.
  std::int64_t bins = 0, kept_per_bin = 0, repaired_queries = 0;
  // The queries that are not certified, ascending; none where a search of inverted lists or codes
  // was not asked to certify.
  std::vector<std::int64_t> uncertified;
  // threshold-heap: rows sampled, seconds of that, seconds of sorting (a sum over threads), rows
  // over the longest compressed row of a batch (Eq. 4 of the paper, mean over batches), and the
  // k-th distance over the threshold (Eq. 3; 0 for ip).
  std::int64_t samples = 0;
  double sampling_seconds = 0, sorting_seconds = 0, compression_ratio = 0, threshold_ratio = 0;
  // Inverted lists: how many there are; those that a query probed, and the rows in them, on
  // average; queries that found fewer than k rows. certified_queries are then those of which the
  // radii of the lists prove that no other list holds anything nearer, if that was asked for.
  std::int64_t lists = 0, short_queries = 0;
  double probes = 0, probed_rows = 0;
  double coarse_seconds = 0;  // putting the lists of all queries in order
  // A graph: how many nodes a search kept; probed_rows are the nodes that it scored.
  std::int64_t ef = 0;
  // Rows that are codes: how many sub-quantisers a code has, and the bits of each.
  std::int64_t code_parts = 0;
  int code_bits = 0;
  bool refined_by_codes = false;  // what measures them again is codes too
  std::string note;               // what the caller should know of the promise; empty: nothing
  std::string device = "cpu";     // where the base was scanned
  std::int64_t device_bytes = 0;  // memory of that device that was in use at most
  std::int64_t version = 0;       // of an index: the number of the state that was searched
  // Of an index in shards (index/sharded.hpp), 0 of others: how many of them were searched, between
  // how many replicas the queries were divided (of several GPUs too), and seconds of putting
  // together what these found.
  std::int64_t shards = 0, replicas = 0;
  double merge_seconds = 0;
  // Its shards that are missing, if it was opened with allow_partial, and the rows that these had.
  std::int64_t unsearched_rows = 0;
  std::vector<std::string> unsearched_shards;
};

}  // namespace knear
