// python/bindings/report.cpp -- what a search says of itself, as a dict and as the few numbers that
// results carry.
#include <nanobind/stl/shared_ptr.h>

#include "knear/knn/search/few_rows_search.hpp"
#include "python/bindings/arrays.hpp"
#include "python/bindings/bind.hpp"

namespace knear::python {
namespace {

nb::object uncertified(const KnnReport& report) {
  std::vector<std::int64_t> copy = report.promise.uncertified;
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
  d["isa"] = report.scan.isa;
  d["first_pass"] = report.scan.first_pass;
  d["centred"] = report.scan.centred;
  d["threads"] = report.threads;
  d["prepare_seconds"] = report.prepare_seconds;
  d["seconds"] = report.seconds;
  d["scan_seconds"] = report.scan.scan_seconds;
  d["query_seconds"] = report.scan.query_seconds;
  d["seed_seconds"] = report.scan.seed_seconds;
  d["score_seconds"] = report.scan.score_seconds;
  d["select_seconds"] = report.scan.select_seconds;
  d["rescore_seconds"] = report.scan.rescore_seconds;
  d["hits_per_query"] = report.scan.hits_per_query;
  d["refined_per_query"] = report.scan.refined_per_query;
  d["survivors_per_query"] = report.scan.survivors_per_query;
  d["fallback_queries"] = report.scan.fallback_queries;
  d["repeated_queries"] = report.scan.repeated_queries;
  d["certified_queries"] = report.promise.certified_queries;
  d["method"] = report.method;
  d["device"] = report.device.name;
  if (report.device.name != "cpu") d["device_bytes"] = report.device.bytes;
  d["promised_recall"] = report.promise.promised_recall;
  d["expected_recall"] = report.promise.expected_recall;
  d["recall_argument"] = report.promise.recall_argument;
  if (report.promise.audited_queries > 0) d["audited_queries"] = report.promise.audited_queries;
  if (report.method == "partial-reduce") {
    d["bins"] = report.partial_reduce.bins;
    d["kept_per_bin"] = report.partial_reduce.kept_per_bin;
    d["repaired_queries"] = report.partial_reduce.repaired_queries;
    d["uncertified"] = uncertified(report);
  }
  if (report.lists.count > 0) {
    d["lists"] = report.lists.count;
    d["probes"] = report.lists.probes;
    d["probed_rows"] = report.scan.probed_rows;
    d["uncertified"] = uncertified(report);
  }
  if (report.graph.ef > 0) {
    d["ef"] = report.graph.ef;
    d["probed_rows"] = report.scan.probed_rows;
  }
  if (report.lists.count > 0 || report.codes.parts > 0 || report.graph.ef > 0)
    d["short_queries"] = report.short_queries;
  if (report.shards.count > 0) {
    d["shards"] = report.shards.count;
    d["replicas"] = report.shards.replicas;
    d["merge_seconds"] = report.shards.merge_seconds;
  }
  if (!report.shards.unsearched_shards.empty()) {
    d["unsearched_rows"] = report.shards.unsearched_rows;
    nb::list names;
    for (const std::string& name : report.shards.unsearched_shards) names.append(name);
    d["unsearched_shards"] = names;
  }
  if (!report.note.empty()) d["note"] = report.note;
  if (report.method == "threshold-heap") {
    d["samples"] = report.threshold_heap.samples;
    d["compression_ratio"] = report.threshold_heap.compression_ratio;
    d["threshold_ratio"] = report.threshold_heap.threshold_ratio;
    d["sampling_seconds"] = report.threshold_heap.sampling_seconds;
    d["sorting_seconds"] = report.threshold_heap.sorting_seconds;
  }
  d["memory_bytes"] = report.memory_bytes;
  d["multiply_adds"] = report.scan.multiply_adds;
  if (report.scan.prefix_columns > 0) d["prefix_columns"] = report.scan.prefix_columns;
  if (report.scan.prefix_columns > 0) d["clusters"] = report.scan.clusters;
  if (report.scan.leaves > 0) d["leaves"] = report.scan.leaves;
  if (report.scan.joined) d["joined"] = true;
  d["group"] = report.scan.group;
  d["tile_rows"] = report.scan.tile_rows;
  d["parts"] = report.scan.parts;
  d["guessed"] = report.scan.guessed;
  d["bytes_read"] = report.scan.bytes_read;
  d["version"] = report.version;
  return d;
}

}  // namespace

void bind_reports(nb::module_& m) {
  nb::class_<KnnReport>(m, "SearchReport").def("as_dict", &dict_of);
  nb::class_<detail::FewRowsFacts>(m, "FewRowsReport")
      .def("as_dict", [](const detail::FewRowsFacts& facts) { return dict_of(facts.report()); });
}

}  // namespace knear::python
