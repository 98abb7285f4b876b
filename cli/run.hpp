// cli/run.hpp -- the program knear as a function. Its main() includes nothing else, since a source
// that includes the parser of arguments takes ten seconds to compile.
#pragma once

namespace knear::cli {

// Runs the command that the arguments name. Returns the exit status: 0; 2 if the arguments cannot
// be parsed; 128 + signal if Ctrl-C stopped the work; 1 for everything else. An error is one line
// on standard error that begins "knear: ".
int run_program(int argc, char** argv);

}  // namespace knear::cli
