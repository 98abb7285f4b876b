// cli/search_command.cpp -- `knear search`: the nearest rows of a base for each query.
#include <cmath>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/help.hpp"
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
  command.add_option("--index", arguments.index, "index to search in, from knear build")
      ->type_name("FILE");
  command
      .add_option("--method", arguments.method,
                  "auto (default), exact, threshold-heap or partial-reduce")
      ->type_name("M");
  add_whole(command, "--samples", arguments.samples,
            "threshold-heap: rows of the sample (default: 8 k)");
  add_whole(command, "--probes", arguments.probes, "number of inverted lists to search per query");
  command.add_flag("--widen", arguments.widen,
                   "search more lists where a query finds fewer than k");
  command.add_flag("--certify", arguments.certify,
                   "report which answers are proven to be complete");
  add_whole(command, "--refine-factor", arguments.refine_factor,
            "vectors to measure per neighbour (index with ,RFlat; default: 4)");
  add_whole(command, "--ef", arguments.ef,
            "number of candidates to keep (graph; larger finds more)");
  add_whole(command, "--replicas", arguments.replicas,
            "groups of CPUs to divide the queries between (index; default: as built)");
  command.add_flag("--allow-partial", arguments.allow_partial,
                   "search an index in shards although some shards are missing");
}

void add_search(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("search", "Find the k nearest vectors of a base or an index");
  auto arguments = std::make_shared<SearchArguments>();
  add_search_arguments(*command, *arguments);
  add_search_only_arguments(*command, *arguments);
  command->footer(
      "Files: .fvecs .bvecs .fbin .u8bin .i8bin .npy .hdf5 and MNIST idx, also gzipped. An index "
      "of "
      "inverted lists needs --probes or --recall, a graph --ef or --recall. With --recall 1 every "
      "answer is certain.\n\nExample:\n"
      "  knear search --base base.fvecs --queries queries.fvecs -k 10 --out near.ivecs --explain");
  group_options(
      *command, "Search",
      {"-k", "--metric", "--recall", "--probes", "--ef", "--filter", "--radius", "--certify"});
  group_options(
      *command, rarely_needed,
      {"--method", "--samples", "--widen", "--refine-factor", "--replicas", "--allow-partial"});
  command->callback([=] { run_search(*arguments); });
}

}  // namespace knear::cli
