// cli/bench.cpp -- `knear bench NAME`: measurements that answer one question each.
//
// exact   Which first pass is the fastest on these vectors, and how near to the machine's peak? All
//         passes take turns, the median of several rounds counts, and every answer is compared with
//         the first one, bit by bit: a pass that were wrong would not be measured in silence.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/bench.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/prediction.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/random.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

bool same_bits(const Neighbors& a, const Neighbors& b) {
  const auto count = static_cast<std::size_t>(a.ids.rows() * a.ids.cols());
  return std::memcmp(a.ids.data(), b.ids.data(), count * sizeof(Id)) == 0 &&
         std::memcmp(a.distances.data(), b.distances.data(), count * sizeof(float)) == 0;
}

AnyMatrix clustered(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                    std::uint64_t stream) {
  constexpr std::int64_t clusters = 64;
  Random centre_random(seed), random(seed ^ (0x9e3779b97f4a7c15u * (stream + 1)));
  const auto normal = [](Random& from) {
    const double radius = std::sqrt(-2 * std::log(1 - from.uniform()));
    return radius * std::cos(2 * std::numbers::pi * from.uniform());
  };
  Matrix<float> centres(clusters, dim);
  for (std::int64_t i = 0; i < clusters * dim; ++i)
    centres.data()[i] = static_cast<float>(normal(centre_random));
  AnyMatrix out(type, rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* centre = centres.row(static_cast<std::int64_t>(random.below(clusters)));
    for (std::int64_t j = 0; j < dim; ++j) {
      const double value = centre[j] + 0.7 * normal(random);
      if (type == ElementType::u8)
        static_cast<std::uint8_t*>(out.row(i))[j] =
            static_cast<std::uint8_t>(std::clamp(std::lround(128 + 32 * value), 0l, 255l));
      else
        static_cast<float*>(out.row(i))[j] = static_cast<float>(value);
    }
  }
  return out;
}

namespace {

struct ExactBench {
  std::string base, queries, metric = "l2", set = "u8";
  std::int64_t k = 10, threads = 0, repeat = 5, rows = 100000, dim = 128, count = 1000, seed = 1;
  bool prepared = false, json = false;
};

// What one first pass did; no seconds where the vectors do not allow it.
struct PassFigures {
  FirstPass pass = FirstPass::automatic;
  std::optional<bool> refine = {};
  std::vector<double> seconds;  // packing the base and searching, one per round
  KnnReport report;
  std::string refusal;
};

void check(const ExactBench& bench) {
  const auto at_least_one = [](const char* option, std::int64_t value) {
    if (value < 1) throw InvalidArgument("{} must be at least 1, but is {}", option, value);
  };
  at_least_one("-k", bench.k);
  at_least_one("--repeat", bench.repeat);
  at_least_one("--rows", bench.rows);
  at_least_one("--dim", bench.dim);
  at_least_one("--count", bench.count);
  if (bench.set != "u8" && bench.set != "f32")
    throw InvalidArgument("--set must be u8 or f32, but is '{}'", bench.set);
  if (bench.base.empty() != bench.queries.empty()) unparsable("--base and --queries go together");
}

std::vector<PassFigures> time_passes(const ExactBench& bench, AnyMatrixView queries,
                                     AnyMatrixView base, KnnOptions options) {
  std::vector<PassFigures> all;
  for (FirstPass pass : {FirstPass::automatic, FirstPass::integer, FirstPass::int8,
                         FirstPass::int16, FirstPass::fp32, FirstPass::prefix})
    all.push_back({pass, {}, {}, {}, {}});
  for (const bool refine : {true, false}) all.push_back({FirstPass::int8, refine, {}, {}, {}});
  all.push_back({FirstPass::prefix, false, {}, {}, {}});
  ProgressBar bar;
  options.progress = [](std::string_view, double) { return !interrupted(); };
  std::optional<Neighbors> expected;
  // A round before the others prepares.
  std::vector<std::unique_ptr<ExactSearcher>> searchers(all.size());
  for (std::int64_t round = bench.prepared ? -1 : 0; round < bench.repeat; ++round)
    for (PassFigures& figures : all) {
      if (!figures.refusal.empty()) continue;
      bar.show(name_of(figures.pass),
               double(std::max<std::int64_t>(0, round)) / double(bench.repeat));
      options.first_pass = figures.pass, options.choices.refine = figures.refine;
      try {
        auto& searcher = searchers[static_cast<std::size_t>(&figures - all.data())];
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
          throw Error(fmt::format("first pass {} gave another answer", name_of(figures.pass)));
      } catch (const InvalidArgument& refusal) {
        // Only a pass that was asked for by name may not fit; bad input fails with all of them.
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
    std::string name(name_of(figures.pass));
    if (!figures.refusal.empty()) {
      refusals += fmt::format("{}: {}\n", name, figures.refusal);
      continue;
    }
    if (figures.pass == FirstPass::automatic) name += fmt::format(" ({})", report.first_pass);
    if (figures.refine) name += *figures.refine ? ", refine=on" : ", refine=off";
    const double seconds = median(figures.seconds);
    table.push_back(
        {name, readable_seconds(seconds),
         readable_seconds(*std::min_element(figures.seconds.begin(), figures.seconds.end())),
         readable_count(double(report.queries) / seconds),
         fmt::format("{:.0f} %", 100 * predict(report, machine).peak_fraction),
         readable_seconds(report.prepare_seconds), readable_count(report.hits_per_query),
         readable_count(report.survivors_per_query),
         readable_count(double(report.fallback_queries))});
  }
  print("{}", format_table(table));
  if (!refusals.empty()) print("\n{}", refusals);
  print(
      "\nSame answers from all, bit by bit. Of peak: multiply-adds of the pass against the best "
      "rate measured on this machine, in the last round, packing left out.\n");
}

void print_json(const std::vector<PassFigures>& all, const KnownPeaks& machine) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const PassFigures& figures : all) {
    nlohmann::ordered_json line{{"asked", name_of(figures.pass)}};
    if (figures.refine) line["refine"] = *figures.refine ? "on" : "off";
    if (!figures.refusal.empty()) {
      line["refusal"] = figures.refusal;
    } else {
      const KnnReport& report = figures.report;
      const double seconds = median(figures.seconds);
      line["first_pass"] = report.first_pass;
      line["seconds"] = seconds;
      line["all_seconds"] = figures.seconds;
      line["queries_per_second"] = double(report.queries) / seconds;
      line["prepare_seconds"] = report.prepare_seconds;
      line["peak_fraction"] = predict(report, machine).peak_fraction;
      line["hits_per_query"] = report.hits_per_query;
      line["refined_per_query"] = report.refined_per_query;
      line["survivors_per_query"] = report.survivors_per_query;
      line["fallback_queries"] = report.fallback_queries;
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
                                       {"isa", report.isa},
                                       {"passes", std::move(out)}}
                    .dump(2));
}

void run_exact(const ExactBench& bench) {
  check(bench);
  KnnOptions options;
  options.metric = parse_metric(bench.metric);
  options.threads = checked_threads(bench.threads);
  CatchInterrupts guard;
  std::optional<io::VectorFile> base_file, query_file;
  AnyMatrix base_made, queries_made;
  if (bench.base.empty()) {
    const ElementType type = parse_element_type(bench.set);
    const auto seed = static_cast<std::uint64_t>(bench.seed);
    base_made = clustered(type, bench.rows, bench.dim, seed, 0);
    queries_made = clustered(type, bench.count, bench.dim, seed, 1);
  } else {
    base_file = open_vectors(bench.base, "", base_dataset);
    query_file = open_vectors(bench.queries, "", queries_dataset);
  }
  check_interrupt();
  const AnyMatrixView base = base_file ? base_file->view() : base_made.view();
  const AnyMatrixView queries = query_file ? query_file->view() : queries_made.view();
  // In the same minute as the rounds: clock and neighbours on the machine are the same then.
  const KnownPeaks machine = measure_and_keep_peaks(options.threads, 1.5);
  const std::vector<PassFigures> all = time_passes(bench, queries, base, options);
  if (bench.json) return print_json(all, machine);
  const KnnReport& report = all.front().report;
  print("exact search, {} rows x {} {}{}, {} queries, k = {}, {}, {}, {} threads, {} rounds\n\n",
        report.rows, report.dim, name_of(base.type()), bench.base.empty() ? " (made)" : "",
        report.queries, report.k, name_of(report.metric), report.isa, report.threads, bench.repeat);
  print_table(all, machine);
}

void add_exact(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("exact", "Which first pass is the fastest, and how near to the peak?");
  auto arguments = std::make_shared<ExactBench>();
  command->add_option("--base", arguments->base, "vectors to search in")->type_name("FILE");
  command->add_option("--queries", arguments->queries, "vectors to search for")->type_name("FILE");
  command->add_option("--metric", arguments->metric, "l2 (default), ip or cosine")->type_name("M");
  command->add_option("--set", arguments->set, "without files: made vectors, u8 (default) or f32")
      ->type_name("T");
  add_whole(*command, "--rows", arguments->rows, "of the made base (default 100000)");
  add_whole(*command, "--dim", arguments->dim, "of the made vectors (default 128)");
  add_whole(*command, "--count", arguments->count, "of the made queries (default 1000)");
  add_whole(*command, "--seed", arguments->seed, "of the made vectors (default 1)");
  add_whole(*command, "-k", arguments->k, "neighbours per query (default 10)");
  command->add_flag("--prepared", arguments->prepared,
                    "time searches of a base that was packed before");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  add_whole(*command, "--repeat", arguments->repeat,
            "rounds, of which the median counts (default 5)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer("Example:\n  knear bench exact --base base.fvecs --queries queries.fvecs -k 10");
  command->callback([=] { run_exact(*arguments); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measurements that answer one question each");
  add_exact(*command);
  add_bench_index(*command);
  add_bench_model(*command);
  add_bench_threshold_heap(*command);
  command->require_subcommand(0, 1);
  command->footer("Example:\n  knear bench exact --set f32 --rows 200000 --dim 96");
  command->callback([command] {
    if (!command->get_subcommands().empty()) return;
    constexpr const char* names = "exact, index, model, threshold-heap";
    const auto words = command->remaining();
    unparsable(words.empty() ? fmt::format("bench needs a name; there are: {}", names)
                             : fmt::format("no bench '{}'; there are: {}", words.front(), names));
  });
}

}  // namespace knear::cli
