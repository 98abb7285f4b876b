// cli/bench.cpp -- `knear bench NAME`: measurements that answer one question each.
//
//   exact   Which first pass is the fastest on these vectors, and how near to the machine's peak?
//   All
//           passes take turns, those of a GPU too if one is named; the median of several rounds
//           counts, and every answer is compared with the first one, bit by bit, so that no wrong
//           pass is measured.
#include <algorithm>
#include <cstring>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/bench.hpp"
#include "cli/bench_vectors.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/prediction.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::cli {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

bool same_bits(const Neighbors& a, const Neighbors& b) {
  const std::size_t count = a.ids.rows() * a.ids.cols();
  return std::memcmp(a.ids.data(), b.ids.data(), count * sizeof(Id)) == 0 &&
         std::memcmp(a.distances.data(), b.distances.data(), count * sizeof(float)) == 0;
}

void add_device(CLI::App& bench, std::string& device) {
  bench
      .add_option("--device", device,
                  "cuda or cuda:N: search there too, beside the processor (default: cpu alone)")
      ->type_name("D");
}
void add_no_device(CLI::App& bench, std::string& device) {
  bench.add_option("--device", device, "cpu, which is all that this bench has")->type_name("D");
}
void check_no_device(const std::string& device, std::string_view bench) {
  detail::check_processor(device, bench);
}

namespace {

struct ExactBench {
  VectorOptions vectors;
  std::string device = "cpu";
  std::int64_t k = 10, threads = 0, repeat = 5, count = 1000;
  bool prepared = false, json = false;
};

// The figures of one first pass; no seconds where the vectors do not allow it.
struct PassFigures {
  FirstPass pass = FirstPass::automatic;
  std::optional<bool> refine = {};
  std::string device = "cpu";
  std::vector<double> seconds = {};  // packing the base and searching, one per round
  KnnReport report = {};
  std::string refusal = {};

  bool here() const { return device == "cpu"; }
  std::string name() const {
    const std::string pass_name(name_of(pass));
    return here() ? pass_name : fmt::format("{} on {}", pass_name, device);
  }
};

void check(const ExactBench& bench) {
  check_positive("-k", bench.k);
  check_positive("--repeat", bench.repeat);
  check_positive("--count", bench.count);
  check(bench.vectors);
  check_one_device(bench.device);
}

std::vector<PassFigures> time_passes(const ExactBench& bench, AnyMatrixView queries,
                                     AnyMatrixView base, KnnOptions options) {
  std::vector<PassFigures> all;
  for (FirstPass pass : {FirstPass::automatic, FirstPass::integer, FirstPass::int8,
                         FirstPass::int16, FirstPass::fp32, FirstPass::prefix})
    all.push_back({.pass = pass});
  for (const bool refine : {true, false})
    all.push_back({.pass = FirstPass::int8, .refine = refine});
  all.push_back({.pass = FirstPass::prefix, .refine = false});
  if (bench.device != "cpu")  // all passes that it has
    for (FirstPass pass : {FirstPass::automatic, FirstPass::integer, FirstPass::int8})
      all.push_back({.pass = pass, .device = bench.device});
  ProgressBar bar;
  options.progress = [](std::string_view, double) { return !interrupted(); };
  std::optional<Neighbors> expected;
  // A round before the others packs what a search keeps.
  std::vector<std::unique_ptr<ExactSearcher>> searchers(all.size());
  for (std::int64_t round = bench.prepared ? -1 : 0; round < bench.repeat; ++round)
    for (PassFigures& figures : all) {
      if (!figures.refusal.empty()) continue;
      bar.show(figures.name(), double(std::max<std::int64_t>(0, round)) / double(bench.repeat));
      options.first_pass = figures.pass, options.tuning.refine = figures.refine;
      options.device = figures.device;
      try {
        auto& searcher = searchers[&figures - all.data()];
        if (bench.prepared && !searcher) searcher = std::make_unique<ExactSearcher>(base, options);
        Neighbors near;
        const double seconds = seconds_of([&] {
          near = searcher ? searcher->search(queries, bench.k, options, &figures.report)
                          : knn(queries, base, bench.k, options, &figures.report);
        });
        if (round >= 0) figures.seconds.push_back(seconds);
        if (!expected)
          expected = std::move(near);
        else if (!same_bits(*expected, near))
          throw Error(fmt::format("first pass {} gave another answer", figures.name()));
      } catch (const InvalidArgument& refusal) {
        // Only a pass that was asked for by name may refuse; bad input fails with all of them.
        if (figures.pass == FirstPass::automatic) throw;
        figures.refusal = refusal.what();
      }
    }
  return all;
}

void print_table(const std::vector<PassFigures>& all, const KnownPeaks& machine) {
  std::vector<std::vector<std::string>> table{{"first pass", "median", "fastest", "queries/s",
                                               "of peak", "packing", "hits/query",
                                               "survivors/query", "fell back"}};
  std::string refusals;
  for (const PassFigures& figures : all) {
    const KnnReport& report = figures.report;
    std::string name = figures.name();
    if (!figures.refusal.empty()) {
      refusals += fmt::format("{}: {}\n", name, figures.refusal);
      continue;
    }
    if (figures.pass == FirstPass::automatic) name += fmt::format(" ({})", report.scan.first_pass);
    if (figures.refine) name += *figures.refine ? ", refine=on" : ", refine=off";
    const double seconds = median(figures.seconds);
    table.push_back(
        {name, readable_seconds(seconds),
         readable_seconds(*std::min_element(figures.seconds.begin(), figures.seconds.end())),
         readable_count(double(report.queries) / seconds),
         figures.here() ? fmt::format("{:.0f} %", 100 * predict(report, machine).peak_fraction)
                        : "-",
         readable_seconds(report.prepare_seconds), readable_count(report.scan.hits_per_query),
         readable_count(report.scan.survivors_per_query),
         readable_count(double(report.scan.fallback_queries))});
  }
  print("{}", format_table(table));
  if (!refusals.empty()) print("\n{}", refusals);
  print(
      "\nSame answers from all, bit by bit. Of peak: multiply-adds of the pass against the best "
      "rate measured on this machine's processor, in the last round, packing left out. Fell back: "
      "queries that a wider pass, or instead of a GPU the processor, had to answer.\n");
}

void print_json(const std::vector<PassFigures>& all, const KnownPeaks& machine) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const PassFigures& figures : all) {
    nlohmann::ordered_json line{{"asked", name_of(figures.pass)}};
    line["device"] = figures.device;
    if (figures.refine) line["refine"] = *figures.refine ? "on" : "off";
    if (!figures.refusal.empty()) {
      line["refusal"] = figures.refusal;
    } else {
      const KnnReport& report = figures.report;
      const double seconds = median(figures.seconds);
      line["first_pass"] = report.scan.first_pass;
      line["seconds"] = seconds;
      line["all_seconds"] = figures.seconds;
      line["queries_per_second"] = double(report.queries) / seconds;
      line["prepare_seconds"] = report.prepare_seconds;
      line["peak_fraction"] = nullptr;
      if (figures.here()) line["peak_fraction"] = predict(report, machine).peak_fraction;
      line["hits_per_query"] = report.scan.hits_per_query;
      line["refined_per_query"] = report.scan.refined_per_query;
      line["survivors_per_query"] = report.scan.survivors_per_query;
      line["fallback_queries"] = report.scan.fallback_queries;
    }
    out.push_back(std::move(line));
  }
  const KnnReport& report = all.front().report;
  print("{}\n", nlohmann::ordered_json{{"bench", "exact"},
                                       {"rows", report.rows},
                                       {"dim", report.dim},
                                       {"queries", report.queries},
                                       {"k", report.k},
                                       {"metric", name_of(report.metric)},
                                       {"threads", report.threads},
                                       {"isa", report.scan.isa},
                                       {"passes", std::move(out)}}
                    .dump(2));
}

void run_exact(const ExactBench& bench) {
  check(bench);
  KnnOptions options;
  options.metric = parse_metric(bench.vectors.metric);
  options.threads = checked_threads(bench.threads);
  CatchInterrupts guard;
  const BenchVectors vectors(bench.vectors, bench.count);
  const AnyMatrixView base = vectors.base(), queries = vectors.queries();
  check_interrupt();
  if (!bench.json)
    print_now(
        "exact search, {} rows x {} {}{}, {} queries, k = {}, {}, {}, {} threads, {} rounds\n\n",
        base.rows(), base.cols(), name_of(base.type()), bench.vectors.made() ? " (made)" : "",
        queries.rows(), bench.k, name_of(options.metric), name_of(active_isa()), options.threads,
        bench.repeat);
  // The peaks are measured in the same minute as the rounds, when clock and other load are the
  // same.
  const KnownPeaks machine = measure_and_keep_peaks(options.threads, 1.5);
  const std::vector<PassFigures> all = time_passes(bench, queries, base, options);
  if (bench.json) return print_json(all, machine);
  print_table(all, machine);
}

void add_exact(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("exact", "Which first pass is the fastest, and how near to the peak?");
  auto arguments = std::make_shared<ExactBench>();
  add_vector_options(*command, arguments->vectors);
  add_whole(*command, "--count", arguments->count, "of the made queries (default 1000)");
  add_whole(*command, "-k", arguments->k, "neighbours per query (default 10)");
  add_device(*command, arguments->device);
  command->add_flag("--prepared", arguments->prepared,
                    "time searches of a base that was packed before");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  add_whole(*command, "--repeat", arguments->repeat,
            "number of rounds; the median counts (default 5)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer("Example:\n  knear bench exact --base base.fvecs --queries queries.fvecs -k 10");
  command->callback([=] { run_exact(*arguments); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Run a benchmark");
  add_bench_ann(*command);
  add_exact(*command);
  add_bench_index(*command);
  add_bench_kmeans(*command);
  add_bench_model(*command);
  add_bench_neighbors(*command);
  add_bench_recall(*command);
  add_bench_threshold_heap(*command);
  command->require_subcommand(0, 1);
  command->footer("Example:\n  knear bench exact --set f32 --rows 200000 --dim 96");
  command->callback([command] {
    if (!command->get_subcommands().empty()) return;
    unparsable(
        "bench needs a name; there are: ann, exact, index, kmeans, model, neighbors, recall, "
        "threshold-heap");
  });
}

}  // namespace knear::cli
