// cli/commands.hpp -- every command of the program: one function that adds it, one source file
// each.
//
// add_x(app) adds the subcommand with its options, help text and example (the footer), and a
// callback that does the work. The callback runs while CLI11 parses; it throws knear::Error for
// what went wrong (exit status 1) and CLI::ParseError only for words that can't be parsed (2). It
// prints results with the functions of output.hpp and nothing else: main() prints the one error
// line.
#pragma once
#include <CLI/CLI.hpp>

namespace knear::cli {

void add_demo(CLI::App& app);
void add_info(CLI::App& app);
void add_convert(CLI::App& app);
void add_build(CLI::App& app);
void add_kmeans(CLI::App& app);
void add_tune(CLI::App& app);
void add_search(CLI::App& app);
void add_truth(CLI::App& app);
void add_eval(CLI::App& app);
void add_graph(CLI::App& app);
void add_path(CLI::App& app);
void add_explore(CLI::App& app);
void add_serve(CLI::App& app);
void add_plan(CLI::App& app);
void add_dist(CLI::App& app);
void add_roofline(CLI::App& app);
void add_bench(CLI::App& app);
void add_completion(CLI::App& app);

// `knear bench ann WORDS ...` runs another program, which parses the words, the last of which is
// null: --help is its own too. Returns only by an Error, if that program cannot be started.
void run_bench_ann(char** words);

// `knear dist WORDS ...` runs the program knear-dist beside this one, in the same way.
void run_dist(char** words);

}  // namespace knear::cli
