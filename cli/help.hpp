// cli/help.hpp -- the help of commands: groups of options, lines that fit a screen.
//
//   group_options(*command, rarely_needed, {"--seed", "--restarts"});
//   add_help_all(app);                       // once, when all commands are there
//   print_text(help_text(app, all));         // after CLI::CallForHelp or CLI::CallForAllHelp
//
// --help leaves out the options of the group rarely_needed, and --help-all shows them.
#pragma once
#include <CLI/CLI.hpp>

#include <initializer_list>
#include <string>

namespace knear::cli {

inline constexpr const char* rarely_needed = "Rarely needed";

// Moves these options of the command into a group, which the help shows under its name.
void group_options(CLI::App& command, const char* group, std::initializer_list<const char*> names);

// Gives every command the flag --help-all.
void add_help_all(CLI::App& app);

// The help of the command that was parsed, in lines of at most 100 columns except for examples.
// all: with the options of the group rarely_needed.
std::string help_text(const CLI::App& app, bool all);

}  // namespace knear::cli
