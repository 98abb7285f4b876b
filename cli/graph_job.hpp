// cli/graph_job.hpp -- what `knear graph` and `knear dist graph` have in common: the arguments.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace knear::cli {

struct GraphArguments {
  std::string base, from, out, metric, type;
  std::int64_t k = 0, threads = 0, memory = 0, accuracy = 0;
  double recall = std::numeric_limits<double>::quiet_NaN();
  bool distinct = false, resume = false, json = false;
};

void add_graph_arguments(CLI::App& command, GraphArguments& arguments);

}  // namespace knear::cli
