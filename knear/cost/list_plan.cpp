#include "knear/cost/list_plan.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/cost/machine_rates.hpp"
#include "knear/cost/plan.hpp"
#include "knear/cost/scan_cost_model.hpp"

namespace knear {
namespace {

constexpr ScanCostModel scan_model;

void check(const ListShape& shape) {
  for (const auto& [name, value] :
       {std::pair("rows", double(shape.rows)), std::pair("queries", double(shape.queries)),
        std::pair("lists", double(shape.lists)), std::pair("probes", shape.probes),
        std::pair("probed_rows", shape.probed_rows),
        std::pair("code_parts", double(shape.code_parts)),
        std::pair("measured_rows", shape.measured_rows),
        std::pair("threads", double(shape.threads))})
    if (!(value >= 0)) throw InvalidArgument("{} must not be negative, but is {}", name, value);
  if (shape.code_bits != 4 && shape.code_bits != 8)
    throw InvalidArgument("code_bits must be 4 or 8, but is {}", shape.code_bits);
  if (shape.lists > 0 && shape.probes > double(shape.lists))
    throw InvalidArgument("probes is {}, but there are {} lists", shape.probes, shape.lists);
}

// To score queries against all centroids, for the nearest of them.
ScanCost scan_of_centroids(const ListShape& shape, std::int64_t queries,
                           const MachinePeaks& peaks) {
  return predict_scan({.rows = shape.lists,
                       .dim = shape.dim,
                       .queries = queries,
                       .k = 1,
                       .bytes_per_element = 1,
                       .op = ScanOp::int8,
                       .threads = shape.threads},
                      peaks);
}

// Nanoseconds of a thread for codes of 8 bits, by both ways, as measured
// (docs/measurements/codes.md).
struct CodeTimes {
  double look_up, looked_up_row;  // per sub-quantiser of a row and query, and per row and query
  double column, multiplied_row;  // per column of a row and query, and per row and query
  double table_column;            // per column and entry of the tables of a query
  double decoded_part, decoded_column, decoded_row;
};
// For rows that have sums of their own: of a row for each sub-quantiser, and of a block for each
// column and entry of their tables, by any instructions.
constexpr double own_part = 0.45, own_column = 1.5;
CodeTimes code_times(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return {0.5, 1, 0.17, 1, 0.4, 0.5, 0.1, 5};
    case Isa::avx2:
      return {0.115, 0.06, 0.0125, 0.15, 0.1, 0.3, 0, 2};
    case Isa::avx512:
      return {0.23, 0.06, 0.0125, 0.15, 0.075, 0.3, 0, 2};
    case Isa::avx512_vnni:
    case Isa::avx512_amx:
      break;
    // Not measured: those of AVX2, whose registers are twice as long.
    case Isa::neon:
      return {0.23, 0.12, 0.025, 0.3, 0.2, 0.5, 0, 4};
    case Isa::neon_dot:
    case Isa::neon_i8mm:
      return {0.23, 0.12, 0.009, 0.2, 0.2, 0.5, 0, 4};
  }
  if (!has_byte_permutes()) return {0.23, 0.06, 0.0045, 0.1, 0.075, 0.3, 0, 2};
  return {0.019, 0.06, 0.0045, 0.1, 0.075, 0, 0.015, 1.5};
}

// For rows that pass: by products per column, by tables per sub-quantiser, by any instructions.
constexpr double passed_column = 0.6, passed_part = 0.25;
// The time that a query takes besides, if it goes on by tables.
constexpr double of_query = 3000;

// Queries that a thread goes over together by products, and the lists that these come to, of which
// each is decoded once.
double decoded_lists(const ListShape& shape, double queries) {
  if (shape.lists == 0) return 1;
  const double lists = double(shape.lists);
  return lists * (1 - std::exp(-queries * std::max(shape.probes, 1.0) / lists));
}

}  // namespace

bool products_of_codes_pay(const ListShape& shape, Isa isa) {
  if (shape.code_parts < 1 || shape.code_bits != 8 || shape.queries < 1) return false;
  const CodeTimes ns = code_times(isa);
  const double parts = double(shape.code_parts), dim = double(shape.dim), rows = double(shape.rows);
  const double queries = double(shape.queries) / std::max(1, shape.threads),
               scanned = shape.lists > 0 ? shape.probed_rows : rows,
               of_list = rows / double(std::max<std::int64_t>(1, shape.lists));
  const double looked_up = scanned * (parts * ns.look_up + ns.looked_up_row),
               multiplied = scanned * (dim * ns.column + ns.multiplied_row);
  const double tables = queries * (256 * dim * ns.table_column + looked_up - multiplied);
  const double decoding = parts * ns.decoded_part + dim * ns.decoded_column + ns.decoded_row +
                          (shape.rows_have_sums ? parts * own_part : 0),
               once = shape.rows_have_sums ? 256 * dim * own_column : 0;
  return tables > decoded_lists(shape, queries) * of_list * decoding + once;
}

bool tables_of_codes_pay_instead(const ListShape& shape, double share, double rows, Isa isa) {
  const CodeTimes ns = code_times(isa);
  const double parts = double(shape.code_parts), dim = double(shape.dim);
  const double products =
      rows * (share * dim * passed_column + dim * ns.column + ns.multiplied_row);
  // By tables whose bytes are as fine as the nearest rows need, fewer pass: a quarter, or less. But
  // equal rows all pass by tables too, so that tables have to save half of the time.
  const double tables =
      256 * dim * ns.table_column + of_query +
      rows * (parts * ns.look_up + ns.looked_up_row + share / 4 * parts * passed_part);
  return products > 2 * tables;
}

ListCost predict_lists(const ListShape& shape, const MachinePeaks& peaks) {
  check(shape);
  ListCost cost;
  if (shape.k < 1) throw InvalidArgument("k must be at least 1, but is {}", shape.k);
  // What it checks holds for lists too.
  const ScanCost centroids = scan_of_centroids(shape, shape.queries, peaks);
  if (shape.queries == 0 || shape.rows == 0) {
    cost.limit = "memory";
    return cost;
  }
  const double queries = double(shape.queries), dim = double(shape.dim), k = double(shape.k);
  const bool codes = shape.code_parts > 0, one = shape.queries == 1 && shape.lists > 0;
  // The lists of a query are one thread's.
  const int threads = one ? 1 : shape.threads == 0 ? peaks.threads : shape.threads;
  const double share = double(threads) / peaks.threads, lanes = peaks.cop_per_second * share;
  const double cycle = operations_of_a_cycle(peaks);
  const double lists = double(std::max<std::int64_t>(1, shape.lists)),
               probes = shape.lists > 0 ? std::max(shape.probes, 1.0) : 1,
               scanned = shape.lists > 0 ? shape.probed_rows : double(shape.rows);
  if (shape.lists > 0)
    cost.coarse_seconds =
        centroids.seconds + queries * (probes - 1) * scan_model.near_list_cycles * cycle / lanes;

  // Queries that come to the same list share its rows (scan/methods/list_scan.cpp).
  const double of_list = queries * probes / lists;
  const bool by_list = of_list >= (codes ? 1 : scan_model.least_queries_of_a_list);
  const double row_bytes = codes ? double(shape.code_parts) * shape.code_bits / 8 + 4 : dim + 9;
  const double base_bytes = double(shape.rows) * row_bytes;
  const double bytes =
      by_list ? std::min(1.0, of_list) * base_bytes : queries * scanned * row_bytes;
  cost.memory_seconds = bytes / reading_rate(base_bytes, share, peaks);
  ListShape of_threads = shape;
  of_threads.threads = threads;
  const bool multiplied = products_of_codes_pay(of_threads, peaks.isa);
  if (multiplied) {
    // Some thousand queries a block; nearest lists come first, and others by themselves.
    const double blocks = std::ceil(queries / threads / scan_model.queries_of_decoded_lists),
                 visits = blocks * (probes > 1 && shape.lists > 0 ? 2 : 1),
                 decoded = threads * visits * double(shape.rows) / lists *
                           decoded_lists(shape, queries / threads / blocks);
    cost.compute_seconds = queries * scanned *
                           (2 * dim / (peaks.int8_ops * share * scan_model.scan_efficiency) +
                            scan_model.multiplied_code_operations / lanes);
    cost.query_seconds = (decoded * (scan_model.decoded_code_operations +
                                     dim * scan_model.decoded_code_column_operations) +
                          queries * dim * scan_model.query_column_operations) /
                         lanes;
  } else if (codes) {
    cost.compute_seconds = queries * scanned * double(shape.code_parts) *
                           (shape.code_bits == 4 ? scan_model.short_look_up_operations
                                                 : scan_model.look_up_operations) /
                           lanes;
    const double table = double(1 << shape.code_bits);
    cost.query_seconds = queries * table *
                         (dim * scan_model.table_column_operations +
                          double(shape.code_parts) * scan_model.table_operations) /
                         lanes;
  } else {
    // Groups of 12, the last one of a list padded.
    const double padded = by_list ? 1 + 5.5 / of_list : 1;
    const double alone = std::min(1.0, scan_model.single_efficiency * std::pow(dim / 128, 0.2));
    const double efficiency = scan_model.scan_efficiency * (by_list ? 1 : alone);
    cost.compute_seconds =
        queries * scanned * padded *
        (2 * dim / (peaks.int8_ops * share * efficiency) + scan_model.score_operations / lanes);
    cost.query_seconds =
        queries * (scan_model.query_operations + scan_model.query_column_operations * dim) / lanes;
  }
  // Groups of a list are full but the last one.
  const double visits =
      codes || !by_list ? probes * (codes ? scan_model.coded_list_cycles : scan_model.list_cycles)
                        : probes * (1. / 12 + 0.5 / of_list) * scan_model.group_of_list_cycles;
  const double visiting = shape.lists > 0 ? queries * visits * cycle / lanes : 0;
  // Not std::hypot, which needs a newer glibc than the wheel may.
  cost.scoring_seconds = std::sqrt(cost.compute_seconds * cost.compute_seconds +
                                   cost.memory_seconds * cost.memory_seconds) +
                         visiting;
  cost.compute_seconds += visiting;

  // By their codes as many are kept as are measured.
  const double kept = codes ? std::max(k, shape.measured_rows) : k;
  const double passing = kept * (1 + std::log(std::max(1.0, scanned / kept))) *
                         (codes         ? 1
                          : shape.whole ? 1.3
                                        : scan_model.interval_hits);
  const double hits = std::min(scanned, passing);
  cost.selection_seconds =
      queries *
      (codes ? scan_model.coded_query_cycles + hits * scan_model.coded_hit_cycles
             : hits * scan_model.listed_hit_cycles) *
      cycle / lanes;
  const double measured = shape.measured_rows > 0 ? shape.measured_rows
                          : codes || shape.whole  ? 0
                                                  : std::min(scanned, k + 5 * std::sqrt(k));
  // Rows of a list lie near one another.
  const double measuring = rescoring_operations(double(shape.rows), dim, peaks) *
                           (codes ? scan_model.refined_far : scan_model.listed_far);
  const double decoding = shape.decoded ? dim * scan_model.decoded_column_cycles * cycle : 0;
  cost.rescore_seconds = queries * measured * (measuring + decoding) / lanes;
  cost.seconds = cost.coarse_seconds + cost.query_seconds + cost.scoring_seconds +
                 cost.selection_seconds + cost.rescore_seconds +
                 (one ? scan_model.single_list_search_seconds : scan_model.call_seconds);

  const std::pair<double, const char*> times[] = {
      {cost.coarse_seconds, "lists"},
      {cost.query_seconds, "queries"},
      {cost.compute_seconds, codes && !multiplied ? "look-ups" : "multiply-adds"},
      {cost.memory_seconds, "memory"},
      {cost.selection_seconds, "selection"},
      {cost.rescore_seconds, "rescoring"}};
  cost.limit =
      std::max_element(std::begin(times), std::end(times), [](const auto& a, const auto& b) {
        return a.first < b.first;
      })->second;
  return cost;
}

ListMakingCost predict_list_making(const ListShape& shape, std::int64_t training_rows,
                                   const MachinePeaks& peaks) {
  check(shape);
  if (training_rows < 0)
    throw InvalidArgument("training_rows must not be negative, but is {}", training_rows);
  ListShape one = shape;
  one.queries = 1, one.k = 1;
  scan_of_centroids(one, 1, peaks);  // checks the rest
  const int threads = shape.threads == 0 ? peaks.threads : shape.threads;
  const double share = double(threads) / peaks.threads, lanes = peaks.cop_per_second * share;
  const double cycle = operations_of_a_cycle(peaks);
  const double dim = double(shape.dim), lists = double(shape.lists);
  // Of a row to find its list, and to be coded.
  const double pair = pair_seconds(ScanOp::int8, shape.dim, peaks) / threads;
  const double finding =
      shape.lists > 0 ? scan_model.listing_cycles * cycle / lanes + lists * pair : 0;
  const double table = double(1 << shape.code_bits);
  // Codes that are refined have finer ones beside them.
  const double refining =
      shape.measured_rows > 0 ? dim * scan_model.refining_column_cycles * cycle : 0;
  const double coding =
      shape.code_parts > 0
          ? scan_model.coding_cycles * cycle + table * dim * scan_model.coding_column_operations +
                refining
          : scan_model.packing_operations + scan_model.packing_column_operations * dim;
  ListMakingCost cost;
  cost.add_seconds = double(shape.rows) * (finding + coding / lanes);

  if (shape.lists > 0) {
    // Lloyd's iterations on 16 rows a list, a quarter of the rows and all of them, 5, 10 and 5; or
    // in two levels, with a square root of as many centroids to compare
    // (index/quantizers/coarse_quantizer.cpp).
    const double rows = double(training_rows);
    const bool two_levels = shape.lists > most_lists_of_one_level;
    const double looks = two_levels ? 20 * rows : 5 * std::min(rows, 16 * lists) + 7.5 * rows;
    const double compared = two_levels ? 2 * std::sqrt(lists) : lists;
    cost.train_seconds = looks * (scan_model.relisting_cycles * cycle / lanes + compared * pair);
    if (two_levels)
      cost.train_seconds += 2 * rows * (scan_model.listing_cycles * cycle / lanes + lists * pair);
  }
  // 25 iterations on 256 rows a centroid; a row that knows its centroid of the last one takes half.
  if (shape.code_parts > 0) {
    const double rows = std::min(double(training_rows), 65536.);
    cost.train_seconds +=
        (rows * scan_model.code_training_cycles * cycle +
         12.5 * std::min(rows, 256 * table) * table * dim * scan_model.coding_column_operations) /
        lanes;
  }
  return cost;
}

}  // namespace knear
