#include "cli/prediction.hpp"

#include <algorithm>

#include "cli/output.hpp"

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

}  // namespace

Prediction predict(const KnnReport& report, const KnownPeaks& machine) {
  const ScanOp op = op_of(report.first_pass);
  ScanShape shape{.rows = report.rows,
                  .dim = report.prefix_columns > 0 ? report.prefix_columns : report.dim,
                  .queries = report.queries,
                  .k = report.k,
                  .bytes_per_element = op == ScanOp::int8    ? 1.0
                                       : op == ScanOp::int16 ? 2.0
                                                             : 4.0,
                  .op = op,
                  .whole = report.survivors_per_query == 0,
                  .threads = report.threads};
  Prediction out;
  out.cost = predict_scan(shape, machine.peaks);
  out.measured_peaks = machine.measured;
  const double peak_seconds = 2.0 * double(report.rows) * double(report.queries) *
                              double(shape.dim) / peak_of(op, machine.peaks);
  out.peak_fraction = report.seconds > 0 ? peak_seconds / report.seconds : 0;
  out.peak_name = fmt::format("{} multiply-adds", name_of(op));
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
                       .whole = report.survivors_per_query == 0},
                      machine.peaks);
}

std::vector<std::vector<std::string>> explain_lines(const KnnReport& report,
                                                    const Prediction& prediction) {
  const ScanCost& cost = prediction.cost;
  const double queries = double(std::max<std::int64_t>(report.queries, 1));
  const std::string none = "";
  return {
      {none, "planned", "happened"},
      {"first pass", none, report.first_pass + (report.centred ? ", centred" : "")},
      {"limit", cost.limit, none},
      {"seconds", readable_seconds(cost.seconds), readable_seconds(report.seconds)},
      {"  multiply-adds", readable_seconds(cost.multiply_add_seconds), none},
      {"  coefficient-wise operations", readable_seconds(cost.coefficient_wise_seconds), none},
      {"  or memory", readable_seconds(cost.memory_seconds), none},
      {"  selection", readable_seconds(cost.selection_seconds), none},
      {"  rescoring", readable_seconds(cost.rescore_seconds), none},
      {"  packing", readable_seconds(cost.packing_seconds), none},
      {"  scan, all threads", none, readable_seconds(report.scan_seconds)},
      {"  rescoring, all threads", none, readable_seconds(report.rescore_seconds)},
      {"packing the base", none, readable_seconds(report.prepare_seconds)},
      {"share of the machine's peak", none,
       fmt::format("{:.0f} % of {}", 100 * prediction.peak_fraction, prediction.peak_name)},
      {"multiply-adds", readable_count(cost.multiply_adds), readable_count(report.multiply_adds)},
      {"bytes read", readable_bytes(cost.bytes), readable_bytes(report.bytes_read)},
      {"coefficient-wise operations of scores", readable_count(cost.cops), none},
      {"hits per query", none, readable_count(report.hits_per_query)},
      {"survivors per query", none, readable_count(report.survivors_per_query)},
      {"queries that fell back", none, readable_count(double(report.fallback_queries))},
      {"certified exact", none,
       fmt::format("{:.4g} %", 100 * double(report.certified_queries) / queries)},
      {"memory", none, readable_bytes(double(report.memory_bytes))}};
}

}  // namespace knear::cli
