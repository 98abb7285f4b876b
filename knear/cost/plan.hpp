// knear/cost/plan.hpp -- how long an exact scan will take, and what it will wait for.
//
//   ScanCost cost = predict_scan({.rows = 60000, .dim = 784, .queries = 10000, .k = 10,
//                                 .bytes_per_element = 1, .op = ScanOp::int8}, peaks);
//   cost.seconds, cost.limit                              // 1.3 and "int8 multiply-adds", say
//
// The model. Three resources, each with the work that it must do at least:
//
//   multiply-adds   rows * queries * dim, at 2 operations each, at `scan_efficiency` of the peak
//   memory          rows * dim * bytes_per_element once per block of queries_per_pass queries, plus
//                   dim floats for each row measured in float64
//   selection       two coefficient-wise operations per score (add a norm, compare with the
//                   threshold), and per query k (1 + ln(rows / k)) rows that pass the threshold
//                   while it tightens (rows in random order), `hit_operations` each, and the
//                   rows then measured in float64, dim operations of 1/4 the fp32 rate each
//
// Multiply-adds and selection share the vector pipes, so their times add; memory runs beside them.
// seconds = max(multiply-adds + selection, memory). It does not know of caches that hold the whole
// base (too slow a guess for memory then), of packing, or of data that defeat the threshold.
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
  double bytes_per_element = 4;         // of the packed base
  ScanOp op = ScanOp::fp32;             // of the first pass
  int threads = 0;                      // 0: as many as were measured
  std::int64_t queries_per_pass = 256;  // queries scored per reading of the base
};

struct ScanCost {
  double seconds = 0;
  std::string limit;  // the largest of the three: "int8 multiply-adds", "memory", "selection"
  double multiply_add_seconds = 0, memory_seconds = 0, selection_seconds = 0;
  double multiply_adds = 0, bytes = 0, cops = 0;
};

// Part of the arithmetic peak that the tile kernels reach (83 to 90 % in the prototypes).
inline constexpr double scan_efficiency = 0.85;
// Coefficient-wise operations (one lane each) that appending one candidate to a query's buffer and
// pruning it later cost; about 10 ns of one thread.
inline constexpr double hit_operations = 400;

// Peaks scale with shape.threads / peaks.threads. Throws InvalidArgument for a negative number,
// k < 1, dim < 1, queries_per_pass < 1, or an op whose peak is not known (NaN).
ScanCost predict_scan(const ScanShape& shape, const MachinePeaks& peaks);

}  // namespace knear
