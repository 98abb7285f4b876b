// cli/search_command.cpp -- `knear search`: the nearest rows of a base for each query.
#include <cmath>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/search_job.hpp"

namespace knear::cli {
namespace {

// The library has no search for the k nearest within a radius: the program cuts an answer
// (search_job.cpp).
void check_radius(const SearchArguments& arguments) {
  const std::string& method = arguments.method;
  if (!std::isnan(arguments.radius) && method != "auto" && method != "exact")
    throw InvalidArgument("--radius {} is for --method auto and exact, but it is {}",
                          arguments.radius, method);
  if (!std::isnan(arguments.radius) && arguments.recall < 1)
    throw InvalidArgument(
        "--recall is {}, but a search with --radius {} is calibrated for none below 1",
        arguments.recall, arguments.radius);
}

void run_search(const SearchArguments& arguments) {
  check_search_files(arguments);
  check_radius(arguments);
  if (arguments.index.empty() && (arguments.replicas || arguments.allow_partial))
    throw InvalidArgument("{} is for --index, but --base is {}",
                          arguments.replicas ? "--replicas" : "--allow-partial", arguments.base);
  print_outcome(arguments, run_search_job(arguments));
}

}  // namespace

void check_search_files(const SearchArguments& arguments) {
  if (arguments.base.empty() && arguments.index.empty())
    unparsable("one of --base and --index is required");
  if (!arguments.base.empty() && !arguments.index.empty())
    unparsable(fmt::format("--base is {} and --index is {}, but only one of them can be searched",
                           arguments.base, arguments.index));
  if (arguments.queries.empty()) unparsable("--queries is required");
}

void add_search_only_arguments(CLI::App& command, SearchArguments& arguments) {
  command.add_option("--index", arguments.index, "an index to search in, made by knear build")
      ->type_name("FILE");
  command
      .add_option("--method", arguments.method,
                  "auto (default), exact, threshold-heap or partial-reduce")
      ->type_name("M");
  add_whole(command, "--samples", arguments.samples,
            "rows that thresholds are taken from (threshold-heap; default: 8 k)");
  add_whole(command, "--probes", arguments.probes,
            "how many of the inverted lists nearest to a query are searched");
  command.add_flag("--widen", arguments.widen,
                   "more lists for queries that find fewer than k in these");
  command.add_flag("--certify", arguments.certify,
                   "prove of which queries no other list holds anything nearer");
  add_whole(command, "--refine-factor", arguments.refine_factor,
            "codes measured by their vectors for each neighbour (of an index with ,RFlat; default: "
            "4)");
  add_whole(command, "--ef", arguments.ef,
            "how many of the nearest vectors that it has seen a search keeps (of an index Graphn)");
  add_whole(command, "--replicas", arguments.replicas,
            "between which the queries are divided (of an index; default: as it was built)");
  command.add_flag("--allow-partial", arguments.allow_partial,
                   "search what is there of an index in shards, and say what is missing");
}

void add_search(CLI::App& app) {
  CLI::App* command = app.add_subcommand("search", "Find the k nearest vectors of a base");
  auto arguments = std::make_shared<SearchArguments>();
  add_search_arguments(*command, *arguments);
  add_search_only_arguments(*command, *arguments);
  command->footer(
      "Files: .fvecs .bvecs .fbin .u8bin .i8bin .npy and MNIST idx, also gzipped. With --recall "
      "below 1 --method auto answers exactly where that is no slower. An index of inverted lists "
      "needs --probes or --recall, a graph --ef or --recall; with --recall 1 it goes on until all "
      "answers are "
      "certain.\n\nExample:\n"
      "  knear search --base base.fvecs --queries queries.fvecs -k 10 --out near.ivecs --explain");
  command->callback([=] { run_search(*arguments); });
}

}  // namespace knear::cli
