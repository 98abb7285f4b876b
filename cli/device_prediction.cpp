#include "cli/device_prediction.hpp"

#include <algorithm>

#include "cli/output.hpp"

namespace knear::cli {

std::string place_of(const std::string& device, const KnnReport& report) {
  return device == "auto" ? report.device.name : device;
}

bool has_device_plan(const KnnReport& report) {
  return report.lists.count == 0 && report.codes.parts == 0 && report.graph.ef == 0 &&
         report.method != name_of(Method::threshold_heap);
}

DevicePrediction predict_on_device(const KnnReport& report, ElementType type, std::int64_t memory,
                                   const DevicePeaks& device, const KnownPeaks& processor) {
  DeviceShape shape{.rows = report.allowed_rows == 0 ? 0 : report.rows,
                    .dim = std::max<std::int64_t>(1, report.dim),
                    .queries = report.queries,
                    .k = std::max<std::int64_t>(1, report.k),
                    .bytes_per_element = double(size_of(type)),
                    .whole = report.scan.first_pass == name_of(FirstPass::integer),
                    .allowed = std::max<std::int64_t>(0, report.allowed_rows),
                    .memory = double(memory)};
  return {device, faster_place(shape, device, processor.peaks), processor.measured};
}

std::vector<std::vector<std::string>> explain_lines(const KnnReport& report,
                                                    const DevicePrediction& prediction) {
  const DeviceCost& cost = prediction.place.device;
  const std::string none = "";
  const double happened = report.prepare_seconds + report.seconds;
  const double peak = prediction.device.int8_ops();
  const double queries = double(std::max<std::int64_t>(report.queries, 1));
  const auto planned = [&](double seconds) {
    return fmt::format("{}, {:.0f} %", readable_seconds(seconds),
                       cost.seconds > 0 ? 100 * seconds / cost.seconds : 0);
  };
  const auto share_of = [&](double seconds) {
    return fmt::format("{}, {:.0f} %", readable_seconds(seconds),
                       happened > 0 ? 100 * seconds / happened : 0);
  };
  const double brought = cost.upload_seconds + cost.coding_seconds;
  return {
      {none, "planned", "happened"},
      {"device", prediction.device.name, report.device.name},
      {"first pass", none, report.scan.first_pass},
      {"limit", cost.limit, none},
      {"seconds", readable_seconds(cost.seconds), readable_seconds(happened)},
      {"  rows brought and coded", planned(brought), share_of(report.prepare_seconds)},
      {"    over the bus", readable_seconds(cost.upload_seconds), none},
      {"    coding", readable_seconds(cost.coding_seconds), none},
      {"    meanwhile searched", readable_seconds(cost.overlapped_seconds), none},
      {"  the search", planned(cost.seconds - brought + cost.overlapped_seconds),
       share_of(report.seconds)},
      {"    queries", readable_seconds(cost.query_seconds), none},
      {"    scan", readable_seconds(cost.scan_seconds), none},
      {"      multiply-adds", readable_seconds(cost.multiply_add_seconds), none},
      {"      or instructions", readable_seconds(cost.instruction_seconds), none},
      {"      or shared memory", readable_seconds(cost.shared_seconds), none},
      {"      or second-level cache", readable_seconds(cost.l2_seconds), none},
      {"      or device memory", readable_seconds(cost.memory_seconds), none},
      {"    selection", readable_seconds(cost.selection_seconds), none},
      {"    rescoring in float64", readable_seconds(cost.rescore_seconds), none},
      {"    launches", readable_seconds(cost.launch_seconds), none},
      {"    answers", readable_seconds(cost.download_seconds), none},
      {"share of the device's peak", none,
       fmt::format("{:.0f} % of int8 multiply-adds",
                   report.seconds > 0 ? 100 * 2 * cost.multiply_adds / peak / report.seconds : 0)},
      {"instructions a score", fmt::format("{:.3g}", cost.instructions_per_score), none},
      {"multiply-adds", readable_count(cost.multiply_adds),
       readable_count(report.scan.multiply_adds)},
      {"bytes over the bus", readable_bytes(cost.bus_bytes), none},
      {"bytes read from device memory", readable_bytes(cost.bytes), none},
      {"steps of the scan", fmt::format("{}", cost.steps), none},
      {"chunks of the base", fmt::format("{}", cost.chunks), fmt::format("{}", report.scan.chunks)},
      {"survivors per query", none, readable_count(report.scan.survivors_per_query)},
      {"queries that fell back", none, readable_count(double(report.scan.fallback_queries))},
      {"queries scanned again", none, readable_count(double(report.scan.repeated_queries))},
      {"certified exact", none,
       fmt::format("{:.4g} %", 100 * double(report.promise.certified_queries) / queries)},
      {"memory", none, readable_bytes(double(report.memory_bytes))},
      {"memory of the device", readable_bytes(cost.device_bytes),
       readable_bytes(double(report.device.bytes))}};
}

std::string explain_place(const DevicePrediction& prediction) {
  const FasterPlace& place = prediction.place;
  const double here = place.processor.seconds, there = place.device.seconds;
  std::string out = fmt::format("The processor is predicted to take {}", readable_seconds(here));
  if (here > 0 && there > 0)
    out += place.device_is_faster
               ? fmt::format(", {:.2g} times as long", here / there)
               : fmt::format(": the device takes {:.2g} times as long", there / here);
  out +=
      ".\nThe plan of the device stands on data sheets, its machine code, what an H100 was "
      "measured "
      "to take and guesses: nothing was measured on this one.\n";
  if (!prediction.measured_processor)
    out +=
        "That of the processor stands on estimated peaks: 'knear roofline' measures this "
        "machine.\n";
  return out;
}

}  // namespace knear::cli
