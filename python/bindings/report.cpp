// python/bindings/report.cpp -- what a search says of itself, as a dict and as the few numbers that
// results carry.
#include <nanobind/stl/shared_ptr.h>

#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"

namespace knear::python {
namespace {

nb::object uncertified(const KnnReport& report) {
  std::vector<std::int64_t> copy = report.uncertified;
  return array_of(std::move(copy));
}

nb::dict dict_of(const KnnReport& report) {
  nb::dict d;
  d["rows"] = report.rows;
  if (report.allowed_rows >= 0) d["allowed_rows"] = report.allowed_rows;
  d["dim"] = report.dim;
  d["queries"] = report.queries;
  d["k"] = report.k;
  d["metric"] = std::string(name_of(report.metric));
  d["isa"] = report.isa;
  d["first_pass"] = report.first_pass;
  d["centred"] = report.centred;
  d["threads"] = report.threads;
  d["prepare_seconds"] = report.prepare_seconds;
  d["seconds"] = report.seconds;
  d["scan_seconds"] = report.scan_seconds;
  d["query_seconds"] = report.query_seconds;
  d["seed_seconds"] = report.seed_seconds;
  d["score_seconds"] = report.score_seconds;
  d["select_seconds"] = report.select_seconds;
  d["rescore_seconds"] = report.rescore_seconds;
  d["hits_per_query"] = report.hits_per_query;
  d["refined_per_query"] = report.refined_per_query;
  d["survivors_per_query"] = report.survivors_per_query;
  d["fallback_queries"] = report.fallback_queries;
  d["repeated_queries"] = report.repeated_queries;
  d["certified_queries"] = report.certified_queries;
  d["method"] = report.method;
  d["device"] = report.device;
  if (report.device != "cpu") d["device_bytes"] = report.device_bytes;
  d["promised_recall"] = report.promised_recall;
  d["expected_recall"] = report.expected_recall;
  d["recall_argument"] = report.recall_argument;
  if (report.method == "partial-reduce") {
    d["bins"] = report.bins;
    d["kept_per_bin"] = report.kept_per_bin;
    d["repaired_queries"] = report.repaired_queries;
    d["uncertified"] = uncertified(report);
  }
  if (report.lists > 0) {
    d["lists"] = report.lists;
    d["probes"] = report.probes;
    d["probed_rows"] = report.probed_rows;
    d["uncertified"] = uncertified(report);
  }
  if (report.ef > 0) {
    d["ef"] = report.ef;
    d["probed_rows"] = report.probed_rows;
  }
  if (report.lists > 0 || report.code_parts > 0 || report.ef > 0)
    d["short_queries"] = report.short_queries;
  if (report.shards > 0) {
    d["shards"] = report.shards;
    d["replicas"] = report.replicas;
    d["merge_seconds"] = report.merge_seconds;
  }
  if (!report.unsearched_shards.empty()) {
    d["unsearched_rows"] = report.unsearched_rows;
    nb::list names;
    for (const std::string& name : report.unsearched_shards) names.append(name);
    d["unsearched_shards"] = names;
  }
  if (!report.note.empty()) d["note"] = report.note;
  if (report.method == "threshold-heap") {
    d["samples"] = report.samples;
    d["compression_ratio"] = report.compression_ratio;
    d["threshold_ratio"] = report.threshold_ratio;
    d["sampling_seconds"] = report.sampling_seconds;
    d["sorting_seconds"] = report.sorting_seconds;
  }
  d["memory_bytes"] = report.memory_bytes;
  d["multiply_adds"] = report.multiply_adds;
  if (report.prefix_columns > 0) d["prefix_columns"] = report.prefix_columns;
  if (report.prefix_columns > 0) d["clusters"] = report.clusters;
  if (report.joined) d["joined"] = true;
  d["group"] = report.group;
  d["tile_rows"] = report.tile_rows;
  d["parts"] = report.parts;
  d["guessed"] = report.guessed;
  d["bytes_read"] = report.bytes_read;
  d["version"] = report.version;
  return d;
}

}  // namespace

void bind_reports(nb::module_& m) {
  nb::class_<KnnReport>(m, "SearchReport").def("as_dict", &dict_of);
}

}  // namespace knear::python
