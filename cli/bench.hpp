// cli/bench.hpp -- what the benches share; each adds itself below `knear bench`.
#pragma once
#include <CLI/CLI.hpp>

#include <vector>

namespace knear::cli {

// The upper one of two in the middle. Requires that there are values.
double median(std::vector<double> values);

void add_bench_index(CLI::App& bench);

}  // namespace knear::cli
