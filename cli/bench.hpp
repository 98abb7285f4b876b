// cli/bench.hpp -- what the benches share; each adds itself below `knear bench`.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"

namespace knear::cli {

// The upper one of two in the middle. Requires that there are values.
double median(std::vector<double> values);

// Vectors around 64 centres, all of them from the seed: real sets are clustered too, and uniform
// noise, where every row is equally far, would be the hardest case for a threshold. u8 or f32;
// another stream gives other vectors around the same centres.
AnyMatrix clustered(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                    std::uint64_t stream);

void add_bench_index(CLI::App& bench);
void add_bench_model(CLI::App& bench);

}  // namespace knear::cli
