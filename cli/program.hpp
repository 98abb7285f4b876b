// cli/program.hpp -- what the main() of the programs knear and knear-dist have in common.
#pragma once
#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace knear::cli {

// Occupies standard streams that are closed. Turns a closed pipe and a file that may not grow
// (ulimit -f) into a write error, and a mapped file that is truncated into a line, instead of a
// silent end.
void prepare_process();

// How a run of a program ended: its exit status, and the line that says why where it is not 0.
struct Ending {
  int status = 0;
  std::string message = {};
};

// Calls run(). 0; 2 where the words could not be parsed; 128 + signal where Ctrl-C stopped the
// work; 1 for everything else.
Ending ending_of(const std::function<void()>& run);

// "knear: MESSAGE", in one line on standard error.
void complain(std::string message);

// Parses the words, whose first is to be the name of a command or an option of `app`, and so runs
// the command; prints the help or version that is asked for, if this process `prints`. program:
// "knear", as it is typed.
void parse(CLI::App& app, const std::string& program, int argc, char** argv, bool prints = true);

}  // namespace knear::cli
