// knear/cost/plan.hpp -- how long an exact scan will take, and what it will wait for.
//
//   ScanCost cost = predict_scan({.rows = 60000, .dim = 784, .queries = 10000, .k = 10,
//                                 .bytes_per_element = 1, .op = ScanOp::int8}, peaks);
//   cost.seconds, cost.limit                              // 1.3 and "int8 multiply-adds", say
//
// The model: Eq. 5 of Chern et al. 2022, time = work over attainable rate, plus the times of
// everything else. Work is 2 rows queries dim operations. The rate is the smallest of the three of
// Eq. 6 (cost/roofline.hpp), except that on a processor, where multiply-adds and coefficient-wise
// operations share the vector pipes, the times of these two add up. The other times are
//
//   queries     packing them
//   selection   k (1 + ln(rows / k)) rows per query pass the threshold while it tightens, as the
//               tiles are samples of the base; for many neighbours, where it is estimated from the
//               tiles seen (scan/threshold_estimates.hpp), k + 12 sqrt(k) + 60; where rows have
//               intervals instead of values, 1.85 times as many. Counts from earlier searches of
//               the same rows replace these. Finding the rows that passed counts as scoring.
//   clusters    scoring the rows of those nearest to a query first
//   2nd stage   scoring all coordinates of the rows that a prefix does not rule out
//   rescoring   rows that a first pass leaves are scored again by per-row 8-bit codes, if there
//               are any; some k + 6 sqrt(k) rows are measured in float64
//   packing     the base, if asked for
//   a call      4 us
//
// Each cost was measured on one machine, in operations of its coefficient-wise rate, and is used on
// others in these units (cost/scan_cost_model.hpp; `knear roofline --model` prints them). The model
// does not know of data that defeat the threshold.
//
// A search chooses by this model what to score first, whether to pack the rows that a filter allows
// (knn/search/first_pass_choice.cpp), whether to use a prefix and how wide a one
// (knn/search/prefix_search.cpp). The second half of this file gives what single operations cost
// one core, for decisions taken while a scan runs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "knear/cost/peaks.hpp"

namespace knear {

enum class ScanOp : std::uint8_t { fp32, bf16, int16, int8 };

// "fp32", "bf16", "int16", "int8".
std::string_view name_of(ScanOp op);

struct ScanShape {
  std::int64_t rows = 0, dim = 0, queries = 0, k = 0;
  double bytes_per_element = 4;       // those of the packed base
  ScanOp op = ScanOp::fp32;           // of the first pass
  bool whole = false;                 // scores are exact: no intervals, no rescoring
  bool packing = false;               // whether the time includes packing the base
  std::int64_t allowed = 0;           // rows that may be found; 0: all
  int threads = 0;                    // 0: as many as were measured
  std::int64_t queries_per_pass = 0;  // queries scored per reading of the base; 0: as the scan does
  std::int64_t tile_rows = 0;         // 0: those of 512 KiB
  // Columns of a prefix that is scored instead of all, and rows per query that it does not rule
  // out.
  std::int64_t prefix = 0;
  double second_rows = 0;
  double seed_rows = 0;  // rows of the nearest clusters
  // Rows per query that pass the threshold, that are measured, and that are scored by per-row codes
  // before; 0 where not known.
  double expected_hits = 0, expected_survivors = 0, expected_refined = 0;
};

struct ScanCost {
  double seconds = 0;
  // The largest of "int8 multiply-adds" (by type), "memory", "coefficient-wise operations",
  // "queries", "selection", "nearest clusters", "second stage", "rescoring", "packing".
  std::string limit;
  double query_seconds = 0, seed_seconds = 0, second_stage_seconds = 0;
  double scoring_seconds = 0;  // the larger of computing and reading
  double multiply_add_seconds = 0, memory_seconds = 0, coefficient_wise_seconds = 0;
  double selection_seconds = 0, rescore_seconds = 0, packing_seconds = 0;
  double multiply_adds = 0, bytes = 0, cops = 0;  // cops: those of scoring
  double rate = 0;                                // attainable, operations per second
};

// Peaks scale with shape.threads / peaks.threads. Throws InvalidArgument for a negative number,
// k < 1, dim < 1, or an op whose peak is not known (NaN).
ScanCost predict_scan(const ScanShape& shape, const MachinePeaks& peaks);

// As predict_scan, for measuring every pair in float64, four queries at a time. It ignores op,
// whole, packing and the fields of a prefix. bytes_per_element is that of the vectors.
ScanCost predict_direct(const ScanShape& shape, const MachinePeaks& peaks);

// Seconds of all threads of `peaks` to make the prefixes of a base and their clusters: 50 rows per
// cluster look up their cluster four times, then all rows once.
double prefix_making_seconds(std::int64_t rows, std::int64_t dim, std::int64_t clusters,
                             const MachinePeaks& peaks);

// Seconds of one core: to score a pair, among many queries; to score a row whose prefix did not
// rule it out; to measure a row somewhere in memory, and one of all rows in storage order.
double pair_seconds(ScanOp op, std::int64_t dim, const MachinePeaks& peaks);
double second_stage_seconds(std::int64_t dim, const MachinePeaks& peaks);
double measured_row_seconds(std::int64_t dim, const MachinePeaks& peaks);
double direct_row_seconds(std::int64_t dim, const MachinePeaks& peaks);
// Seconds of one core that scoring rows again by per-row codes saves, where so many are left to be
// measured for k neighbours; and seconds of all threads of `peaks` to make such codes of a base.
double spared_by_refining(double rows, double k, std::int64_t dim, const MachinePeaks& peaks);
double per_row_codes_seconds(std::int64_t rows, std::int64_t dim, const MachinePeaks& peaks);
// Seconds of one core for one row that passes the threshold of a query for k neighbours. None of
// these functions checks its arguments.
double hit_seconds(std::int64_t k, bool whole, const MachinePeaks& peaks);
// Whether the scores of a query in 8 bits with all of so few rows are looked at together, which
// takes less than letting those through that a threshold does not stop which improves from row to
// row: 2,048 rows for any k but 1, up to 16,384 if at least one in 200 is wanted. Their codes and
// their scores with a group of queries have to be in the second-level cache.
bool looks_at_all_scores(std::int64_t rows, std::int64_t dim, std::int64_t k);

}  // namespace knear
