// cli/search_output.cpp -- what search and truth print: JSON, or a summary for people.
#include <algorithm>
#include <cmath>
#include "cli/output.hpp"
#include "cli/search_job.hpp"
#include "knear/core/json.hpp"

namespace knear::cli {
namespace {

// Returns true if an index was searched by lists or codes.
bool is_probed(const KnnReport& report) {
  return report.lists.count > 0 || report.graph.ef > 0 || report.method == "codes";
}

double queries_per_second(const SearchOutcome& outcome) {
  return outcome.seconds > 0 ? double(outcome.report.queries) / outcome.seconds : 0;
}

void print_json(const SearchArguments& arguments, const SearchOutcome& outcome) {
  const KnnReport& report = outcome.report;
  nlohmann::ordered_json out;
  out["k"] = report.k;
  out["metric"] = name_of(report.metric);
  out["method"] = report.method;
  out["device"] = place_of(arguments.device, report);
  out["isa"] = report.scan.isa;
  out["threads"] = report.threads;
  out["rows"] = report.rows;
  out["allowed_rows"] = report.allowed_rows >= 0 ? nlohmann::ordered_json(report.allowed_rows)
                                                 : nlohmann::ordered_json(nullptr);
  out["dim"] = report.dim;
  out["queries"] = report.queries;
  out["seconds"] = outcome.seconds;
  out["queries_per_second"] = queries_per_second(outcome);
  out["predicted_seconds"] = nullptr;
  out["limit"] = nullptr;
  if (outcome.prediction) {
    out["predicted_seconds"] = outcome.prediction->cost.seconds;
    out["limit"] = outcome.prediction->cost.limit;
  } else if (outcome.device_prediction) {
    out["predicted_seconds"] = outcome.device_prediction->place.device.seconds;
    out["limit"] = outcome.device_prediction->place.device.limit;
  }
  out["memory_bytes"] = report.memory_bytes;
  out["survivors_per_query"] = report.scan.survivors_per_query;
  out["promised_recall"] = report.promise.promised_recall;
  out["expected_recall"] = report.promise.expected_recall;
  out["recall_argument"] = report.promise.recall_argument;
  out["certified_queries"] = report.promise.certified_queries;
  if (report.method == "partial-reduce") {
    out["bins"] = report.partial_reduce.bins;
    out["kept_per_bin"] = report.partial_reduce.kept_per_bin;
    out["repaired_queries"] = report.partial_reduce.repaired_queries;
  }
  if (report.lists.count > 0) {
    out["lists"] = report.lists.count;
    out["probes"] = report.lists.probes;
    out["probed_rows"] = report.scan.probed_rows;
  }
  if (report.graph.ef > 0) {
    out["ef"] = report.graph.ef;
    out["probed_rows"] = report.scan.probed_rows;
  }
  if (is_probed(report)) out["short_queries"] = report.short_queries;
  if (outcome.index && (outcome.index->shards() > 1 || outcome.index->replicas() > 1)) {
    out["shards"] = report.shards.count, out["replicas"] = report.shards.replicas;
    out["merge_seconds"] = report.shards.merge_seconds;
    if (outcome.prediction) {
      out["predicted_merge_seconds"] = outcome.prediction->merge_seconds;
      out["predicted_repeated_seconds"] = outcome.prediction->repeated_seconds;
    }
  }
  if (!report.shards.unsearched_shards.empty()) {
    out["unsearched_rows"] = report.shards.unsearched_rows;
    out["unsearched_shards"] = report.shards.unsearched_shards;
  }
  if (!report.note.empty()) out["note"] = report.note;
  if (report.method == "threshold-heap") {
    out["samples"] = report.threshold_heap.samples;
    out["compression_ratio"] = report.threshold_heap.compression_ratio;
    if (report.threshold_heap.threshold_ratio > 0)
      out["threshold_ratio"] = report.threshold_heap.threshold_ratio;
    out["sampling_seconds"] = report.threshold_heap.sampling_seconds;
    out["sorting_seconds_all_threads"] = report.threshold_heap.sorting_seconds;
  }
  if (outcome.recall) {
    const RecallFigures& recall = *outcome.recall;
    out["recall"] = recall.by_distance.value_or(recall.by_id);
    out["recall_ids"] = recall.by_id;
    out["recall_interval"] = {recall.distance_interval.low, recall.distance_interval.high};
    out["recall_ids_interval"] = {recall.id_interval.low, recall.id_interval.high};
  }
  if (!std::isnan(arguments.radius)) {
    if (std::isinf(arguments.radius))
      out["radius"] = fmt::format("{}", arguments.radius);  // which is no number of JSON
    else
      out["radius"] = arguments.radius;
    out["results_per_query"] =
        report.queries > 0 ? double(outcome.within_radius) / double(report.queries) : 0.0;
    out["queries_with_more_than_k"] = outcome.queries_cut;
  }
  out["first_pass"] = report.scan.first_pass;
  if (report.scan.prefix_columns > 0) out["prefix_columns"] = report.scan.prefix_columns;
  if (report.scan.prefix_columns > 0) out["clusters"] = report.scan.clusters;
  if (report.scan.leaves > 0) out["leaves"] = report.scan.leaves;
  out["group"] = report.scan.group;
  out["tile_rows"] = report.scan.tile_rows;
  out["parts"] = report.scan.parts;
  out["guessed"] = report.scan.guessed;
  out["centred"] = report.scan.centred;
  out["base_type"] = name_of(outcome.base_type);
  out["queries_type"] = name_of(outcome.queries.view().type());
  out["prepare_seconds"] = report.prepare_seconds;
  out["search_seconds"] = report.seconds;
  out["hits_per_query"] = report.scan.hits_per_query;
  out["refined_per_query"] = report.scan.refined_per_query;
  out["fallback_queries"] = report.scan.fallback_queries;
  out["repeated_queries"] = report.scan.repeated_queries;
  if (outcome.prediction)
    out["peaks"] = outcome.prediction->measured_peaks ? "measured" : "estimated";
  else if (outcome.device_prediction)
    out["peaks"] = "data sheet";
  if (report.device.name != "cpu") out["device_bytes"] = report.device.bytes;
  if (!arguments.machine.empty()) {
    const ScanCost cost = predict_elsewhere(report, known_machine(arguments.machine));
    out["machine"] = {
        {"name", arguments.machine}, {"predicted_seconds", cost.seconds}, {"limit", cost.limit}};
  }
  if (arguments.explain && outcome.device_prediction) {
    const FasterPlace& place = outcome.device_prediction->place;
    const DeviceCost& cost = place.device;
    out["explain"] = {{"device_name", outcome.device_prediction->device.name},
                      {"predicted_upload_seconds", cost.upload_seconds},
                      {"predicted_coding_seconds", cost.coding_seconds},
                      {"predicted_overlapped_seconds", cost.overlapped_seconds},
                      {"predicted_query_seconds", cost.query_seconds},
                      {"predicted_scan_seconds", cost.scan_seconds},
                      {"predicted_multiply_add_seconds", cost.multiply_add_seconds},
                      {"predicted_instruction_seconds", cost.instruction_seconds},
                      {"predicted_shared_memory_seconds", cost.shared_seconds},
                      {"predicted_cache_seconds", cost.l2_seconds},
                      {"predicted_memory_seconds", cost.memory_seconds},
                      {"predicted_selection_seconds", cost.selection_seconds},
                      {"predicted_rescore_seconds", cost.rescore_seconds},
                      {"predicted_launch_seconds", cost.launch_seconds},
                      {"predicted_download_seconds", cost.download_seconds},
                      {"predicted_bus_bytes", cost.bus_bytes},
                      {"predicted_bytes", cost.bytes},
                      {"predicted_device_bytes", cost.device_bytes},
                      {"multiply_adds", report.scan.multiply_adds},
                      {"processor_predicted_seconds", place.processor.seconds},
                      {"processor_limit", place.processor.limit},
                      {"device_is_faster", place.device_is_faster}};
  } else if (arguments.explain && outcome.prediction) {
    const ScanCost& cost = outcome.prediction->cost;
    out["explain"] = {{"predicted_multiply_add_seconds", cost.multiply_add_seconds},
                      {"predicted_memory_seconds", cost.memory_seconds},
                      {"predicted_coefficient_wise_seconds", cost.coefficient_wise_seconds},
                      {"predicted_selection_seconds", cost.selection_seconds},
                      {"predicted_rescore_seconds", cost.rescore_seconds},
                      {"predicted_packing_seconds", cost.packing_seconds},
                      {"predicted_bytes", cost.bytes},
                      {"predicted_coefficient_wise_operations", cost.cops},
                      {"multiply_adds", report.scan.multiply_adds},
                      {"bytes_read", report.scan.bytes_read},
                      {"predicted_query_seconds", cost.query_seconds},
                      {"query_seconds_all_threads", report.scan.query_seconds},
                      {"seed_seconds_all_threads", report.scan.seed_seconds},
                      {"score_seconds_all_threads", report.scan.score_seconds},
                      {"select_seconds_all_threads", report.scan.select_seconds},
                      {"scan_seconds_all_threads", report.scan.scan_seconds},
                      {"rescore_seconds_all_threads", report.scan.rescore_seconds}};
    if (report.lists.count > 0) {
      out["explain"]["predicted_coarse_seconds"] = cost.seed_seconds;
      out["explain"]["coarse_seconds"] = report.lists.coarse_seconds;
    }
  }
  print("{}\n", out.dump(2));
}

void print_first_answers(const SearchOutcome& outcome) {
  constexpr std::int64_t queries_shown = 5, neighbours_shown = 4;
  const Neighbors& near = outcome.near;
  const std::int64_t k = std::min(neighbours_shown, near.ids.cols());
  const std::int64_t rows = std::min(queries_shown, near.ids.rows());
  std::vector<std::vector<std::string>> table(1);
  table[0].push_back("query");
  for (std::int64_t j = 0; j < k; ++j) table[0].push_back(fmt::format("id: distance {}", j + 1));
  for (std::int64_t q = 0; q < rows; ++q) {
    auto& line = table.emplace_back(1, fmt::format("{}", q));
    for (std::int64_t j = 0; j < k; ++j)
      line.push_back(fmt::format("{}: {:.6g}", near.ids.row(q)[j], near.distances.row(q)[j]));
  }
  print("\n{}", format_table(table));
  if (rows < near.ids.rows() || k < near.ids.cols())
    print("{} of {} queries, {} of {} neighbours; --out and --distances write them all.\n", rows,
          near.ids.rows(), k, near.ids.cols());
}

void print_summary(const SearchArguments& arguments, const SearchOutcome& outcome) {
  const KnnReport& report = outcome.report;
  print("{} rows x {} {}, {} queries, k = {}, {}\n", report.rows, report.dim,
        name_of(outcome.base_type), report.queries, report.k, name_of(report.metric));
  if (report.allowed_rows < 0)
    print("rows looked up in {} as they are probed\n", arguments.filter);
  else if (report.allowed_rows != report.rows)
    print("{} rows allowed by {}\n", report.allowed_rows, arguments.filter);
  print("{}: {}{} queries/s, {} ({} first pass, {}, {} threads)\n", report.method,
        tells_certified(report) ? fmt::format("{} of {} answers certified exact, ",
                                              report.promise.certified_queries, report.queries)
                                : "",
        readable_count(queries_per_second(outcome)), readable_seconds(outcome.seconds),
        report.scan.first_pass, report.device.name == "cpu" ? report.scan.isa : report.device.name,
        report.threads);
  if (report.method == "partial-reduce")
    print("recall {:g} promised, {:.6g} expected: {} of each of {} bins kept{}\n",
          report.promise.promised_recall, report.promise.expected_recall,
          report.partial_reduce.kept_per_bin, report.partial_reduce.bins,
          report.partial_reduce.repaired_queries > 0
              ? fmt::format(", {} queries repaired", report.partial_reduce.repaired_queries)
              : "");
  if (report.lists.count > 0)
    print("{:.4g} of {} lists probed, {} rows in them a query{}\n", report.lists.probes,
          report.lists.count, readable_count(report.scan.probed_rows),
          report.short_queries > 0
              ? fmt::format(", {} queries found fewer than {}", report.short_queries, report.k)
              : "");
  if (report.graph.ef > 0)
    print("a walk on the graph with ef {}: {} rows scored, {} measured a query\n", report.graph.ef,
          readable_count(report.scan.probed_rows), readable_count(report.scan.survivors_per_query));
  if (report.method == "codes" && report.short_queries > 0)
    print("{} queries found fewer than {}\n", report.short_queries, report.k);
  if (is_probed(report) && report.promise.recall_argument == "calibrated")
    print("recall {:g} promised, {:.6g} expected, by calibration\n", report.promise.promised_recall,
          report.promise.expected_recall);
  if (!report.note.empty()) print("{}\n", report.note);
  if (report.method == "threshold-heap")
    print("{} rows sampled in {}, compression {:.4g}, threshold ratio {:.4g}, {} of sorting\n",
          report.threshold_heap.samples, readable_seconds(report.threshold_heap.sampling_seconds),
          report.threshold_heap.compression_ratio, report.threshold_heap.threshold_ratio,
          readable_seconds(report.threshold_heap.sorting_seconds));
  if (!std::isnan(arguments.radius))
    print("{} neighbours within the radius {:g}; {} queries have more than k = {}\n",
          outcome.within_radius, arguments.radius, outcome.queries_cut, report.k);
  if (outcome.recall) {
    const RecallFigures& recall = *outcome.recall;
    print("recall@{} {}{:.6g} [{:.6g}, {:.6g}] by id{}\n", report.k,
          recall.by_distance
              ? fmt::format("{:.6g} [{:.6g}, {:.6g}] by distance, ", *recall.by_distance,
                            recall.distance_interval.low, recall.distance_interval.high)
              : "",
          recall.by_id, recall.id_interval.low, recall.id_interval.high,
          recall.by_distance ? ""
                             : "; the index has no vectors, so that 'knear eval --base' alone can "
                               "tell equally near rows");
  }
  if (arguments.explain && outcome.device_prediction) {
    print("\n{}", format_table(explain_lines(outcome.report, *outcome.device_prediction)));
    print("{}", explain_place(*outcome.device_prediction));
  } else if (arguments.explain && outcome.prediction) {
    print("\n{}", format_table(explain_lines(outcome.report, *outcome.prediction)));
    if (!outcome.prediction->measured_peaks)
      print("Planned with estimated peaks: 'knear roofline' measures this machine.\n");
  }
  if (!arguments.machine.empty()) {
    const KnownMachine& machine = known_machine(arguments.machine);
    const ScanCost cost = predict_elsewhere(report, machine);
    print("on {}: {} predicted, limited by {} ({})\n", machine.title,
          readable_seconds(cost.seconds), cost.limit, machine.source);
  }
  if (arguments.out.empty()) print_first_answers(outcome);
}

}  // namespace

void print_outcome(const SearchArguments& arguments, const SearchOutcome& outcome) {
  if (arguments.json)
    print_json(arguments, outcome);
  else
    print_summary(arguments, outcome);
}

}  // namespace knear::cli
