// knear/cost/plan.hpp -- how long an exact scan will take, and what it will wait for.
//
//   ScanCost cost = predict_scan({.rows = 60000, .dim = 784, .queries = 10000, .k = 10,
//                                 .bytes_per_element = 1, .op = ScanOp::int8}, peaks);
//   cost.seconds, cost.limit                              // 1.3 and "int8 multiply-adds", say
//
// The model: Eq. 5 of Chern et al. 2022, time = work over attainable rate, and what is done
// besides. Work is 2 rows queries dim operations. The rate is the smallest of the three of Eq. 6
// (cost/roofline.hpp), but that on a processor, where multiply-adds and coefficient-wise operations
// share the vector pipes, the times of these two add up. Besides come
//
//   queries     are packed
//   selection   k (1 + ln(rows / k)) rows a query pass the threshold while it tightens, as the
//               tiles are samples of the base; for many neighbours, where it is guessed from the
//               tiles seen (scan/scan.hpp), k + 12 sqrt(k) + 60; more where the rows have intervals
//               instead of values. What earlier searches of the same rows saw takes their place.
//   second      stage: all coordinates of the rows that a prefix does not rule out
//   rescoring   some k + 6 sqrt(k) rows are measured in float64
//   packing     of the base, if asked for
//   a call      8 us, or 50 and as much again until all threads have begun
//
// What one of these costs is measured on one machine, in lanes of its coefficient-wise or fp32
// rate, and carries over to others as that. It does not know of data that defeat the threshold.
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
  double bytes_per_element = 4;  // of the packed base
  ScanOp op = ScanOp::fp32;      // of the first pass
  bool whole = false;            // scores are exact: nothing has an interval or is measured again
  bool packing = false;          // of the base, within the time
  int threads = 0;               // 0: as many as were measured
  std::int64_t queries_per_pass = 0;  // queries scored per reading of the base; 0: as the scan does
  // Columns of a prefix that is scored instead of all, and rows a query that it does not rule out.
  std::int64_t prefix = 0;
  double second_rows = 0;
  // Rows a query that pass the threshold, and that are measured: 0 if nothing is known.
  double expected_hits = 0, expected_survivors = 0;
};

struct ScanCost {
  double seconds = 0;
  // The largest of "int8 multiply-adds" (by type), "memory", "coefficient-wise operations",
  // "queries", "selection", "second stage", "rescoring", "packing".
  std::string limit;
  double query_seconds = 0, second_stage_seconds = 0;
  double scoring_seconds = 0;  // the larger of computing and reading
  double multiply_add_seconds = 0, memory_seconds = 0, coefficient_wise_seconds = 0;
  double selection_seconds = 0, rescore_seconds = 0, packing_seconds = 0;
  double multiply_adds = 0, bytes = 0, cops = 0;  // cops: of scores
  double rate = 0;                                // attainable, operations per second
};

// Part of the arithmetic peak that the tile kernels reach between two panels; of one query alone a
// fifth of that, since its sums wait for themselves.
inline constexpr double scan_efficiency = 0.90, single_efficiency = 0.2;
// And of the bytes per second of a cache, where one holds the base.
inline constexpr double cache_efficiency = 0.6;
// Coefficient-wise operations of a score on a processor: thresholds in code units, the test. One
// query has all that is done per panel for itself.
inline constexpr double score_operations = 3.6, single_score_operations = 26;
// And of a row that passes: found in its block, appended, the list cut down later; some 19 ns.
// Where rows have intervals 1.85 times as many pass.
inline constexpr double hit_operations = 3840, interval_hits = 1.85;
// With more than 32 neighbours: of a row that passes, whole or with an interval; of each neighbour
// that is sorted in the end; of the looks at what has passed so far, twice that where there are
// intervals; and seconds for each neighbour that several parts of the base bring.
inline constexpr double many_hits_operations = 3060, many_intervals_operations = 5100;
inline constexpr double sort_operations = 21400, looks_operations = 1.2e6;
inline constexpr double merge_seconds = 80e-9;
// Of a row measured, and a column of it: it comes from anywhere in memory.
inline constexpr double rescore_operations = 31000, rescore_column_operations = 59;
// Of a query that is packed, and a column of it.
inline constexpr double query_operations = 6000, query_column_operations = 115;
// Of a row in the second stage, and a column of it; of a coordinate of a prefix and a column.
inline constexpr double second_operations = 3300, second_column_operations = 0.6;
inline constexpr double prefix_operations = 4;
// Seconds of a call: of up to four queries, and of more; besides, other threads are waited for.
inline constexpr double few_call_seconds = 8e-6, call_seconds = 50e-6, wake_seconds = 50e-6;

// Peaks scale with shape.threads / peaks.threads. Throws InvalidArgument for a negative number,
// k < 1, dim < 1, or an op whose peak is not known (NaN).
ScanCost predict_scan(const ScanShape& shape, const MachinePeaks& peaks);

}  // namespace knear
