// cli/bench_kmeans.cpp -- `knear bench kmeans`: k-means over all rows by one thread and by all, for
// some numbers of centroids (Johnson et al., Table 1, which has 8.1 million images, 20 iterations
// and 1 or 4 GPUs).
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
#include "knear/cluster/k_means.hpp"
#include "knear/core/json.hpp"

namespace knear::cli {
namespace {

struct KMeansBench {
  VectorOptions vectors;
  std::vector<std::int64_t> centroids{256, 4096};
  std::string device = "cpu";
  std::int64_t iterations = 20, threads = 0;
  bool json = false;
};

struct Line {
  std::int64_t centroids = 0;
  int threads = 0;
  double seconds = 0, objective = 0, products = 0;  // products: seconds at the peak
};

void run_kmeans_bench(const KMeansBench& bench) {
  for (const std::int64_t k : bench.centroids) check_positive("-k", k);
  check_positive("--iterations", bench.iterations);
  check(bench.vectors);
  check_no_device(bench.device, "bench kmeans");
  const Metric metric = parse_metric(bench.vectors.metric);
  const int all = checked_threads(bench.threads);
  const CatchInterrupts guard;
  const BenchVectors vectors(bench.vectors, 1);
  const AnyMatrixView base = vectors.base();
  for (const std::int64_t k : bench.centroids)
    if (k > base.rows()) throw InvalidArgument("-k is {}, but there are {} rows", k, base.rows());
  std::vector<int> counts{1};
  if (all > 1) counts.push_back(all);
  if (!bench.json)
    print_now("k-means, {} x {} {}{}, {}, {} iterations\n\n", grouped(base.rows()), base.cols(),
              name_of(base.type()), bench.vectors.made() ? " (made)" : "", bench.vectors.metric,
              bench.iterations);
  std::vector<Line> lines;
  ProgressBar bar;
  for (const int threads : counts) {
    const KnownPeaks machine = measure_and_keep_peaks(threads, 1.0);
    for (const std::int64_t k : bench.centroids) {
      KMeans found;
      KMeansOptions options{.metric = metric, .threads = threads, .progress = bar.callback()};
      options.iterations = static_cast<int>(std::min<std::int64_t>(bench.iterations, 1 << 30));
      Line line{k, threads, seconds_of([&] { found = k_means(base, k, options); }), 0, 0};
      line.objective = found.steps.back().objective;
      line.products = 2.0 * static_cast<double>(base.rows()) * static_cast<double>(k) *
                      static_cast<double>(base.cols()) * static_cast<double>(found.steps.size()) /
                      machine.peaks.int8_ops;
      lines.push_back(line);
    }
  }
  bar.clear();
  if (bench.json) {
    auto out = nlohmann::ordered_json::array();
    for (const Line& line : lines)
      out.push_back({{"k", line.centroids},
                     {"threads", line.threads},
                     {"seconds", line.seconds},
                     {"objective", line.objective},
                     {"int8_seconds", line.products}});
    print("{}\n", nlohmann::ordered_json{{"bench", "kmeans"},
                                         {"rows", base.rows()},
                                         {"dim", base.cols()},
                                         {"iterations", bench.iterations},
                                         {"metric", bench.vectors.metric},
                                         {"runs", out}}
                      .dump(2));
    return;
  }
  std::vector<std::vector<std::string>> table{
      {"centroids", "threads", "seconds", "of 8-bit products", "objective"}};
  for (const Line& line : lines)
    table.push_back({fmt::format("{}", line.centroids), fmt::format("{}", line.threads),
                     readable_seconds(line.seconds),
                     fmt::format("{:.2f} x", line.seconds / line.products),
                     fmt::format("{:.6g}", line.objective)});
  print("{}", format_table(table));
}

}  // namespace

void add_bench_kmeans(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("kmeans", "How long does k-means take, by one thread and by all?");
  auto arguments = std::make_shared<KMeansBench>();
  arguments->vectors.base_alone = true;
  add_vector_options(*command, arguments->vectors);
  command->add_option("-k", arguments->centroids, "centroids, once or more (default 256 4096)")
      ->type_name("N");
  add_whole(*command, "--iterations", arguments->iterations, "of each run (default 20)");
  add_no_device(*command, arguments->device);
  add_whole(*command, "--threads", arguments->threads, "threads of the second row (default: all)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer("Example:\n  knear bench kmeans --base base.fvecs -k 256 -k 4096");
  command->callback([=] { run_kmeans_bench(*arguments); });
}

}  // namespace knear::cli
