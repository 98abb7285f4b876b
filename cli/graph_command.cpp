// cli/graph_command.cpp -- `knear graph`: every vector of a file connected to its nearest others.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/graph_job.hpp"
#include "cli/graph_text.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "cli/unpacked_base.hpp"
#include "knear/core/json.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/nn_descent.hpp"
#include "knear/graph/statistics.hpp"

namespace knear::cli {
namespace {

// The graph of another file made better, to --out.
RefineReport refine_file(const GraphArguments& arguments, AnyMatrixView base,
                         const KnnGraphOptions& wanted) {
  for (const auto& [option, given] :
       {std::pair("--distinct", arguments.distinct), std::pair("--resume", arguments.resume)})
    if (given) throw InvalidArgument("{} is given, but is not for --from", option);
  const auto check_k = [&](std::int64_t k) {
    if (k != arguments.k)
      throw InvalidArgument("-k is {}, but {} has {} neighbours of each row", arguments.k,
                            arguments.from, k);
  };
  const RefineOptions options{.recall = wanted.recall,
                              .threads = wanted.threads,
                              .memory = wanted.memory,
                              .progress = wanted.progress,
                              .name = arguments.from};
  RefineReport report;
  if (!is_graph_file(arguments.from)) {
    const Matrix<Id> ids = io::read_ids(arguments.from, wanted.progress);
    check_k(ids.cols());
    refined_graph(ids, base, wanted.metric, options, &report).save(arguments.out, wanted.progress);
    return report;
  }
  const NeighborGraph graph = NeighborGraph::load(arguments.from, wanted.progress);
  check_k(graph.k());
  if (!arguments.metric.empty() && graph.metric() != wanted.metric)
    throw InvalidArgument("--metric is {}, but {} is a graph of {}", name_of(wanted.metric),
                          arguments.from, name_of(graph.metric()));
  refine(graph, base, options, &report).save(arguments.out, wanted.progress);
  return report;
}

// What inverted lists take of the disk, if they are in files.
std::string scratch_note(const KnnGraphReport& report) {
  if (report.scratch_bytes == 0) return "";
  return fmt::format(", {} of inverted lists on disk meanwhile",
                     readable_bytes(static_cast<double>(report.scratch_bytes)));
}

void run_graph(const GraphArguments& arguments) {
  check_positive("-k", arguments.k);
  if (!arguments.metric.empty()) parse_metric(arguments.metric);
  if (arguments.accuracy < 0)
    throw InvalidArgument("--accuracy must not be negative, but is {}", arguments.accuracy);
  KnnGraphOptions options{.distinct = arguments.distinct,
                          .threads = checked_threads(arguments.threads),
                          .memory = arguments.memory};
  if (!std::isnan(arguments.recall)) options.recall = arguments.recall;
  const CatchInterrupts guard;
  check_output("--out", arguments.out, {".knear"}, {arguments.base, arguments.from});
  options.metric =
      arguments.metric.empty() ? metric_of_file(arguments.base) : parse_metric(arguments.metric);
  ProgressBar bar;
  options.progress = bar.callback();
  const UnpackedBase base(arguments.base, arguments.type, arguments.out, arguments.memory,
                          24 * arguments.k, bar.callback());
  // A base that lies in memory is at most half of what is allowed.
  options.memory -= base.memory_bytes();
  bar.count("rows", base.view().rows());
  options.planned = [&](const KnnGraphReport& plan) {
    bar.note(fmt::format("{}, predicted to take {}{}", plan.method,
                         readable_seconds(plan.predicted_seconds), scratch_note(plan)));
  };
  KnnGraphReport report;
  std::optional<RefineReport> refined;
  if (arguments.from.empty()) {
    build_graph_file(base.view(), arguments.k, arguments.out, options,
                     arguments.resume ? Resume::yes : Resume::no, &report);
  } else {
    refined = refine_file(arguments, base.view(), options);
    report.method = "nn-descent";
    report.searched_rows = base.view().rows(), report.seconds = refined->seconds;
  }
  const NeighborGraph graph = NeighborGraph::load(arguments.out, bar.callback());
  const GraphStatistics statistics = statistics_of(graph);
  std::optional<SampledAccuracy> accuracy;
  if (arguments.accuracy > 0)
    accuracy = sampled_accuracy(graph, base.view(), arguments.accuracy, 1, options.threads,
                                bar.callback(), options.memory);
  bar.clear();

  const double rate = static_cast<double>(report.searched_rows) / report.seconds;
  if (arguments.json) {
    nlohmann::ordered_json out = describe_graph(graph);
    out["method"] = report.method;
    out["threads"] = options.threads;
    out["seconds"] = report.seconds;
    out["predicted_seconds"] = nullptr;
    if (report.predicted_seconds > 0) out["predicted_seconds"] = report.predicted_seconds;
    if (report.scratch_bytes > 0) out["scratch_bytes"] = report.scratch_bytes;
    if (base.scratch_bytes() > 0) out["unpacked_bytes"] = base.scratch_bytes();
    out["searched_rows"] = report.searched_rows;
    out["rows_per_second"] = rate;
    if (arguments.distinct) out["distinct_rows"] = report.distinct_rows;
    if (refined) {
      out["rounds"] = refined->rounds;
      if (options.recall)
        out["reached"] = refined->reached, out["found_before"] = refined->found_before,
        out["found"] = refined->found;
    }
    if (report.lists > 0) out["lists"] = report.lists, out["probes"] = report.probes;
    out.update(json_of(statistics));
    if (accuracy)
      out["accuracy"] = accuracy->mean,
      out["accuracy_interval"] = {accuracy->interval.low, accuracy->interval.high},
      out["accuracy_rows"] = accuracy->rows.size();
    print("{}\n", out.dump(2));
    return;
  }
  print("{}: the {} nearest others of {} x {} {}, {}, in {}\n", arguments.out, graph.k(),
        graph.rows(), base.view().cols(), name_of(base.view().type()), name_of(options.metric),
        readable_seconds(report.seconds));
  if (report.predicted_seconds > 0)
    print("  predicted before rows were searched for: {}{}\n",
          readable_seconds(report.predicted_seconds), scratch_note(report));
  print("  {}, {}\n",
        report.method == "none"
            ? std::string("was whole already: nothing was searched for")
            : fmt::format("{}, {} rows a second", report.method, readable_count(rate)),
        graph.properties().recall_argument == "exact" ? "exact"
        : graph.properties().recall_argument == "none"
            ? std::string("no recall promised")
            : fmt::format("recall {:.3g} promised ({})", graph.properties().promised_recall,
                          graph.properties().recall_argument));
  if (refined && options.recall)
    print("  {} rounds, from {:.4f} to {:.4f} of the true neighbours of a sample{}\n",
          refined->rounds, refined->found_before, refined->found,
          refined->reached ? "" : fmt::format(": not the {} that was asked", *options.recall));
  if (accuracy)
    print("  of {} rows {:.4f} of the true neighbours, 95 % in [{:.4f}, {:.4f}]\n",
          accuracy->rows.size(), accuracy->mean, accuracy->interval.low, accuracy->interval.high);
  print_statistics(statistics);
}

}  // namespace

void add_graph_arguments(CLI::App& command, GraphArguments& arguments) {
  command.add_option("--base", arguments.base, "vectors, as for search")
      ->type_name("FILE")
      ->required();
  add_whole(command, "-k", arguments.k, "neighbours of each vector")->required();
  command.add_option("--out", arguments.out, "the graph: .knear")->type_name("FILE")->required();
  command
      .add_option("--from", arguments.from,
                  "begin with this graph, .knear or ids, and make it better (NN-descent)")
      ->type_name("GRAPH");
  command.add_option("--metric", arguments.metric, "l2 (default), ip, cosine, l1 or hamming")
      ->type_name("M");
  add_number(command, "--recall", arguments.recall,
             "the least mean share of the true neighbours, in (0, 1] (default 1: exact, as fewer "
             "than 100,000 rows are in any case)");
  command.add_flag("--distinct", arguments.distinct,
                   "leave out copies: neighbours are distinct vectors, none equal to their own");
  command.add_flag("--resume", arguments.resume,
                   "go on with the blocks that FILE.partial has of a run that was stopped");
  add_whole(command, "--accuracy", arguments.accuracy,
            "compare N random rows with their exact neighbours");
  command.add_option("--type", arguments.type, "read vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  add_size(command, "--memory", arguments.memory,
           "memory beside the graph's pages; mapped bases, unpacked ones and lists on disk stay "
           "within it");
  add_whole(command, "--threads", arguments.threads, "threads to use (default: all)");
  command.add_flag("--json", arguments.json, "print one JSON object");
}

void add_graph(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("graph", "Build a k-NN graph: the k nearest others of each vector");
  auto arguments = std::make_shared<GraphArguments>();
  add_graph_arguments(*command, *arguments);
  command->footer(
      "Blocks that are finished lie in FILE.partial until the graph is whole, so that a run that "
      "was stopped or killed can be gone on with; so do inverted lists in FILE.lists.1 and so on, "
      "where they are larger than --memory. A base that cannot be mapped (gzipped, say) and is "
      "larger than half of it is unpacked to FILE.base-*.npy meanwhile. Up to 131,072 rows are "
      "one block: --resume begins anew. A graph that is whole it leaves as it is.\n\nExample:\n"
      "  knear graph --base base.fvecs -k 10 --out graph.knear\n"
      "  knear convert graph.knear graph.ivecs");
  command->callback([=] { run_graph(*arguments); });
}

}  // namespace knear::cli
