// cli/tune.cpp -- `knear tune`: what a recall costs in an index of inverted lists, measured and
// kept.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {
namespace {

struct TuneArguments {
  std::string index, queries, base;
  std::int64_t k = 10, threads = 0;
  bool json = false;
};

// The points that people ask for, of the many that there are.
std::vector<OperatingPoint> usual_points(const std::vector<OperatingPoint>& points) {
  std::vector<OperatingPoint> out;
  for (const double recall : {0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999}) {
    const auto found = std::find_if(points.begin(), points.end(), [&](const OperatingPoint& point) {
      return point.promised_recall >= recall;
    });
    if (found == points.end()) break;
    out.push_back(*found);
    out.back().promised_recall = recall;
  }
  return out;
}

// Calibrates an index, keeps that in its file and prints it.
void tune(Index index, const TuneArguments& arguments, int threads) {
  const std::string kind = index.description();
  if (index.lists() == 0 && (kind == "Flat" || kind.ends_with(",Flat")))
    throw InvalidArgument(
        "--index is {}, an index {}, whose searches go by all rows that it keeps: there is nothing "
        "to tune that a file would keep",
        arguments.index, kind);
  std::optional<io::VectorFile> queries;
  if (!arguments.queries.empty()) queries = open_vectors(arguments.queries, "", queries_dataset);
  std::optional<io::VectorFile> base;
  if (!arguments.base.empty()) base = open_vectors(arguments.base, "", base_dataset);
  const auto start = std::chrono::steady_clock::now();
  ProgressBar bar;
  const ChangeOptions options{.threads = threads, .progress = bar.callback()};
  const AnyMatrixView asked = queries ? queries->view() : AnyMatrixView();
  const std::vector<OperatingPoint> points =
      base ? index.tune(arguments.k, asked, base->view(), {}, options)
           : index.tune(arguments.k, asked, options);
  index.save(arguments.index, bar.callback());
  bar.clear();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) {
    nlohmann::ordered_json out = {{"index", index.description()},
                                  {"rows", index.size()},
                                  {"k", arguments.k},
                                  {"seconds", seconds},
                                  {"points", nlohmann::ordered_json::array()}};
    for (const OperatingPoint& point : points)
      out["points"].push_back({{"promised_recall", point.promised_recall},
                               {"expected_recall", point.expected_recall},
                               {"probes", point.probes},
                               {"rows", point.rows}});
    print("{}\n", out.dump(2));
    return;
  }
  print("{}: {}, {} rows, calibrated for k = {} in {}\n\n", arguments.index, index.description(),
        index.size(), arguments.k, readable_seconds(seconds));
  std::vector<std::vector<std::string>> table = {{"recall", "expected", "probes", "rows a query"}};
  for (const OperatingPoint& point : usual_points(points))
    table.push_back({fmt::format("{:g}", point.promised_recall),
                     fmt::format("{:.4f}", point.expected_recall),
                     fmt::format("{:.1f}", point.probes), readable_count(point.rows)});
  print("{}", format_table(table));
  if (!index.keeps_vectors() && !index.has_codes())
    print(
        "\nThis is recall with respect to the vectors as the index keeps them, not to those that "
        "were "
        "added.\n");
}

void run_tune(const TuneArguments& arguments) {
  check_positive("-k", arguments.k);
  const int threads = checked_threads(arguments.threads);
  const CatchInterrupts guard;
  // Another file would be replaced by one of ours.
  if (!io::is_archive(arguments.index) && is_faiss_file(arguments.index))
    throw InvalidArgument(
        "--index is {}, which is no .knear file, but one of FAISS, of which 'knear convert' makes "
        "one",
        arguments.index);
  io::Archive::open(arguments.index);
  tune(Index::load(arguments.index), arguments, threads);
}

}  // namespace

void add_tune(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tune", "Calibrate an index for a recall");
  auto arguments = std::make_shared<TuneArguments>();
  command->add_option("--index", arguments->index, "an index made by knear build; it is replaced")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--queries", arguments->queries,
                   "queries like those to come (default: vectors of the index itself)")
      ->type_name("FILE");
  command
      ->add_option("--base", arguments->base,
                   "of codes: the vectors that they were made of, whose numbers are their ids")
      ->type_name("FILE");
  add_whole(*command, "-k", arguments->k, "neighbours per query (default: 10)");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "knear search --recall does this by itself where it was not done, for each run anew.\n\n"
      "Example:\n"
      "  knear tune --index lists.knear --queries queries.fvecs\n"
      "  knear search --index lists.knear --queries queries.fvecs -k 10 --recall 0.95");
  command->callback([=] { run_tune(*arguments); });
}

}  // namespace knear::cli
