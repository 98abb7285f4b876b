#include "cli/prediction.hpp"

#include <algorithm>

#include "cli/output.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/cost/shard_plan.hpp"

namespace knear::cli {
namespace {

ScanOp op_of(const std::string& first_pass) {
  if (first_pass == name_of(FirstPass::integer) || first_pass == name_of(FirstPass::int8) ||
      first_pass == name_of(FirstPass::prefix))
    return ScanOp::int8;
  return first_pass == name_of(FirstPass::int16) ? ScanOp::int16 : ScanOp::fp32;
}

double peak_of(ScanOp op, const MachinePeaks& peaks) {
  return op == ScanOp::int8    ? peaks.int8_ops
         : op == ScanOp::int16 ? peaks.int16_ops
                               : peaks.fp32_flops;
}

// A search of inverted lists or codes.
Prediction predict_of_lists(const KnnReport& report, const KnownPeaks& machine) {
  const bool codes = report.codes.parts > 0;
  const ListCost cost = predict_lists({.rows = report.rows,
                                       .dim = report.dim,
                                       .queries = report.queries,
                                       .k = std::max<std::int64_t>(1, report.k),
                                       .lists = report.lists.count,
                                       .probes = report.lists.probes,
                                       .probed_rows = report.scan.probed_rows,
                                       .code_parts = report.codes.parts,
                                       .code_bits = codes ? report.codes.bits : 8,
                                       .whole = report.scan.survivors_per_query == 0,
                                       .measured_rows = codes ? report.scan.refined_per_query : 0,
                                       .decoded = report.codes.refined_by_codes,
                                       .threads = report.threads},
                                      machine.peaks);
  Prediction out;
  out.cost.seconds = cost.seconds, out.cost.limit = cost.limit;
  out.cost.seed_seconds = cost.coarse_seconds, out.cost.query_seconds = cost.query_seconds;
  out.cost.scoring_seconds = cost.scoring_seconds;
  out.cost.multiply_add_seconds = cost.compute_seconds;
  out.cost.memory_seconds = cost.memory_seconds;
  out.cost.selection_seconds = cost.selection_seconds;
  out.cost.rescore_seconds = cost.rescore_seconds;
  out.cost.multiply_adds =
      codes ? 0 : double(report.queries) * report.scan.probed_rows * double(report.dim);
  out.measured_peaks = machine.measured;
  out.peaks = machine.peaks, out.peak = machine.peaks.int8_ops;
  out.peak_name = "int8 multiply-adds";
  if (report.seconds > 0)
    out.peak_fraction = 2 * report.scan.multiply_adds / machine.peaks.int8_ops / report.seconds;
  return out;
}

// Describes one prediction for explain_lines().
std::vector<std::vector<std::string>> lines_of_lists(const KnnReport& report,
                                                     const Prediction& prediction) {
  const ScanCost& cost = prediction.cost;
  const std::string none = "";
  const bool codes = report.codes.parts > 0;
  const double threads = double(std::max(1, report.threads));
  const auto planned = [&](double seconds) {
    return fmt::format("{}, {:.0f} %", readable_seconds(seconds),
                       cost.seconds > 0 ? 100 * seconds / cost.seconds : 0);
  };
  const auto happened = [&](double seconds) {
    return fmt::format("{}, {:.0f} %", readable_seconds(seconds),
                       report.seconds > 0 ? 100 * seconds / report.seconds : 0);
  };
  // The stages but the first are sums over threads; here they become shares of the elapsed time.
  const double queries = report.scan.query_seconds / threads,
               scoring = report.scan.score_seconds / threads,
               selection = report.scan.select_seconds / threads,
               rescoring = report.scan.rescore_seconds / threads;
  const double rest =
      report.seconds - report.lists.coarse_seconds - queries - scoring - selection - rescoring;
  std::vector<std::vector<std::string>> out = {{none, "planned", "happened"}};
  if (report.lists.count > 0) {
    out.push_back({"lists", none, fmt::format("{}", report.lists.count)});
    out.push_back({"lists of a query", none, readable_count(report.lists.probes)});
  }
  out.push_back({"rows of a query", none, readable_count(report.scan.probed_rows)});
  out.push_back({"rows are scored by", none,
                 codes ? fmt::format("codes of {} x {} bits", report.codes.parts, report.codes.bits)
                       : report.scan.first_pass});
  out.push_back({"limit", cost.limit, none});
  out.push_back({"seconds", readable_seconds(cost.seconds), readable_seconds(report.seconds)});
  if (report.lists.count > 0)
    out.push_back({"  lists put in order", planned(cost.seed_seconds),
                   happened(report.lists.coarse_seconds)});
  out.push_back({codes ? "  tables, or rows decoded" : "  packing queries",
                 planned(cost.query_seconds), codes ? none : happened(queries)});
  out.push_back({"  scoring", planned(cost.scoring_seconds), codes ? none : happened(scoring)});
  out.push_back({codes ? "    look-ups, or products" : "    computing",
                 readable_seconds(cost.multiply_add_seconds), none});
  out.push_back({"    or reading memory", readable_seconds(cost.memory_seconds), none});
  out.push_back(
      {"  rows that passed", planned(cost.selection_seconds), codes ? none : happened(selection)});
  out.push_back(
      {"  measuring rows", planned(cost.rescore_seconds), codes ? none : happened(rescoring)});
  out.push_back({"  the rest, and waiting", none, readable_seconds(std::max(0.0, rest))});
  if (!codes)
    out.push_back({"multiply-adds", readable_count(cost.multiply_adds),
                   readable_count(report.scan.multiply_adds)});
  out.push_back(
      {"rows measured per query", none,
       readable_count(codes ? report.scan.refined_per_query : report.scan.survivors_per_query)});
  if (tells_certified(report))
    out.push_back({"certified exact", none,
                   fmt::format("{:.4g} %", 100 * double(report.promise.certified_queries) /
                                               double(std::max<std::int64_t>(report.queries, 1)))});
  out.push_back({"memory", none, readable_bytes(double(report.memory_bytes))});
  return out;
}

}  // namespace

namespace {

Prediction predict_of_scan(const KnnReport& report, const KnownPeaks& machine) {
  const ScanOp op = op_of(report.scan.first_pass);
  const bool prefix = report.scan.prefix_columns > 0;
  ScanShape shape{.rows = report.rows,
                  .dim = report.dim,
                  .queries = report.queries,
                  .k = report.k,
                  .bytes_per_element = op == ScanOp::int8    ? 1.0
                                       : op == ScanOp::int16 ? 2.0
                                                             : 4.0,
                  .op = op,
                  .whole = report.scan.survivors_per_query == 0,
                  .threads = report.threads,
                  .prefix = report.scan.prefix_columns};
  if (prefix) {  // usually a hundredth of the rows passes
    shape.second_rows =
        report.scan.expected_hits > 0 ? report.scan.expected_hits : 0.01 * double(report.rows);
    shape.seed_rows =
        std::max(double(report.rows) / double(std::max<std::int64_t>(1, report.scan.clusters)),
                 3.0 * double(report.k));
  } else {
    shape.expected_hits = report.scan.expected_hits;
  }
  shape.expected_survivors = report.scan.expected_survivors;
  if (!prefix) shape.expected_refined = report.scan.expected_refined;
  if (report.allowed_rows == 0) shape.rows = 0;
  shape.allowed = report.allowed_rows < 0 ? report.rows : report.allowed_rows;
  shape.tile_rows = report.scan.tile_rows;
  Prediction out;
  out.cost = report.scan.first_pass == name_of(FirstPass::direct)
                 ? predict_direct(shape, machine.peaks)
                 : predict_scan(shape, machine.peaks);
  out.measured_peaks = machine.measured;
  // A tree leaves most pairs out; of others the work is known before.
  const bool by_tree = report.scan.leaves > 0;
  const double rows = by_tree ? report.scan.survivors_per_query : double(report.rows);
  const double products =
      by_tree && op == ScanOp::int8
          ? report.scan.multiply_adds
          : rows * double(report.queries) * double(prefix ? shape.prefix : shape.dim);
  const double peak_seconds = 2.0 * products / peak_of(op, machine.peaks);
  out.peak_fraction = report.seconds > 0 ? peak_seconds / report.seconds : 0;
  out.peaks = machine.peaks, out.peak = peak_of(op, machine.peaks);
  out.peak_name = fmt::format("{} multiply-adds", name_of(op));
  return out;
}

}  // namespace

Prediction predict(const KnnReport& report, const KnownPeaks& machine) {
  Prediction out = report.lists.count > 0 || report.codes.parts > 0
                       ? predict_of_lists(report, machine)
                       : predict_of_scan(report, machine);
  // Shards that were searched as segments of one index merge nothing. Of inverted lists of vectors
  // they repeat what queries and thresholds take all the same.
  const bool merged = report.shards.count > 1 && report.shards.merge_seconds > 0;
  const bool codes = report.codes.parts > 0, lists = report.lists.count > 0 || codes;
  if (merged)
    out.merge_seconds = predict_merge({.shards = report.shards.count,
                                       .queries = report.queries,
                                       .k = report.k,
                                       .threads = report.threads},
                                      machine.peaks);
  if (report.shards.count > 1 && (merged || (lists && !codes)))
    out.repeated_seconds = double(report.shards.count - 1) *
                           (out.cost.query_seconds + (lists ? out.cost.seed_seconds : 0));
  out.cost.seconds += out.merge_seconds + out.repeated_seconds;
  return out;
}

ScanCost predict_elsewhere(const KnnReport& report, const KnownMachine& machine) {
  const bool int8 = machine.peaks.int8_ops > 0;
  return predict_scan({.rows = report.rows,
                       .dim = report.dim,
                       .queries = report.queries,
                       .k = std::max<std::int64_t>(1, report.k),
                       .bytes_per_element = int8 ? 1.0 : 2.0,
                       .op = int8 ? ScanOp::int8 : ScanOp::bf16,
                       .whole = report.scan.survivors_per_query == 0},
                      machine.peaks);
}

bool tells_certified(const KnnReport& report) {
  return report.promise.certified_queries + std::ssize(report.promise.uncertified) ==
         report.queries;
}

namespace {

std::vector<std::vector<std::string>> lines_of_scan(const KnnReport& report,
                                                    const Prediction& prediction) {
  const ScanCost& cost = prediction.cost;
  const double queries = double(std::max<std::int64_t>(report.queries, 1));
  const std::string none = "";
  const std::string first_pass =
      report.scan.first_pass +
      (report.scan.prefix_columns > 0 ? fmt::format(" of {} columns", report.scan.prefix_columns)
                                      : none) +
      (report.scan.joined ? ", pairs once" : "") + (report.scan.centred ? ", centred" : "");
  // The stages are sums over threads; here they become shares of the elapsed time.
  const double threads = double(std::max(1, report.threads));
  const double parts[] = {report.scan.query_seconds, report.scan.seed_seconds,
                          report.scan.score_seconds, report.scan.select_seconds,
                          report.scan.rescore_seconds};
  double rest = report.seconds;
  for (const double part : parts) rest -= part / threads;
  const auto planned = [&](double seconds) {
    return fmt::format("{}, {:.0f} %", readable_seconds(seconds),
                       cost.seconds > 0 ? 100 * seconds / cost.seconds : 0);
  };
  const auto happened = [&](double seconds) {
    return fmt::format("{}, {:.0f} %", readable_seconds(seconds / threads),
                       report.seconds > 0 ? 100 * seconds / threads / report.seconds : 0);
  };
  const bool by_tree = report.scan.leaves > 0;
  return {
      {none, by_tree ? "a scan of all" : "planned", "happened"},
      {"first pass", none, first_pass},
      {"queries side by side", none, fmt::format("{}", report.scan.group)},
      by_tree ? std::vector<std::string>{"tree of the rows", none,
                                         fmt::format("{} leaves", report.scan.leaves)}
              : std::vector<std::string>{"parts of the base", none,
                                         fmt::format("{}", report.scan.parts)},
      {"rows of a tile", none, fmt::format("{}", report.scan.tile_rows)},
      {"threshold", none,
       report.scan.prefix_columns > 0
           ? fmt::format("from the nearest of {} clusters", report.scan.clusters)
       : report.scan.guessed ? "guessed from the tiles seen"
                             : "the k-th best so far"},
      {"limit", cost.limit, none},
      {"seconds", readable_seconds(cost.seconds), readable_seconds(report.seconds)},
      {"  packing queries", planned(cost.query_seconds), happened(report.scan.query_seconds)},
      {"  rows of the nearest clusters", planned(cost.seed_seconds),
       happened(report.scan.seed_seconds)},
      {"  scoring", planned(cost.scoring_seconds), happened(report.scan.score_seconds)},
      {"    multiply-adds", readable_seconds(cost.multiply_add_seconds), none},
      {"    coefficient-wise operations", readable_seconds(cost.coefficient_wise_seconds), none},
      {"    or reading memory", readable_seconds(cost.memory_seconds), none},
      {"  second stage", planned(cost.second_stage_seconds), none},
      {"  rows that passed", planned(cost.selection_seconds), happened(report.scan.select_seconds)},
      {"  rescoring in float64", planned(cost.rescore_seconds),
       happened(report.scan.rescore_seconds)},
      {"  the rest, and waiting", none, readable_seconds(std::max(0.0, rest))},
      {"packing the base", none, readable_seconds(report.prepare_seconds)},
      {"share of the machine's peak", none,
       fmt::format("{:.0f} % of {}", 100 * prediction.peak_fraction, prediction.peak_name)},
      {"multiply-adds", readable_count(cost.multiply_adds),
       readable_count(report.scan.multiply_adds)},
      {"bytes read", readable_bytes(cost.bytes), readable_bytes(report.scan.bytes_read)},
      {"coefficient-wise operations of scores", readable_count(cost.cops), none},
      {"hits per query", none, readable_count(report.scan.hits_per_query)},
      {"scored again per query", none, readable_count(report.scan.refined_per_query)},
      {"survivors per query", none, readable_count(report.scan.survivors_per_query)},
      {"queries that fell back", none, readable_count(double(report.scan.fallback_queries))},
      {"queries scanned again", none, readable_count(double(report.scan.repeated_queries))},
      {"certified exact", none,
       fmt::format("{:.4g} %", 100 * double(report.promise.certified_queries) / queries)},
      {"memory", none, readable_bytes(double(report.memory_bytes))}};
}

}  // namespace

std::vector<std::vector<std::string>> explain_lines(const KnnReport& report,
                                                    const Prediction& prediction) {
  const bool lists = report.lists.count > 0 || report.codes.parts > 0;
  auto out = lists ? lines_of_lists(report, prediction) : lines_of_scan(report, prediction);
  if (report.shards.count <= 1 && report.shards.replicas <= 1) return out;
  out.push_back({"shards x replicas", "",
                 fmt::format("{} x {}", report.shards.count, report.shards.replicas)});
  out.push_back({"done again by each shard", readable_seconds(prediction.repeated_seconds), ""});
  out.push_back({"merging what shards found", readable_seconds(prediction.merge_seconds),
                 readable_seconds(report.shards.merge_seconds)});
  return out;
}

}  // namespace knear::cli
