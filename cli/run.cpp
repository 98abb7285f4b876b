// cli/run.cpp -- the program knear: finds the command, runs it, turns failures into one line.
#include "cli/run.hpp"

#include <string_view>

#include "cli/commands.hpp"
#include "cli/program.hpp"
#include "knear/core/version.hpp"

namespace knear::cli {
namespace {

// The order is that of the help.
void add_commands(CLI::App& app) {
  add_demo(app);
  add_info(app);
  add_convert(app);
  add_build(app);
  add_tune(app);
  add_kmeans(app);
  add_search(app);
  add_truth(app);
  add_eval(app);
  add_graph(app);
  add_path(app);
  add_explore(app);
  add_serve(app);
  add_plan(app);
  add_dist(app);
  add_roofline(app);
  add_bench(app);
  add_completion(app);
}

void run(int argc, char** argv) {
  CLI::App app("Nearest neighbours of dense vectors, exactly.", "knear");
  app.footer("'knear COMMAND --help' shows the options of a command and an example.");
  app.set_version_flag("--version", "knear " KNEAR_VERSION);
  app.require_subcommand(1);
  add_commands(app);
  if (argc > 2 && argv[1] == std::string_view("bench") && argv[2] == std::string_view("ann"))
    run_bench_ann(argv + 3);
  if (argc > 1 && argv[1] == std::string_view("dist")) run_dist(argv + 2);
  parse(app, "knear", argc, argv);
}

}  // namespace

int run_program(int argc, char** argv) {
  prepare_process();
  const auto ending = ending_of([&] { run(argc, argv); });
  if (ending.status != 0) complain(ending.message);
  return ending.status;
}

}  // namespace knear::cli
