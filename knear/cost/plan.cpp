#include "knear/cost/plan.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cost/machine_rates.hpp"
#include "knear/cost/scan_cost_model.hpp"

namespace knear {
namespace {

constexpr ScanCostModel model;

double peak_of(ScanOp op, const MachinePeaks& peaks) {
  switch (op) {
    case ScanOp::fp32:
      return peaks.fp32_flops;
    case ScanOp::bf16:
      return peaks.bf16_flops;
    case ScanOp::int16:
      return peaks.int16_ops;
    case ScanOp::int8:
      return peaks.int8_ops;
  }
  return peaks.fp32_flops;
}

void check(const ScanShape& shape, const MachinePeaks& peaks) {
  if (shape.rows < 0) throw InvalidArgument("rows must not be negative, but is {}", shape.rows);
  if (shape.queries < 0)
    throw InvalidArgument("queries must not be negative, but is {}", shape.queries);
  if (shape.dim < 1) throw InvalidArgument("dim must be at least 1, but is {}", shape.dim);
  if (shape.k < 1) throw InvalidArgument("k must be at least 1, but is {}", shape.k);
  if (shape.threads < 0)
    throw InvalidArgument("threads must not be negative, but is {}", shape.threads);
  if (shape.queries_per_pass < 0)
    throw InvalidArgument("queries_per_pass must not be negative, but is {}",
                          shape.queries_per_pass);
  if (!(shape.bytes_per_element >= 0))
    throw InvalidArgument("bytes_per_element must not be negative, but is {}",
                          shape.bytes_per_element);
  for (double peak : {peak_of(shape.op, peaks), peaks.fp32_flops, peaks.cop_per_second,
                      peaks.memory_bytes_per_second})
    if (!(peak > 0))
      throw InvalidArgument("peaks hold no positive rate for {} at level {}, but {}",
                            name_of(shape.op), name_of(peaks.isa), peak);
  if (peaks.threads < 1)
    throw InvalidArgument("peaks must be of at least 1 thread, but are of {}", peaks.threads);
}

// Whether thresholds are estimated from the tiles seen so far (scan/tile_loop.hpp).
bool estimates_thresholds(const ScanShape& shape) {
  const double row_bytes =
      double(shape.prefix > 0 ? shape.prefix : shape.dim) * shape.bytes_per_element;
  const double tile_rows = shape.tile_rows > 0
                               ? double(shape.tile_rows)
                               : std::clamp(512 * 1024 / std::max(row_bytes, 1.0), 32., 4096.);
  return shape.k > 32 && double(shape.rows) >= 16 * tile_rows && 4 * shape.k <= shape.rows;
}

// The number of rows per query that pass the threshold, where every one of `splits` of the base
// fills its own lists.
double usual_hits(const ScanShape& shape, int splits) {
  const double allowed = double(shape.allowed > 0 ? shape.allowed : shape.rows);
  const double k = std::min(double(shape.k), allowed);
  double hits;
  if (estimates_thresholds(shape)) {
    hits = k + 12 * std::sqrt(k) + 60;
  } else {
    const double kept = std::min(k, allowed / splits);
    hits = splits * kept * (1 + std::log(allowed / splits / kept));
  }
  if (!shape.whole) hits *= model.interval_hits;
  // Forbidden rows pass as others do.
  return std::min(allowed, hits) * double(shape.rows) / allowed;
}

double core_operations(const MachinePeaks& peaks) { return peaks.cop_per_second / peaks.threads; }

}  // namespace

std::string_view name_of(ScanOp op) {
  switch (op) {
    case ScanOp::fp32:
      return "fp32";
    case ScanOp::bf16:
      return "bf16";
    case ScanOp::int16:
      return "int16";
    case ScanOp::int8:
      return "int8";
  }
  return "?";
}

ScanCost predict_scan(const ScanShape& shape, const MachinePeaks& peaks) {
  check(shape, peaks);
  const double rows = double(shape.rows), queries = double(shape.queries);
  const double all_columns = double(shape.dim);
  const double dim = shape.prefix > 0 ? double(shape.prefix) : all_columns;
  const int threads = shape.threads == 0 ? peaks.threads : shape.threads;
  const double share = double(threads) / peaks.threads;
  const double lanes = peaks.cop_per_second * share;
  ScanCost cost;
  if (rows == 0 || queries == 0) {
    cost.limit = "memory";
    return cost;
  }
  // Queries are scored in groups of 12, the last one padded; groups of 1 and 4 leave some of the
  // pipes empty while they wait for their own sums. Few queries share one reading of the base,
  // which is split.
  const bool small = !peaks.matrix_unit && queries <= 4;
  const double scored = peaks.matrix_unit ? queries
                        : queries == 1    ? 1
                        : small           ? 4
                                          : std::ceil(queries / 12) * 12;
  const bool single = small && queries == 1;
  const double alone = std::min(1.0, model.single_efficiency * std::pow(dim / 128, 0.2));
  // Groups that are smaller go without tiles, at the rate of VNNI: twice that of int16.
  const bool tiles = peaks.isa == Isa::avx512_amx && shape.op == ScanOp::int8;
  // Without products of matrices (USMMLA) half as many.
  const bool matrices = peaks.isa == Isa::neon_i8mm && shape.op == ScanOp::int8;
  const double without = small && tiles      ? std::min(1.0, 2 * peaks.int16_ops / peaks.int8_ops)
                         : small && matrices ? 0.5
                                             : 1.0;
  const double efficiency = model.scan_efficiency * without *
                            (!small   ? 1.0
                             : single ? alone
                                      : 0.75);
  const bool split = queries < 48.0 * threads;
  const double per_pass = shape.queries_per_pass > 0 ? double(shape.queries_per_pass)
                          : split                    ? queries
                                  : std::clamp(queries / (4 * threads), 96., 1008.);
  const double base_bytes = rows * (dim * shape.bytes_per_element + 9);

  cost.multiply_adds = rows * queries * dim;
  cost.multiply_add_seconds =
      2 * rows * scored * dim / (peak_of(shape.op, peaks) * share * efficiency);
  cost.cops = model.score_operations * rows * scored;
  cost.coefficient_wise_seconds = cost.cops / lanes;
  cost.bytes = base_bytes * std::ceil(queries / per_pass);
  cost.memory_seconds = cost.bytes / reading_rate(base_bytes, share, peaks);

  const double allowed = double(shape.allowed > 0 ? shape.allowed : shape.rows);
  const double k = std::min(double(shape.k), allowed);
  const bool many = k > 32;
  const double hits = shape.expected_hits > 0
                          ? shape.expected_hits
                          : usual_hits(shape, split && !peaks.matrix_unit ? threads : 1);
  const double looks = estimates_thresholds(shape)
                           ? model.looks_operations + k * model.looks_neighbour_operations
                           : 0;
  const double place =
      model.hit_operations * std::log2(1 + k) + (shape.whole ? 0 : model.interval_operations);
  const double per_query = shape.prefix > 0 ? k * model.prefix_neighbour_operations
                           : many           ? hits * model.many_hits_operations + looks
                                            : hits * place;
  const bool one = queries == 1, few = split && !peaks.matrix_unit;
  const bool together = shape.op == ScanOp::int8 && !shape.whole && shape.prefix == 0 &&
                        !peaks.matrix_unit && allowed == rows && !(split && threads > 1) &&
                        looks_at_all_scores(shape.rows, shape.dim, shape.k);
  if (!one && !together && !peaks.matrix_unit && shape.prefix == 0) {
    const double panels = std::ceil(rows / 32), found = panels * (1 - std::exp(-hits / panels));
    cost.coefficient_wise_seconds +=
        (few ? model.few_found : 1) * queries * found * model.found_operations / lanes;
  }
  const double lists = one ? model.single_lists : few ? model.few_lists : 1;
  cost.selection_seconds = lists * queries * per_query / lanes;
  if (together)
    cost.selection_seconds =
        queries * (model.looked_at_operations * rows + model.chosen_operations * k) / lanes;
  if (many && split && !peaks.matrix_unit)
    cost.selection_seconds += lists * std::ceil(queries / threads) * k * model.merge_seconds;
  const double survivors = shape.whole                    ? 0
                           : together                     ? std::min(rows, 1.2 * k + 4)
                           : shape.expected_survivors > 0 ? shape.expected_survivors
                                                          : std::min(allowed, k + 6 * std::sqrt(k));
  const double rescoring = rescoring_operations(rows, all_columns, peaks);
  const double refined = shape.expected_refined *
                         (model.refine_operations + model.refine_column_operations * all_columns);
  cost.rescore_seconds = lists * queries * (survivors * rescoring + refined) / lanes;
  cost.query_seconds = queries *
                       (model.query_operations + model.query_column_operations * all_columns +
                        (shape.prefix > 0 ? model.prefix_query_operations +
                                                model.prefix_operations * dim * all_columns
                                          : 0)) /
                       lanes;
  if (shape.prefix > 0) {
    const double measured = shape.whole ? 0 : k;
    cost.seed_seconds =
        queries *
        (shape.seed_rows * (model.seed_operations + model.seed_column_operations * all_columns) +
         measured * rescoring) /
        lanes;
    cost.second_stage_seconds =
        queries * shape.second_rows *
        (model.second_operations + model.second_column_operations * all_columns) / lanes;
  }
  if (shape.packing)
    cost.packing_seconds =
        (shape.whole ? model.whole_packing : 1) * rows *
        (model.packing_operations + model.packing_column_operations * all_columns) / lanes;

  if (peaks.matrix_unit) {
    cost.scoring_seconds =
        std::max({cost.multiply_add_seconds, cost.coefficient_wise_seconds, cost.memory_seconds});
  } else {
    const double computing = cost.multiply_add_seconds + cost.coefficient_wise_seconds;
    // Mostly the larger of the two; where they are about as long neither quite hides the other.
    cost.scoring_seconds =
        std::sqrt(computing * computing + cost.memory_seconds * cost.memory_seconds);
  }
  const double call = peaks.matrix_unit ? 0 : model.call_seconds;
  cost.rate = 2 * cost.multiply_adds / cost.scoring_seconds;
  cost.seconds = cost.query_seconds + cost.seed_seconds + cost.scoring_seconds +
                 cost.selection_seconds + cost.second_stage_seconds + cost.rescore_seconds +
                 cost.packing_seconds + call;

  const std::pair<double, std::string> times[] = {
      {cost.multiply_add_seconds, std::string(name_of(shape.op)) + " multiply-adds"},
      {cost.memory_seconds, "memory"},
      {cost.coefficient_wise_seconds, "coefficient-wise operations"},
      {cost.query_seconds, "queries"},
      {cost.selection_seconds, "selection"},
      {cost.seed_seconds, "nearest clusters"},
      {cost.second_stage_seconds, "second stage"},
      {cost.rescore_seconds, "rescoring"},
      {cost.packing_seconds, "packing"}};
  cost.limit =
      std::max_element(std::begin(times), std::end(times), [](const auto& a, const auto& b) {
        return a.first < b.first;
      })->second;
  return cost;
}

ScanCost predict_direct(const ScanShape& shape, const MachinePeaks& peaks) {
  check(shape, peaks);
  const double rows = double(shape.rows), queries = double(shape.queries), dim = double(shape.dim);
  ScanCost cost;
  cost.limit = "rescoring";
  if (rows == 0 || queries == 0) return cost;
  const int threads = shape.threads == 0 ? peaks.threads : shape.threads;
  const double share = double(threads) / peaks.threads, lanes = peaks.cop_per_second * share;
  const double k = std::min(double(shape.k), rows);
  // Four queries share the work of loading a row; a single one waits for its own sums.
  const double measured = queries == 1 ? 2 : std::ceil(queries / 4) * 4;
  const double measuring =
      rows * measured * (model.direct_operations + model.direct_column_operations * dim) / lanes;
  // Blocks of rows stay in cache for the 16 queries of a task.
  const double bytes = rows * dim * shape.bytes_per_element;
  cost.bytes = bytes * std::ceil(queries / 16);
  cost.memory_seconds = cost.bytes / reading_rate(bytes, share, peaks);
  cost.rescore_seconds = std::max(measuring, cost.memory_seconds);
  const double hits = k * (1 + std::log(rows / k));
  const double per_query =
      hits * (k > 32 ? model.many_hits_operations : model.hit_operations * std::log2(1 + k));
  cost.selection_seconds = queries * per_query / lanes;
  cost.seconds = cost.rescore_seconds + cost.selection_seconds + model.call_seconds;
  if (cost.memory_seconds > measuring) cost.limit = "memory";
  if (cost.selection_seconds > cost.rescore_seconds) cost.limit = "selection";
  return cost;
}

double prefix_making_seconds(std::int64_t rows, std::int64_t dim, std::int64_t clusters,
                             const MachinePeaks& peaks) {
  const double n = double(rows), looks = n + 4 * std::min(n, 50 * double(clusters));
  return (n * (model.making_operations + model.making_column_operations * double(dim)) +
          looks *
              (model.nearest_operations + model.nearest_cluster_operations * double(clusters))) /
         peaks.cop_per_second;
}

double pair_seconds(ScanOp op, std::int64_t dim, const MachinePeaks& peaks) {
  return 2 * double(dim) / (peak_of(op, peaks) / peaks.threads * model.scan_efficiency) +
         model.score_operations / core_operations(peaks);
}

double second_stage_seconds(std::int64_t dim, const MachinePeaks& peaks) {
  return (model.second_operations + model.second_column_operations * double(dim)) /
         core_operations(peaks);
}

double measured_row_seconds(std::int64_t dim, const MachinePeaks& peaks) {
  return (model.rescore_operations + model.rescore_column_operations * double(dim) +
          model.far_operations) /
         core_operations(peaks);
}

double direct_row_seconds(std::int64_t dim, const MachinePeaks& peaks) {
  return (model.direct_operations + model.direct_column_operations * double(dim)) /
         core_operations(peaks);
}

double spared_by_refining(double rows, double k, std::int64_t dim, const MachinePeaks& peaks) {
  // The share of the rows that need not be measured then, found on synthetic clusters of 128 to 784
  // columns.
  const double share = std::min(0.1 + 0.17 * std::log(rows / k), 1 - k / rows);
  const double refined = model.refine_operations + model.refine_column_operations * double(dim);
  return rows * (share * measured_row_seconds(dim, peaks) - refined / core_operations(peaks));
}

double per_row_codes_seconds(std::int64_t rows, std::int64_t dim, const MachinePeaks& peaks) {
  return double(rows) * (model.packing_operations + model.packing_column_operations * double(dim)) /
         peaks.cop_per_second;
}

bool looks_at_all_scores(std::int64_t rows, std::int64_t dim, std::int64_t k) {
  return k > 1 && rows * dim <= 2 << 20 &&
         rows <= std::min<std::int64_t>(16384, std::max<std::int64_t>(2048, 200 * k));
}

double hit_seconds(std::int64_t k, bool whole, const MachinePeaks& peaks) {
  const double few =
      model.hit_operations * std::log2(1 + double(k)) + (whole ? 0 : model.interval_operations);
  return (k <= 32 ? few : model.many_hits_operations) / core_operations(peaks);
}

}  // namespace knear
