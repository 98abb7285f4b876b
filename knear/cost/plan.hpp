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
//               tiles seen (scan/scan.hpp), k + 12 sqrt(k) + 60; where rows have intervals instead
//               of values 1.85 times as many. What earlier searches of the same rows saw takes
//               their place. To find those that passed counts as scoring.
//   seeds       the rows of the clusters nearest to a query, which are scored first
//   second      stage: all coordinates of the rows that a prefix does not rule out
//   rescoring   rows that a first pass leaves are scored again by 8-bit codes with a scale of their
//               own, if such were made;
//               some k + 6 sqrt(k) rows are measured in float64
//   packing     of the base, if asked for
//   a call      4 us
//
// What one of these costs is measured on one machine, in operations of its coefficient-wise rate,
// and carries over to others as that. It does not know of data that defeat the threshold.
//
// A search chooses by it: what to score first, whether to pack what a filter allows
// (knn/search/first_pass_choice.cpp), whether by a prefix and how wide a one
// (knn/prefix/prefix_search.cpp). The second half of this file has what single things cost one
// core, for what is decided while a scan runs.
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
  std::int64_t allowed = 0;      // rows that may be found; 0: all
  int threads = 0;               // 0: as many as were measured
  std::int64_t queries_per_pass = 0;  // queries scored per reading of the base; 0: as the scan does
  std::int64_t tile_rows = 0;         // 0: those of 512 KiB
  // Columns of a prefix that is scored instead of all, and rows a query that it does not rule out.
  std::int64_t prefix = 0;
  double second_rows = 0;
  double seed_rows = 0;  // rows of the nearest clusters
  // Rows a query that pass the threshold, and that are measured: 0 if nothing is known. And that
  // are scored again by codes of their own before.
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
  double multiply_adds = 0, bytes = 0, cops = 0;  // cops: of scores
  double rate = 0;                                // attainable, operations per second
};

// Part of the arithmetic peak that the tile kernels reach between two panels; of one query alone a
// part of that, since its sums wait for themselves: this at 128 columns, more by the fifth root.
inline constexpr double scan_efficiency = 0.90, single_efficiency = 0.28;
// Coefficient-wise operations of a score on a processor: thresholds in code units, the test.
inline constexpr double score_operations = 2.6;
// Of a panel and query of which rows pass: they are found; the part of it that it takes where there
// are few queries. One query looks at them anyway.
inline constexpr double found_operations = 2800, few_found = 0.55;
// And of a row that passes: its place in the list found, this times log2(1 + k); its interval.
inline constexpr double hit_operations = 820, interval_operations = 1700;
inline constexpr double interval_hits = 1.85;  // times as many rows pass where they have intervals
// With more than 32 neighbours: of a row that passes; of the looks at what has passed so far, and
// for each neighbour; and seconds for each neighbour that several parts of the base bring.
inline constexpr double many_hits_operations = 3500;
inline constexpr double looks_operations = 2.27e6, looks_neighbour_operations = 7100;
inline constexpr double merge_seconds = 65e-9;
// Of a row measured, and a column of it: it comes from anywhere, and where the base is larger than
// the last cache from memory.
inline constexpr double rescore_operations = 9700, rescore_column_operations = 49;
inline constexpr double far_operations = 19600;
// Of a row scored again by codes of its own, and a column of it.
inline constexpr double refine_operations = 12000, refine_column_operations = 13;
// The part of all these that it takes where there are few queries, and one: lists stay in cache.
inline constexpr double few_lists = 0.8, single_lists = 0.68;
// Of a query that is packed, and a column of it.
inline constexpr double query_operations = 6000, query_column_operations = 115;
// Of a row in the second stage, and a column of it, and of a row of the nearest clusters; of a
// coordinate of a prefix and a column; of a query that goes by a prefix, and a neighbour of it.
// Where rows have intervals the best k of the nearest clusters are measured besides.
inline constexpr double second_operations = 3300, second_column_operations = 0.6;
inline constexpr double seed_operations = 1650, seed_column_operations = 2.9;
inline constexpr double prefix_operations = 4, prefix_query_operations = 210e3;
inline constexpr double prefix_neighbour_operations = 12400;
// Of a row that is packed, and a column of it.
inline constexpr double packing_operations = 14600, packing_column_operations = 376;
// Of a row of which a prefix is made, and a column of it; of each time that a row's nearest cluster
// is looked up, and a cluster.
inline constexpr double making_operations = 270e3, making_column_operations = 950;
inline constexpr double nearest_operations = 90e3, nearest_cluster_operations = 115;
// Of a row that is measured in float64 in its order, and a column of it.
inline constexpr double direct_operations = 1880, direct_column_operations = 10.4;
// Seconds of a call.
inline constexpr double call_seconds = 4e-6;

// Peaks scale with shape.threads / peaks.threads. Throws InvalidArgument for a negative number,
// k < 1, dim < 1, or an op whose peak is not known (NaN).
ScanCost predict_scan(const ScanShape& shape, const MachinePeaks& peaks);

// The same of measuring every pair in float64, four queries at a time; op, whole, packing and what
// belongs to a prefix do not count. bytes_per_element: of the vectors.
ScanCost predict_direct(const ScanShape& shape, const MachinePeaks& peaks);

// Seconds of all threads of `peaks` to make the prefixes of a base and what belongs to them: 100
// rows a cluster look for theirs eight times, then all rows once.
double prefix_making_seconds(std::int64_t rows, std::int64_t dim, std::int64_t clusters,
                             const MachinePeaks& peaks);

// Seconds of one core: to score a pair, among many queries; to score a row whose prefix did not
// rule it out; to measure a row somewhere in memory, and one among all in their order.
double pair_seconds(ScanOp op, std::int64_t dim, const MachinePeaks& peaks);
double second_stage_seconds(std::int64_t dim, const MachinePeaks& peaks);
double measured_row_seconds(std::int64_t dim, const MachinePeaks& peaks);
double direct_row_seconds(std::int64_t dim, const MachinePeaks& peaks);
// What scoring rows again by codes of their own spares, where so many are left to be measured for k
// neighbours; and for all threads of `peaks` to make such codes of a base.
double spared_by_refining(double rows, double k, std::int64_t dim, const MachinePeaks& peaks);
double per_row_codes_seconds(std::int64_t rows, std::int64_t dim, const MachinePeaks& peaks);
// And of one row that passes the threshold of a query for k neighbours. None of these checks what
// it gets.
double hit_seconds(std::int64_t k, bool whole, const MachinePeaks& peaks);

}  // namespace knear
