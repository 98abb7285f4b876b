// cli/bench_neighbors.cpp -- `knear bench neighbors`: the time of an exact search for more and more
// neighbours, beside that of its multiply-adds and of reading all scores once (Johnson et al.,
// Figure 4).
#include <algorithm>
#include <memory>
#include "cli/arguments.hpp"
#include "cli/bench.hpp"
#include "cli/bench_vectors.hpp"
#include "cli/demo_report.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "cli/svg.hpp"
#include "knear/core/json.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

struct NeighborsBench {
  VectorOptions vectors;
  std::string report, device = "cpu";
  std::int64_t most = 1024, count = 10000, threads = 0, repeat = 3;
  bool json = false;
};

struct Timing {
  std::int64_t k = 0;
  double seconds = 0;
  KnnReport report;
};

// k = 1, 2, 4, ..., which take turns.
std::vector<Timing> measure(const NeighborsBench& bench, AnyMatrixView base, AnyMatrixView queries,
                            const KnnOptions& options) {
  std::vector<Timing> out;
  std::vector<std::vector<double>> seconds;
  for (std::int64_t k = 1; k <= std::min(bench.most, base.rows()); k *= 2)
    out.push_back({k, 0, {}}), seconds.emplace_back();
  const ExactSearcher searcher(base, options);
  ProgressBar bar;
  for (std::int64_t round = -1; round < bench.repeat;
       ++round)  // the first packs, and does not count
    for (std::size_t i = 0; i < out.size(); ++i) {
      check_interrupt();
      bar.show("bench", (static_cast<double>(round + 1) +
                         static_cast<double>(i) / static_cast<double>(out.size())) /
                            static_cast<double>(bench.repeat + 1));
      const double each =
          seconds_of([&] { searcher.search(queries, out[i].k, options, &out[i].report); });
      if (round >= 0) seconds[i].push_back(each);
    }
  for (std::size_t i = 0; i < out.size(); ++i) out[i].seconds = median(seconds[i]);
  return out;
}

void run_neighbors(const NeighborsBench& bench) {
  check_positive("--most", bench.most);
  check_positive("--count", bench.count);
  check_positive("--repeat", bench.repeat);
  check(bench.vectors);
  check_no_device(bench.device, "bench neighbors");
  KnnOptions options{.metric = parse_metric(bench.vectors.metric),
                     .threads = checked_threads(bench.threads)};
  check_output("--report", bench.report, {".html"}, {bench.vectors.base, bench.vectors.queries});
  const CatchInterrupts guard;
  const BenchVectors vectors(bench.vectors, bench.count);
  const AnyMatrixView base = vectors.base(), queries = vectors.queries();
  if (!bench.json)
    print_now("exact search, {} x {} {}{}, {} queries, {}, {} threads, {} rounds\n\n",
              grouped(base.rows()), base.cols(), name_of(base.type()),
              bench.vectors.made() ? " (made)" : "", grouped(queries.rows()), bench.vectors.metric,
              options.threads, bench.repeat);
  const KnownPeaks machine = measure_and_keep_peaks(options.threads, 1.5);
  const std::vector<Timing> timings = measure(bench, base, queries, options);
  const double pairs = static_cast<double>(base.rows()) * static_cast<double>(queries.rows());
  const double products = 2 * pairs * static_cast<double>(base.cols()) / machine.peaks.int8_ops,
               reading = 4 * pairs / machine.peaks.memory_bytes_per_second;
  if (bench.json) {
    auto points = nlohmann::ordered_json::array();
    for (const Timing& at : timings)
      points.push_back({{"k", at.k},
                        {"seconds", at.seconds},
                        {"first_pass", at.report.scan.first_pass},
                        {"prefix_columns", at.report.scan.prefix_columns}});
    const nlohmann::ordered_json out = {{"bench", "neighbors"},
                                        {"rows", base.rows()},
                                        {"dim", base.cols()},
                                        {"queries", queries.rows()},
                                        {"metric", bench.vectors.metric},
                                        {"threads", options.threads},
                                        {"int8_seconds", products},
                                        {"score_reading_seconds", reading},
                                        {"points", points}};
    print("{}\n", out.dump(2));
  } else {
    std::vector<std::vector<std::string>> lines{
        {"k", "seconds", "of 8-bit products", "of reading scores", "first pass"}};
    for (const Timing& at : timings)
      lines.push_back({fmt::format("{}", at.k), readable_seconds(at.seconds),
                       fmt::format("{:.2f} x", at.seconds / products),
                       fmt::format("{:.2f} x", at.seconds / reading),
                       at.report.scan.prefix_columns > 0
                           ? fmt::format("{} of {} columns", at.report.scan.first_pass,
                                         at.report.scan.prefix_columns)
                           : at.report.scan.first_pass});
    print(
        "{}\nall products in 8 bits at this machine's peak  {}\nreading a float32 score of each "
        "pair once      {}\n",
        format_table(lines), readable_seconds(products), readable_seconds(reading));
  }
  if (bench.report.empty()) return;
  std::vector<ChartCurve> curves{
      {"exact search", {}}, {"8-bit products at peak", {}}, {"reading all scores", {}}};
  for (const Timing& at : timings) {
    const auto k = static_cast<double>(at.k);
    curves[0].points.push_back({k, at.seconds});
    curves[1].points.push_back({k, products});
    curves[2].points.push_back({k, reading});
  }
  const std::string html = fmt::format(
      "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<title>knear: exact "
      "search and k</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n<h1>Exact search for more "
      "and more neighbours</h1>\n<p>{} x {}, {} queries, {}, {} threads.</p>\n<section "
      "class='pair'>{}</section>\n<footer>Made by <code>knear bench neighbors</code>."
      "</footer>\n</main>\n</body>\n</html>\n",
      page_style(), grouped(base.rows()), base.cols(), grouped(queries.rows()),
      bench.vectors.metric, options.threads, curve_chart(curves, {"k", true}, {"seconds", true}));
  io::AtomicFile file(bench.report);
  file.write(html.data(), html.size());
  file.commit();
  if (!bench.json) print("plot     {}\n", bench.report);
}

}  // namespace

void add_bench_neighbors(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "neighbors", "How does the time of an exact search grow with the neighbours?");
  auto arguments = std::make_shared<NeighborsBench>();
  add_vector_options(*command, arguments->vectors);
  add_whole(*command, "--count", arguments->count, "of the made queries (default 10000)");
  add_whole(*command, "--most", arguments->most, "neighbours, from 1 by doubling (default 1024)");
  command->add_option("--report", arguments->report, "a page with the plot to write, .html")
      ->type_name("FILE");
  add_no_device(*command, arguments->device);
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  add_whole(*command, "--repeat", arguments->repeat,
            "number of rounds; the median counts (default 3)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "Example:\n  knear bench neighbors --base base.fvecs --queries queries.fvecs --most 256");
  command->callback([=] { run_neighbors(*arguments); });
}

}  // namespace knear::cli
