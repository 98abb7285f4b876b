// cli/path_command.cpp -- `knear path`: the smoothest path between two vectors of a k-NN graph.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/graph/bridges.hpp"
#include "knear/graph/neighbor_graph.hpp"
#include "knear/graph/paths.hpp"

namespace knear::cli {
namespace {

struct PathArguments {
  std::string graph, base, out, type;
  std::int64_t from = 0, to = 0, threads = 0;
  bool bridge = false, json = false;
};

// The largest of the bridges: of l2 and cosine the longest, of ip the smallest product.
const Bridge& widest(const std::vector<Bridge>& some, Metric metric) {
  return *std::max_element(some.begin(), some.end(), [&](const Bridge& a, const Bridge& b) {
    return larger_is_nearer(metric) ? a.distance > b.distance : a.distance < b.distance;
  });
}

void run_path(const PathArguments& arguments) {
  const int threads = checked_threads(arguments.threads);
  const CatchInterrupts guard;
  ProgressBar bar;
  const NeighborGraph graph = NeighborGraph::load(arguments.graph, bar.callback());
  for (const auto& [name, row] :
       {std::pair("--from", arguments.from), std::pair("--to", arguments.to)})
    if (row < 0 || row >= graph.rows())
      throw InvalidArgument("{} is row {}, but {} has {} rows", name, row, arguments.graph,
                            graph.rows());
  check_output("--out", arguments.out, {".ivecs", ".ibin", ".npy"},
               {arguments.graph, arguments.base});
  const io::VectorFile base = open_vectors(arguments.base, arguments.type, base_dataset);
  graph.check_base(base.view(), arguments.graph, bar.callback());
  check_interrupt();

  const Metric metric = graph.metric();
  const auto start = std::chrono::steady_clock::now();
  const SparseGraph edges =
      symmetric(graph.ids(), graph.distances(), metric, Closure::either, threads);
  const PathFinder finder(edges.view(), metric, threads);
  SmoothPath path = finder.path(arguments.from, arguments.to);
  check_interrupt();
  const bool connected = path.found();
  // What is missing, and the way over all bridges, if that is wanted.
  std::vector<Bridge> gaps;
  if (!connected) {
    const Components parts = components(edges.view());
    const std::vector<Bridge> all = bridges(base.view(), parts, metric, threads, bar.callback());
    gaps = bridges_between(all, parts, arguments.from, arguments.to);
    if (arguments.bridge)
      path = PathFinder(with_bridges(edges.view(), all).view(), metric, threads)
                 .path(arguments.from, arguments.to);
  }
  bar.clear();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (!arguments.out.empty() && path.found()) {
    Matrix<Id> ids(1, std::ssize(path.ids));
    std::copy(path.ids.begin(), path.ids.end(), ids.row(0));
    io::write_ids(arguments.out, ids);
  }
  // The answer is printed first: that there is no path, and what it would have to cross.
  const auto check_written = [&] {
    if (!arguments.out.empty() && !path.found())
      throw InvalidArgument("--out {} was not written, as there is no path", arguments.out);
  };
  if (arguments.json) {
    nlohmann::ordered_json out = {{"from", arguments.from},
                                  {"to", arguments.to},
                                  {"metric", name_of(metric)},
                                  {"path", path.ids},
                                  {"connected", connected}};
    if (path.found()) {
      out["largest_step"] = path.largest_step;
      out["sum_of_steps"] = path.sum_of_steps;
    } else {
      out["largest_step"] = nullptr;
      out["sum_of_steps"] = nullptr;
    }
    nlohmann::ordered_json missing = nlohmann::ordered_json::array();
    for (const Bridge& gap : gaps)
      missing.push_back({{"from", gap.from}, {"to", gap.to}, {"distance", gap.distance}});
    out["gaps"] = missing;
    out["components"] = finder.component_count();
    out["seconds"] = seconds;
    print("{}\n", out.dump(2));
    return check_written();
  }
  if (!path.found()) {
    const Bridge& gap = widest(gaps, metric);
    print("no path: rows {} and {} lie in different components of {}\n", arguments.from,
          arguments.to, arguments.graph);
    print(
        "  the smoothest way would cross {} gap{}, the widest of {:.6g} between rows {} and {} "
        "(--bridge takes it)\n",
        gaps.size(), gaps.size() == 1 ? "" : "s", gap.distance, gap.from, gap.to);
    return check_written();
  }
  print("{} steps, the largest {:.6g}, in all {:.6g}\n", path.ids.size() - 1, path.largest_step,
        path.sum_of_steps);
  std::string ids;
  for (std::size_t i = 0; i < path.ids.size(); ++i)
    ids += fmt::format("{}{}", i > 0 ? " " : "", path.ids[i]);
  print("{}\n", ids);
  for (const Bridge& gap : gaps)
    print("  bridged: {} and {}, at {:.6g}\n", gap.from, gap.to, gap.distance);
}

}  // namespace

void add_path(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("path", "Find the smoothest path between two vectors of a graph");
  auto arguments = std::make_shared<PathArguments>();
  command->add_option("--graph", arguments->graph, "of 'knear graph'")
      ->type_name("FILE")
      ->required();
  command->add_option("--base", arguments->base, "the vectors that it is of")
      ->type_name("FILE")
      ->required();
  add_whole(*command, "--from", arguments->from, "the row to begin at")->required();
  add_whole(*command, "--to", arguments->to, "the row to end at")->required();
  command->add_flag("--bridge", arguments->bridge,
                    "where no path connects both, cross to other components by the nearest pairs "
                    "of rows");
  command->add_option("--out", arguments->out, "the ids of the path: .ivecs, .ibin or .npy")
      ->type_name("FILE");
  command->add_option("--type", arguments->type, "read vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "The path has the smallest possible largest step, then the smallest sum of steps. Of "
      "several the one with the smaller row where they part first.\n\n"
      "Example:\n"
      "  knear graph --base base.fvecs -k 10 --out graph.knear\n"
      "  knear path --graph graph.knear --base base.fvecs --from 17 --to 4711");
  command->callback([=] { run_path(*arguments); });
}

}  // namespace knear::cli
