// cli/bench_model.cpp -- `knear bench model`: how close are predictions to measurements?
//
// The grid is fixed: synthetic vectors of 8 bits and of floats, bases of 20,000 and 200,000 rows,
// 32, 128 and 784 columns, 1 to 2,000 queries, 1 to 1,000 neighbours; the base is packed before,
// without a prefix. Each search is measured several times, and the median counts. A prediction is
// good if it is within a quarter of that. With --lists nothing is searched: what the model of
// inverted lists says of an index of any size, which may be larger than the machine.
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/bench.hpp"
#include "cli/bench_vectors.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/prediction.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

struct ModelBench {
  std::string device = "cpu";
  std::int64_t threads = 0, repeat = 5;
  bool quick = false, json = false;
  // Inverted lists, which are predicted without a search.
  std::optional<std::int64_t> lists;
  std::int64_t rows = 0, dim = 0, parts = 0, bits = 8, queries = 10000, k = 10, training_rows = 0;
  std::vector<std::int64_t> probes;
};

struct Point {
  std::int64_t rows, dim, queries, k;
  ElementType type;
  double predicted = 0, measured = 0;
  std::string limit;
  KnnReport report;  // of the last search
  ScanCost cost;
  double ratio() const { return predicted / measured; }
  bool good() const { return std::fabs(ratio() - 1) <= 0.25; }
};

std::vector<Point> measure(const ModelBench& bench, int threads, KnownPeaks& machine) {
  std::vector<Point> points;
  ProgressBar bar;
  const std::vector<std::int64_t> all_rows =
      bench.quick ? std::vector<std::int64_t>{5000} : std::vector<std::int64_t>{20000, 200000};
  const std::vector<std::int64_t> dims =
      bench.quick ? std::vector<std::int64_t>{32} : std::vector<std::int64_t>{32, 128, 784};
  const double bases = double(2 * all_rows.size() * dims.size());
  double done = 0;
  for (const ElementType type : {ElementType::u8, ElementType::f32})
    for (const std::int64_t rows : all_rows)
      for (const std::int64_t dim : dims) {
        bar.show("bench", done++ / bases);
        const AnyMatrix base = clustered(type, rows, dim, 1, 0);
        const AnyMatrix queries = clustered(type, 2000, dim, 1, 1);
        KnnOptions options{
            .threads = threads,
            .first_pass = type == ElementType::u8 ? FirstPass::integer : FirstPass::int8};
        options.progress = [](std::string_view, double) { return !interrupted(); };
        const ExactSearcher searcher(base.view(), options);
        // The peaks just before and after the searches: other work on the machine slows both.
        const auto measure_now = [&] { return measure_peaks(threads, bench.quick ? 0.2 : 0.5); };
        MachinePeaks before = measure_now();
        for (const std::int64_t count : {1, 16, 200, 2000}) {
          const std::size_t first = points.size();
          for (const std::int64_t k : {1, 10, 100, 1000}) {
            check_interrupt();
            KnnReport report;
            std::vector<double> seconds;
            const AnyMatrixView some = queries.view().rows(0, count);
            searcher.search(some, k, options, &report);
            // Short searches are repeated more often, since other load on a machine comes in
            // bursts.
            double spent = 0;
            for (std::int64_t round = 0; round < bench.repeat || (spent < 0.05 && !bench.quick);
                 ++round) {
              searcher.search(some, k, options, &report);
              seconds.push_back(report.seconds), spent += report.seconds;
            }
            points.push_back({rows, dim, count, k, type, 0, median(seconds), "", report, {}});
          }
          const MachinePeaks after = measure_now();
          machine = {better_of(before, after), true};
          before = after;
          for (std::size_t i = first; i < points.size(); ++i) {
            Point& p = points[i];
            p.cost = predict(p.report, machine).cost;
            p.predicted = p.cost.seconds, p.limit = p.cost.limit;
          }
        }
      }
  return points;
}

// What searches of an index of lists, and its making, are expected to take.
void predict_index(const ModelBench& bench, int threads) {
  for (const auto& [name, value] : {std::pair{"--rows", bench.rows},
                                    {"--dim", bench.dim},
                                    {"--lists", *bench.lists},
                                    {"--queries", bench.queries},
                                    {"-k", bench.k}})
    check_positive(name, value);
  if (*bench.lists > bench.rows)
    throw InvalidArgument("--lists is {}, but there are {} rows", *bench.lists, bench.rows);
  if (bench.parts < 0 || (bench.parts > 0 && bench.dim % bench.parts != 0))
    throw InvalidArgument("--code-parts must divide --dim, which is {}, but is {}", bench.dim,
                          bench.parts);
  if (bench.training_rows < 0)
    throw InvalidArgument("--training-rows must not be negative, but is {}", bench.training_rows);
  const MachinePeaks peaks = measure_peaks(threads, bench.quick ? 0.2 : 0.5);
  ListShape shape{.rows = bench.rows,
                  .dim = bench.dim,
                  .queries = bench.queries,
                  .k = bench.k,
                  .lists = *bench.lists,
                  .code_parts = bench.parts,
                  .code_bits = static_cast<int>(bench.bits),
                  .threads = threads};
  // Returns 256 rows per list, limited to what 64 bits hold.
  const std::int64_t usual = *bench.lists > bench.rows / 256 ? bench.rows : 256 * *bench.lists;
  const ListMakingCost making =
      predict_list_making(shape, bench.training_rows > 0 ? bench.training_rows : usual, peaks);
  nlohmann::ordered_json out{{"rows", bench.rows},
                             {"threads", threads},
                             {"train_seconds", making.train_seconds},
                             {"add_seconds", making.add_seconds}};
  auto& searches = out["searches"] = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> table{
      {"probes", "queries/s", "limit", "one alone, one thread"}};
  for (const std::int64_t probes : bench.probes) {
    check_positive("--probes", probes);
    shape.probes = static_cast<double>(probes);
    shape.probed_rows = static_cast<double>(bench.rows) * shape.probes / double(*bench.lists);
    shape.queries = bench.queries, shape.threads = threads;
    const ListCost many = predict_lists(shape, peaks);
    shape.queries = 1, shape.threads = 1;
    const ListCost one = predict_lists(shape, peaks);
    searches.push_back({{"probes", probes},
                        {"queries_per_second", double(bench.queries) / many.seconds},
                        {"limit", many.limit},
                        {"seconds_alone", one.seconds}});
    table.push_back({fmt::format("{}", probes),
                     fmt::format("{:.0f}", double(bench.queries) / many.seconds), many.limit,
                     readable_seconds(one.seconds)});
  }
  if (bench.json) return print("{}\n", out.dump(2));
  print("predicted for {} rows by {} threads: training {}, adding {}\n\n", bench.rows, threads,
        readable_seconds(making.train_seconds), readable_seconds(making.add_seconds));
  print_text(format_table(table));
}

void run_model(const ModelBench& bench) {
  check_positive("--repeat", bench.repeat);
  check_no_device(bench.device, "bench model");
  const int threads = checked_threads(bench.threads);
  if (bench.lists) return predict_index(bench, threads);
  if (!bench.json && !bench.quick)
    print_now("searches of made vectors of 12 shapes, {} rounds, which take minutes\n\n",
              bench.repeat);
  KnownPeaks machine;
  const std::vector<Point> points = measure(bench, threads, machine);
  const auto good =
      std::count_if(points.begin(), points.end(), [](const Point& p) { return p.good(); });
  const double share = double(good) / double(points.size());
  if (bench.json) {
    nlohmann::ordered_json out;
    out["within_a_quarter"] = share;
    out["threads"] = threads;
    auto& list = out["points"] = nlohmann::ordered_json::array();
    for (const Point& p : points)
      list.push_back({{"type", name_of(p.type)},
                      {"rows", p.rows},
                      {"dim", p.dim},
                      {"queries", p.queries},
                      {"k", p.k},
                      {"predicted_seconds", p.predicted},
                      {"measured_seconds", p.measured},
                      {"limit", p.limit},
                      {"query_seconds", p.report.scan.query_seconds / threads},
                      {"score_seconds", p.report.scan.score_seconds / threads},
                      {"select_seconds", p.report.scan.select_seconds / threads},
                      {"rescore_seconds", p.report.scan.rescore_seconds / threads},
                      {"hits_per_query", p.report.scan.hits_per_query},
                      {"survivors_per_query", p.report.scan.survivors_per_query},
                      {"predicted",
                       {{"query_seconds", p.cost.query_seconds},
                        {"score_seconds", p.cost.scoring_seconds},
                        {"select_seconds", p.cost.selection_seconds},
                        {"rescore_seconds", p.cost.rescore_seconds},
                        {"multiply_add_seconds", p.cost.multiply_add_seconds},
                        {"memory_seconds", p.cost.memory_seconds},
                        {"coefficient_wise_seconds", p.cost.coefficient_wise_seconds},
                        {"coefficient_wise_operations", p.cost.cops}}}});
    print("{}\n", out.dump(2));
    return;
  }
  std::vector<std::vector<std::string>> table{
      {"type", "rows", "dim", "queries", "k", "predicted", "measured", "ratio", "limit"}};
  for (const Point& p : points)
    table.push_back({std::string(name_of(p.type)), fmt::format("{}", p.rows),
                     fmt::format("{}", p.dim), fmt::format("{}", p.queries), fmt::format("{}", p.k),
                     readable_seconds(p.predicted), readable_seconds(p.measured),
                     fmt::format("{:.2f}{}", p.ratio(), p.good() ? "" : " !"), p.limit});
  print_text(format_table(table));
  print("\n{} of {} predictions within a quarter of the measured time ({:.0f} %), {} threads\n",
        good, points.size(), 100 * share, threads);
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("model", "How near do predicted times come to measured ones?");
  auto arguments = std::make_shared<ModelBench>();
  add_no_device(*command, arguments->device);
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  CLI::Option* repeat = add_whole(*command, "--repeat", arguments->repeat,
                                  "number of searches; the median counts (default 5)");
  command->add_flag("--quick", arguments->quick, "a small part of the grid, to see that it works");
  command->add_flag("--json", arguments->json, "print one JSON object");
  CLI::Option* lists = add_whole(*command, "--lists", arguments->lists,
                                 "predict for this many inverted lists, without a search");
  const auto of_lists = [&](const char* name, std::int64_t& value, const char* text) {
    return add_whole(*command, name, value, text)->needs(lists);
  };
  lists->needs(of_lists("--rows", arguments->rows, "vectors in these lists"));
  lists->needs(of_lists("--dim", arguments->dim, "columns of a vector"));
  lists->excludes(repeat);
  CLI::Option* parts = of_lists("--code-parts", arguments->parts,
                                "sub-quantisers of their codes (default: vectors)");
  of_lists("--code-bits", arguments->bits, "bits of each (default 8)")->needs(parts);
  of_lists("--queries", arguments->queries, "queries in a call (default 10000)");
  of_lists("-k", arguments->k, "neighbours of a query (default 10)");
  of_lists("--training-rows", arguments->training_rows,
           "vectors to train on (default: 256 a list)");
  lists->needs(command->add_option("--probes", arguments->probes, "lists of a query, one or more")
                   ->needs(lists));
  command->footer(
      "Example:\n  knear bench model --threads 2\n"
      "  knear bench model --rows 1000000000 --dim 96 --lists 65536 --code-parts 16 --probes 1 16");
  command->callback([arguments] { run_model(*arguments); });
}

}  // namespace knear::cli
