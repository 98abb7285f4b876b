// cli/main.cpp -- the program knear: finds the command, runs it, turns failures into one line.
//
// Exit status: 0; 2 where the words can't be parsed; 128 + signal where Ctrl-C stopped the work;
// 1 for everything else. An error is one line on standard error that begins "knear: ".
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "knear/core/error.hpp"
#include "knear/core/version.hpp"

namespace knear::cli {
namespace {

enum Status { ok = 0, failure = 1, unparsed = 2 };

// A closed standard stream would be the number of the next file opened, and results or messages
// would be written to it. The replacement cannot be written to, so that printing fails as it
// should.
void occupy_closed_streams() {
  for (int stream : {0, 1, 2})
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", O_RDONLY) == -1) _exit(failure);
}

int complain(std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  message.erase(message.find_last_not_of(' ') + 1);
  std::fprintf(stderr, "knear: %s\n", message.c_str());
  return status;
}

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
  add_roofline(app);
  add_bench(app);
}

// CLI11 reports "A subcommand is required" for any misspelt word here; this names the word.
void check_first_word(CLI::App& app, int argc, char** argv) {
  if (argc < 2) unparsable("no command given; 'knear --help' lists them");
  const std::string word = argv[1];
  const auto is_it = [&](const CLI::App* command) { return command->get_name() == word; };
  const bool known = word.starts_with("-") ? app.get_option_no_throw(word) != nullptr
                                           : !app.get_subcommands(is_it).empty();
  if (!known) unparsable(fmt::format("unknown command '{}'; 'knear --help' lists them", word));
}

int run(int argc, char** argv) {
  CLI::App app("Nearest neighbours of dense vectors, exactly.", "knear");
  app.footer("'knear COMMAND --help' shows the options of a command and an example.");
  app.set_version_flag("--version", "knear " KNEAR_VERSION);
  app.require_subcommand(1);
  add_commands(app);
  if (argc > 2 && argv[1] == std::string_view("bench") && argv[2] == std::string_view("ann"))
    run_bench_ann(argv + 3);
  try {
    check_first_word(app, argc, argv);
    app.parse(argc, argv);
    finish_output();
    return ok;
  } catch (const CLI::CallForHelp&) {
    print_text(app.help());
  } catch (const CLI::CallForVersion& version) {
    print("{}\n", version.what());
  }
  finish_output();
  return ok;
}

int guarded_run(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const CLI::ParseError& error) {
    return complain(error.what(), unparsed);
  } catch (const Cancelled&) {
    return complain("interrupted", interrupted() ? 128 + interrupting_signal() : failure);
  } catch (const Error& error) {
    return complain(error.what(), failure);
  } catch (const std::bad_alloc&) {
    return complain("out of memory", failure);
  } catch (const std::exception& error) {
    return complain(error.what(), failure);
  }
}

}  // namespace
}  // namespace knear::cli

int main(int argc, char** argv) {
  knear::cli::occupy_closed_streams();
  signal(SIGPIPE, SIG_IGN);  // a closed pipe is then a write error, not a silent end
  return knear::cli::guarded_run(argc, argv);
}
