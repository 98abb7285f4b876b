// cli/words.hpp -- checks the words of a command line before CLI11 reads them.
//
//   app.parse(reversed(checked_words(app, "knear", {argv + 1, argv + argc})));
//
// CLI11 looks for missing options first, so that `knear search --bse x` would be told that -k is
// required. Here the first word that no command knows is reported, with the nearest that exists.
#pragma once
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace knear::cli {

// The name that a mistyped one most likely means: the one with the fewest changed, missing, added
// or swapped letters, if these are at most a third of them, or if one name begins with the other or
// with the same four letters. Case and leading dashes do not count. Empty if no name is near; of
// equally near ones the first.
std::string nearest_name(const std::string& word, const std::vector<std::string>& names);

// The words for CLI11 to parse: those that are given, but --k as -k, -k=3 as -k3, and an empty
// value (--base=) as a word of its own, because CLI11 would take the next word instead. Throws
// CLI::ParseError for the first word that is no command, option or argument; an option or argument
// may be unknown where --help is among the words. program: "knear", as it is typed.
std::vector<std::string> checked_words(const CLI::App& app, const std::string& program,
                                       const std::vector<std::string>& words);

}  // namespace knear::cli
