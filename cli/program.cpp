#include "cli/program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/help.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/words.hpp"
#include "knear/core/error.hpp"
#include "knear/io/lost_pages.hpp"

namespace knear::cli {
namespace {

enum Status { failure = 1, unparsed = 2 };

// A closed standard stream would be the number of the next file opened, and results or messages
// would be written to it. The replacement cannot be written to, so that printing fails as it
// should.
void occupy_closed_streams() {
  for (int stream : {0, 1, 2})
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", O_RDONLY) == -1) _exit(failure);
}

// A word that is there but empty is no answer of any option: it would count as one that was not
// given.
void refuse_empty_words(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() > 0)
      option->check(
          [name = option->get_name()](const std::string& word) {
            if (word.empty()) unparsable(fmt::format("{} needs a value, but got ''", name));
            return std::string();
          },
          "", "");
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    refuse_empty_words(*command);
}

// A flag that is given twice is refused as every other option is that takes one value: of
// --json=false and --json the last would count, and the other be ignored.
void refuse_flags_twice(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() == 0 && option->nonpositional())
      option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    refuse_flags_twice(*command);
}

// Says of an option that was given too often what it was given; nothing if there is none.
void name_repeated_option(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const int most = std::max(1, option->get_items_expected_max());
    const std::vector<std::string>& words = option->results();
    if (option->get_multi_option_policy() != CLI::MultiOptionPolicy::Throw ||
        std::ssize(words) <= most)
      continue;
    if (option->get_items_expected_max() == 0)
      unparsable(fmt::format("{} is given {} times, but may be given once", option->get_name(),
                             words.size()));
    unparsable(fmt::format("{} is given {} times, as {}, but may be given once", option->get_name(),
                           words.size(), fmt::join(words, " and ")));
  }
  for (const CLI::App* command : app.get_subcommands()) name_repeated_option(*command);
}

// The option of this name, with as many dashes as it takes, that was given to the command that ran;
// empty if there is none.
std::string given_option(const CLI::App& app, std::string_view name) {
  for (const CLI::App* command : app.get_subcommands())
    if (std::string found = given_option(*command, name); !found.empty()) return found;
  const std::string option = fmt::format("{}{}", name.size() == 1 ? "-" : "--", name);
  const CLI::Option* given = app.get_option_no_throw(option);
  return given != nullptr && given->count() > 0 ? option : "";
}

// The option that stands for an argument of the library; empty if none that was given does.
std::string option_of(const CLI::App& app, std::string_view argument) {
  std::string name(argument);
  std::replace(name.begin(), name.end(), '_', '-');
  if (std::string found = given_option(app, name); !found.empty()) return found;
  // Rows to train with, or what is built or clustered.
  if (name == "rows")
    if (std::string found = given_option(app, "train"); !found.empty()) return found;
  return name == "rows" || name == "vectors" ? given_option(app, "base") : "";
}

}  // namespace

void prepare_process() {
  occupy_closed_streams();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  io::handle_lost_pages(io::LostPages::end_process);
}

Ending ending_of(const std::function<void()>& run) {
  try {
    run();
    return {};
  } catch (const CLI::ParseError& error) {
    return {unparsed, error.what()};
  } catch (const Cancelled&) {
    return {interrupted() ? 128 + interrupting_signal() : failure, "interrupted"};
  } catch (const std::bad_alloc&) {
    return {failure, "out of memory"};
  } catch (const std::exception& error) {
    return {failure, error.what()};
  }
}

void complain(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  message.erase(message.find_last_not_of(' ') + 1);
  std::fprintf(stderr, "knear: %s\n", detail::printable(message).c_str());
}

void parse(CLI::App& app, const std::string& program, int argc, char** argv, bool prints) {
  add_help_all(app);
  try {
    std::vector<std::string> words = checked_words(
        app, program, std::vector<std::string>(argv + std::min(1, argc), argv + argc));
    refuse_empty_words(app);
    refuse_flags_twice(app);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
  } catch (const CLI::ArgumentMismatch&) {
    name_repeated_option(app);
    throw;
  } catch (const Error& error) {
    // The library names its argument, which is mostly that of an option.
    const std::string named = error.with_options([&](auto name) { return option_of(app, name); });
    if (named == error.what()) throw;
    throw InvalidArgument("{}", named);
  } catch (const CLI::CallForHelp&) {
    if (prints) print_text(help_text(app, false));
  } catch (const CLI::CallForAllHelp&) {
    if (prints) print_text(help_text(app, true));
  } catch (const CLI::CallForVersion& version) {
    if (prints) print("{}\n", version.what());
  }
  finish_output();
}

}  // namespace knear::cli
