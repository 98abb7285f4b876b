// cli/truth.cpp -- `knear truth`: writes the exact neighbours to a file, for measuring other
// answers.
#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/search_job.hpp"
#include "knear/core/error.hpp"

namespace knear::cli {
namespace {

void run_truth(const SearchArguments& arguments) {
  if (arguments.recall < 1 && arguments.recall > 0)  // of none this is false
    throw InvalidArgument("truth is always exact, but --recall is {}", arguments.recall);
  print_outcome(arguments, run_search_job(arguments));
}

}  // namespace

void add_truth(CLI::App& app) {
  CLI::App* command = app.add_subcommand("truth", "Write the exact neighbours of every query");
  auto arguments = std::make_shared<SearchArguments>();
  add_search_arguments(*command, *arguments);
  for (const char* needed : {"--base", "--queries", "--out"})
    command->get_option(needed)->required();
  command->footer(
      "Example:\n  knear truth --base base.fvecs --queries queries.fvecs -k 100 --out truth.ivecs");
  command->callback([=] { run_truth(*arguments); });
}

}  // namespace knear::cli
