// cli/dist/main.cpp -- the program knear-dist, which `knear dist` starts in its place: commands
// that many processes under mpirun do together.
//
// All of them parse the same words and do the same steps. What one of them finds wrong all throw
// (core/peers.hpp), and the first says it, once. What one throws by itself, which should not be, it
// says itself and ends the others, who would wait for it.
#include <optional>

#include "cli/dist/job.hpp"
#include "cli/output.hpp"
#include "cli/program.hpp"
#include "knear/core/version.hpp"

namespace knear::cli {
namespace {

// How long one that has failed waits for the others to do so.
constexpr double patience_seconds = 5;

void run(int argc, char** argv, const Job& job) {
  CLI::App app("Commands that processes under mpirun do together.", "knear dist");
  app.footer(
      "Without mpirun there is one process. 'knear dist COMMAND --help' shows the options of a "
      "command and an example.");
  app.set_version_flag("--version", "knear " KNEAR_VERSION);
  app.require_subcommand(1);
  add_dist_build(app, job);
  add_dist_search(app, job);
  add_dist_graph(app, job);
  add_dist_kmeans(app, job);
  parse(app, "knear dist", argc, argv, job.is_first());
}

int dist_main(int argc, char** argv) {
  prepare_process();
  std::optional<MpiSession> session;
  if (const Ending failed = ending_of([&] { session.emplace(argc, argv); }); failed.status != 0) {
    complain(failed.message);
    return failed.status;
  }
  MpiPeers peers;
  const Job job(peers, argc, argv);
  const Ending ending = ending_of([&] { run(argc, argv, job); });
  if (ending.status == 0) return 0;
  const bool alone = !peers.all_come(patience_seconds);
  if (alone || job.is_first()) complain(ending.message);
  if (alone) peers.end_all(ending.status);
  return ending.status;
}

}  // namespace
}  // namespace knear::cli

#ifdef __SANITIZE_ADDRESS__
// Open MPI keeps memory until the end and unloads the modules that took it, so that no suppression
// can name them: leaks are looked for in the tests of what this program is made of.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

int main(int argc, char** argv) { return knear::cli::dist_main(argc, argv); }
