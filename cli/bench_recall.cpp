// cli/bench_recall.cpp -- `knear bench recall`: recall against time of some indexes, as a table and
// as a plot (TPU-KNN, Figure 3); with --graph of the neighbours of all rows among themselves,
// building included (Johnson et al., Figure 5).
#include <algorithm>
#include <memory>
#include "cli/arguments.hpp"
#include "cli/bench.hpp"
#include "cli/bench_vectors.hpp"
#include "cli/demo_report.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "cli/recall_curve.hpp"
#include "cli/svg.hpp"
#include "knear/core/json.hpp"
#include "knear/factory/factory.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

struct RecallBench {
  VectorOptions vectors;
  std::vector<std::string> indexes;
  std::string report, device = "cpu";
  std::int64_t k = 10, count = 10000, probes = 256, alone = 200, threads = 0, repeat = 3;
  bool graph = false, json = false;
};

void check(const RecallBench& bench) {
  check_positive("-k", bench.k);
  check_positive("--count", bench.count);
  check_positive("--probes", bench.probes);
  check_positive("--repeat", bench.repeat);
  if (bench.alone < 0)
    throw InvalidArgument("--alone must not be negative, but is {}", bench.alone);
  check(bench.vectors);
  check_no_device(bench.device, "bench recall");
  for (const std::string& index : bench.indexes)
    if (index != partial_reduce_curve) learns(index);
  if (bench.indexes.size() > 8)
    throw InvalidArgument("--index is given {} times, where a plot has 8 lines at most",
                          bench.indexes.size());
}

// The true neighbours of the queries, or with --graph of the first rows, without themselves.
Matrix<Id> truth_of(const RecallBench& bench, AnyMatrixView base, AnyMatrixView queries,
                    Metric metric, int threads, const Progress& progress) {
  const KnnOptions options{.metric = metric, .threads = threads, .progress = progress};
  if (!bench.graph) return knn(queries, base, bench.k, options).ids;
  const std::int64_t known = std::min(bench.count, base.rows());
  const Matrix<Id> with = knn(base.rows(0, known), base, bench.k + 1, options).ids;
  Matrix<Id> out(known, bench.k);
  for (std::int64_t q = 0; q < known; ++q) {
    const Id* const row = with.row(q);
    std::remove_copy(row,
                     std::find(row, row + bench.k + 1, q) == row + bench.k + 1 ? row + bench.k
                                                                               : row + bench.k + 1,
                     out.row(q), q);
  }
  return out;
}

nlohmann::ordered_json as_json(const RecallCurveOf& curve, std::int64_t rows,
                               std::int64_t queries) {
  auto points = nlohmann::ordered_json::array();
  for (const RecallCurvePoint& point : curve.points) {
    nlohmann::ordered_json one = {
        {"probes", point.probes},
        {"recall", point.recall},
        {"recall_interval", {point.interval.low, point.interval.high}},
        {"seconds", point.seconds},
        {"queries_per_second", static_cast<double>(queries) / point.seconds}};
    if (point.asked > 0) one["asked_recall"] = point.asked;
    if (point.alone_seconds > 0) one["alone_seconds"] = point.alone_seconds;
    points.push_back(std::move(one));
  }
  return {{"index", curve.factory},
          {"build_seconds", curve.build_seconds},
          {"memory_bytes", curve.memory_bytes},
          {"bytes_per_row", static_cast<double>(curve.memory_bytes) / static_cast<double>(rows)},
          {"points", std::move(points)}};
}

void print_built(const RecallCurveOf& curve, std::int64_t rows) {
  print_now("{}: built in {}, {:.1f} bytes a row\n", curve.factory,
            readable_seconds(curve.build_seconds),
            static_cast<double>(curve.memory_bytes) / static_cast<double>(rows));
}

void print_curves(const std::vector<RecallCurveOf>& curves, const RecallBench& bench,
                  std::int64_t queries) {
  std::vector<std::vector<std::string>> lines{{"index", "probes or recall asked",
                                               fmt::format("recall@{}", bench.k), "queries/s",
                                               bench.graph ? "with building" : "one alone"}};
  for (const RecallCurveOf& curve : curves) {
    for (const RecallCurvePoint& point : curve.points)
      lines.push_back({curve.factory,
                       point.asked > 0    ? fmt::format("recall {:g}", point.asked)
                       : point.probes > 0 ? fmt::format("{}", point.probes)
                                          : "-",
                       fmt::format("{:.4f}", point.recall),
                       grouped(std::llround(static_cast<double>(queries) / point.seconds)),
                       bench.graph ? readable_seconds(curve.build_seconds + point.seconds)
                       : point.alone_seconds > 0 ? readable_seconds(point.alone_seconds)
                                                 : ""});
  }
  print("\n{}", format_table(lines));
}

void write_page(const RecallBench& bench, const std::string& what,
                const std::vector<RecallCurveOf>& curves, std::int64_t queries) {
  const std::string title = bench.graph ? "Building a graph of neighbours" : "Recall and speed";
  const std::string html = fmt::format(
      "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<meta name='viewport' "
      "content='width=device-width, initial-scale=1'>\n<title>knear: {0}</title>\n<style>{1}"
      "</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p>{2}. Each point is a number of probes: "
      "1, 2, 4, ...; of partial-reduce, a recall that was asked for.</p>\n<section "
      "class='pair'>{3}</section>\n<footer>Made by <code>knear bench "
      "recall</code>.</footer>\n</main>\n</body>\n</html>\n",
      title, page_style(), escaped(what), recall_chart(curves, queries, bench.k, bench.graph));
  io::AtomicFile file(bench.report);
  file.write(html.data(), html.size());
  file.commit();
}

void run_recall(RecallBench bench) {
  bench.vectors.base_alone = bench.graph;
  check(bench);
  const Metric metric = parse_metric(bench.vectors.metric);
  const int threads = checked_threads(bench.threads);
  check_output("--report", bench.report, {".html"}, {bench.vectors.base, bench.vectors.queries});
  const CatchInterrupts guard;
  const BenchVectors vectors(bench.vectors, bench.count);
  const AnyMatrixView base = vectors.base();
  const AnyMatrixView queries = bench.graph ? base : vectors.queries();
  if (base.rows() <= bench.k)
    throw InvalidArgument("-k is {}, but there are {} rows", bench.k, base.rows());
  const std::string what = fmt::format(
      "{} x {} {}{}, {} queries, k = {}, {}, {} threads, {} rounds", grouped(base.rows()),
      base.cols(), name_of(base.type()), bench.vectors.made() ? " (made)" : "",
      grouped(queries.rows()), bench.k, bench.vectors.metric, threads, bench.repeat);
  if (!bench.json) print_now("{}\n", what);
  ProgressBar bar;
  Matrix<Id> truth;
  double exact_seconds =
      seconds_of([&] { truth = truth_of(bench, base, queries, metric, threads, bar.callback()); });
  exact_seconds *= static_cast<double>(queries.rows()) / static_cast<double>(truth.rows());
  RecallCurveJob job{.base = base, .queries = queries, .truth = truth.view()};
  job.k = bench.k, job.metric = metric, job.most_probes = bench.probes, job.repeat = bench.repeat;
  job.queries_alone = bench.graph ? 0 : bench.alone;
  job.of_itself = bench.graph, job.threads = threads, job.progress = bar.callback();
  std::vector<std::string> indexes = bench.indexes;
  if (indexes.empty()) indexes = usual_indexes(base.rows(), base.cols());
  if (const double seconds = searching_seconds(indexes, job, exact_seconds);
      !bench.json && seconds > announced_seconds) {
    bar.clear();
    print_now("searching takes up to {}, after building {} indexes\n", readable_seconds(seconds),
              indexes.size());
  }
  if (!bench.json) print_now("\n");
  std::vector<RecallCurveOf> curves;
  for (const std::string& index : indexes) {
    curves.push_back(measure_recall_curve(index, job));
    bar.clear();
    if (!bench.json) print_built(curves.back(), base.rows());
  }
  if (bench.json) {
    nlohmann::ordered_json out = {{"bench", "recall"},
                                  {"rows", base.rows()},
                                  {"dim", base.cols()},
                                  {"type", name_of(base.type())},
                                  {"metric", bench.vectors.metric},
                                  {"queries", queries.rows()},
                                  {"k", bench.k},
                                  {"graph", bench.graph},
                                  {"threads", threads},
                                  {"indexes", nlohmann::ordered_json::array()}};
    for (const RecallCurveOf& curve : curves)
      out["indexes"].push_back(as_json(curve, base.rows(), queries.rows()));
    print("{}\n", out.dump(2));
  } else {
    print_curves(curves, bench, queries.rows());
  }
  if (bench.report.empty()) return;
  write_page(bench, what, curves, queries.rows());
  if (!bench.json) print("\nplot     {}\n", bench.report);
}

}  // namespace

void add_bench_recall(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("recall", "What do inverted lists and codes find, and how fast?");
  auto arguments = std::make_shared<RecallBench>();
  add_vector_options(*command, arguments->vectors);
  add_whole(*command, "--count", arguments->count,
            "of the made queries, or with --graph of the rows whose neighbours are checked "
            "(default 10000)");
  command
      ->add_option("--index", arguments->indexes,
                   "kind of index, as for build, or partial-reduce; once or more (default: Flat, "
                   "partial-reduce and lists of vectors and codes)")
      ->type_name("KIND");
  add_whole(*command, "-k", arguments->k, "neighbours per query (default 10)");
  add_whole(*command, "--probes", arguments->probes, "at most (default 256)");
  add_whole(*command, "--alone", arguments->alone,
            "queries that are also searched for one by one, by one thread (default 200)");
  command->add_flag("--graph", arguments->graph,
                    "the neighbours of all rows among themselves, building included");
  command->add_option("--report", arguments->report, "a page with the plot to write, .html")
      ->type_name("FILE");
  add_no_device(*command, arguments->device);
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  add_whole(*command, "--repeat", arguments->repeat,
            "number of rounds; the median counts (default 3)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "Example:\n  knear bench recall --base base.fvecs --queries queries.fvecs "
      "--index IVF1024,Flat --index IVF1024,PQ32 --report recall.html");
  command->callback([=] { run_recall(*arguments); });
}

}  // namespace knear::cli
