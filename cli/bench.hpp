// cli/bench.hpp -- what the benches share; each adds its own command below `knear bench`.
#pragma once
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/neighbors.hpp"

namespace knear::cli {

// The median, the upper one of two in the middle. Requires that there are values.
double median(std::vector<double> values);

// The wall-clock seconds that `work` takes.
template <class F>
double seconds_of(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Whether two answers of one shape are the same, to the bit.
bool same_bits(const Neighbors& a, const Neighbors& b);

// Adds --device to a bench that searches on a GPU too, beside the processor; check_device() checks
// it.
void add_device(CLI::App& bench, std::string& device);
// Adds --device to a bench that has no search for a GPU, and checks it: InvalidArgument unless it
// is cpu.
void add_no_device(CLI::App& bench, std::string& device);
void check_no_device(const std::string& device, std::string_view bench);

void add_bench_ann(CLI::App& bench);
void add_bench_index(CLI::App& bench);
void add_bench_kmeans(CLI::App& bench);
void add_bench_model(CLI::App& bench);
void add_bench_neighbors(CLI::App& bench);
void add_bench_recall(CLI::App& bench);
void add_bench_threshold_heap(CLI::App& bench);

}  // namespace knear::cli
