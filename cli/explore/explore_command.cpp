// cli/explore/explore_command.cpp -- `knear explore`: a page to walk on over the k-NN graph of a
// base.

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/explore/explorer.hpp"
#include "cli/explore/items.hpp"
#include "cli/explore/server.hpp"
#include "cli/explore/single_page.hpp"
#include "cli/files.hpp"
#include "cli/help.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "cli/serve/http_server.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/layout.hpp"
#include "knear/io/atomic_file.hpp"

namespace knear::cli {
namespace {

struct ExploreArguments {
  ItemArguments items;
  std::string graph, metric, html;
  std::optional<std::int64_t> k, port, from, to;
  std::int64_t threads = 0, epochs = 0;
  double recall = std::numeric_limits<double>::quiet_NaN();
};

constexpr std::int64_t usual_k = 10;

void check_words(const ExploreArguments& arguments) {
  if (arguments.items.base.empty() == arguments.items.index.empty())
    unparsable("one of --base and --index is needed");
  if (arguments.port.has_value() != arguments.html.empty())
    unparsable("one of --port and --html is needed");
  if (!arguments.graph.empty() &&
      (arguments.k || !arguments.metric.empty() || !std::isnan(arguments.recall)))
    unparsable("-k, --metric and --recall are for a graph that is made, not for that of --graph");
  if (arguments.k) check_positive("-k", *arguments.k);
  if (arguments.epochs < 0 || arguments.epochs > most_layout_epochs)
    throw InvalidArgument("--epochs must be between 0 (as many as usual) and {}, but is {}",
                          most_layout_epochs, arguments.epochs);
  if (arguments.port && (*arguments.port < 0 || *arguments.port > 65535))
    throw InvalidArgument("--port must be between 0 (any) and 65535, but is {}", *arguments.port);
  if (arguments.port && !can_serve())
    throw InvalidArgument("--port: this build serves no pages (KNEAR_SERVE is off); --html works");
}

// Neighbours of each item, of a graph that is made: places that no item could fill take no room.
std::int64_t neighbors_of(const ExploreArguments& arguments, const Items& items) {
  return std::min(arguments.k.value_or(usual_k), std::max<std::int64_t>(1, items.rows.rows() - 1));
}

// The graph of the file, or one that is made now.
NeighborGraph graph_of(const ExploreArguments& arguments, const Items& items, int threads,
                       ProgressBar& bar) {
  if (!arguments.graph.empty()) {
    NeighborGraph graph = NeighborGraph::load(arguments.graph, bar.callback());
    graph.check_base(items.rows, arguments.graph, bar.callback());
    if (items.index && items.index->metric() != graph.metric())
      throw InvalidArgument("{} is a graph for {}, --index is for {}", arguments.graph,
                            name_of(graph.metric()), name_of(items.index->metric()));
    return graph;
  }
  KnnGraphOptions options{.threads = threads, .progress = bar.callback()};
  if (!arguments.metric.empty())
    options.metric = parse_metric(arguments.metric);
  else if (items.index)
    options.metric = items.index->metric();
  else
    options.metric = metric_of_file(arguments.items.base);
  if (items.index && items.index->metric() != options.metric)
    throw InvalidArgument("--metric is {}, but --index is for {}", name_of(options.metric),
                          name_of(items.index->metric()));
  if (!std::isnan(arguments.recall)) options.recall = arguments.recall;
  return knn_graph(items.rows, neighbors_of(arguments, items), options);
}

void write_page(const ExploreArguments& arguments, const Explorer& explorer,
                MatrixView<float> first, const LayoutOptions& layout, ProgressBar& bar) {
  const Matrix<float> places = graph_layout(explorer.graph(), first, layout);
  const std::string page = single_page(explorer, places.view());
  check_interrupt();
  io::AtomicFile file(arguments.html);
  file.write(page.data(), page.size());
  file.commit();
  bar.clear();
  print("{} ({}): {} items of {}\n", arguments.html,
        readable_bytes(static_cast<double>(page.size())), explorer.graph().rows(),
        explorer.items().name);
}

// Until a signal arrives: that is how a server ends.
void serve_page(const ExploreArguments& arguments, const Explorer& explorer,
                MatrixView<float> first, LayoutOptions layout, ProgressBar& bar) {
  PageServer server(explorer, *arguments.port);
  server.show_places(first, 0);
  bar.clear();
  PatientOutput line(fmt::format("{} shows {}, to this machine alone; Ctrl-C ends it\n",
                                 server.address(), explorer.items().name));
  line.go_on();
  double done = 0;
  layout.progress = [&](std::string_view, double fraction) {
    done = fraction;
    line.go_on();
    return !interrupted();
  };
  layout.on_places = [&](MatrixView<float> places) {
    server.show_places(places, std::min(done, 0.999));
  };
  try {
    const Matrix<float> places = graph_layout(explorer.graph(), first, layout);
    server.show_places(places.view(), 1);
  } catch (const Cancelled&) {
  }
  while (!interrupted()) {
    line.go_on();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void run_explore(const ExploreArguments& arguments) {
  check_words(arguments);
  if (!arguments.metric.empty()) parse_metric(arguments.metric);
  const int threads = checked_threads(arguments.threads);
  const CatchInterrupts guard;
  ignore_other_signals();
  ProgressBar bar;
  check_output(
      "--html", arguments.html, {".html", ".htm"},
      {arguments.items.base, arguments.items.index, arguments.graph, arguments.items.labels});
  Items items = open_items(arguments.items, threads, bar.callback());
  for (const auto& [name, row] :
       {std::pair("--from", arguments.from), std::pair("--to", arguments.to)})
    if (row && (*row < 0 || *row >= items.rows.rows()))
      throw InvalidArgument("{} is row {}, but {} has {} rows", name, *row, items.name,
                            items.rows.rows());
  // Before a graph is made, if none is given.
  if (!arguments.html.empty() && arguments.graph.empty())
    check_page_size(items, neighbors_of(arguments, items));
  NeighborGraph graph = graph_of(arguments, items, threads, bar);
  if (!arguments.html.empty()) check_page_size(items, graph.k());
  bar.show("prepare", 0);
  const Matrix<float> first = principal_places(items.rows, threads, bar.callback());
  const Explorer explorer(std::move(items), std::move(graph),
                          {.from = arguments.from.value_or(no_id),
                           .to = arguments.to.value_or(no_id),
                           .threads = threads});
  check_interrupt();
  const LayoutOptions layout{
      .epochs = arguments.epochs, .threads = threads, .progress = bar.callback()};
  if (!arguments.html.empty()) return write_page(arguments, explorer, first.view(), layout, bar);
  serve_page(arguments, explorer, first.view(), layout, bar);
}

}  // namespace

void add_explore(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("explore", "Show a k-NN graph as a page: paths, neighbours, a map");
  auto arguments = std::make_shared<ExploreArguments>();
  ItemArguments& items = arguments->items;
  command->add_option("--base", items.base, "vectors, as for search")->type_name("FILE");
  command->add_option("--index", items.index, "or the vectors of this index")->type_name("FILE");
  command->add_option("--graph", arguments->graph, "graph from 'knear graph' (default: build one)")
      ->type_name("FILE");
  command
      ->add_option("--labels", items.labels,
                   "a line of text for each row, or an idx file of class numbers")
      ->type_name("FILE");
  command->add_option("--names", items.names, "names of the class numbers: T-shirt,Trouser,...")
      ->type_name("A,B,...");
  command
      ->add_option("--images", items.images,
                   "folder with a PNG or JPEG file per row, sorted by bytes (10.png before 2.png)")
      ->type_name("DIR");
  command
      ->add_option("--shape", items.shape,
                   "rows are grey pictures of this size, 0 to 255 (idx files know it); with "
                   "--images, accept dropped pictures")
      ->type_name("WxH");
  add_whole(*command, "--port", arguments->port, "serve the page on 127.0.0.1 (0: any free port)");
  command
      ->add_option("--html", arguments->html,
                   "write the page as one file, from at most 64 MiB of data")
      ->type_name("FILE");
  add_whole(*command, "--from", arguments->from, "the row at which the first path begins");
  add_whole(*command, "--to", arguments->to, "the row at which it ends");
  add_whole(*command, "-k", arguments->k, "neighbours of each row (default 10)");
  command->add_option("--metric", arguments->metric, "l2 (default), ip or cosine")->type_name("M");
  add_number(*command, "--recall", arguments->recall,
             "recall of the graph that is built, in (0, 1] (default 1: exact)");
  add_whole(*command, "--epochs", arguments->epochs,
            "iterations of the map (default 300, or 100 above 200,000 rows)");
  command->add_option("--type", items.type, "read vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  command->footer(
      "The page shows paths, neighbours, a map, components and hubs, and searches for pictures and "
      "vectors that are dropped in. It loads nothing from other machines.\n\n"
      "Example:\n"
      "  knear explore --base train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz "
      "--port 8080");
  group_options(*command, rarely_needed,
                {"--from", "--to", "--epochs", "--type", "--recall", "--metric"});
  command->callback([=] { run_explore(*arguments); });
}

}  // namespace knear::cli
