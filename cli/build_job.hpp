// cli/build_job.hpp -- what `knear build` and `knear dist build` have in common: arguments, what
// they lead to, and what is printed.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "knear/factory/choose_index.hpp"
#include "knear/index/index.hpp"

namespace knear::cli {

struct BuildArguments {
  static constexpr std::int64_t not_given = std::numeric_limits<std::int64_t>::min();

  std::string base, index, out, metric, type;
  std::int64_t threads = 0, train = not_given, iterations = not_given, seed = not_given;
  // For --index auto.
  std::int64_t memory = 0, batch = not_given;
  std::int64_t shards = not_given, replicas = not_given;
  double recall = std::numeric_limits<double>::quiet_NaN();
  bool json = false, optimize = false;

  bool automatic() const { return index == "auto"; }
};

void add_build_arguments(CLI::App& command, BuildArguments& arguments);

// Throws InvalidArgument for what can be seen to be wrong before a file is read.
void check_build(const BuildArguments& arguments);
// 1 for what is not given. Throws InvalidArgument.
ShardingOptions sharding_of(const BuildArguments& arguments);
// Throws InvalidArgument for an --out that cannot be written.
void check_build_output(const BuildArguments& arguments);
Metric build_metric(const BuildArguments& arguments);
// The kind of index for such a base: with --index auto a guess, unless `sample` has vectors to
// measure. Throws InvalidArgument.
IndexChoice build_choice(const BuildArguments& arguments, std::int64_t rows, std::int64_t dim,
                         ElementType type, Metric metric, AnyMatrixView sample = {},
                         const ChangeOptions& options = {});
// Throws InvalidArgument for more vectors than the base has rows.
TrainOptions train_options(const BuildArguments& arguments, std::int64_t rows, int threads,
                           const Progress& progress);

// Description of an index that was built.
struct Built {
  std::int64_t rows = 0, dim = 0, memory_bytes = 0, optimized_rows = 0;
  ElementType type = ElementType::f32;
  Metric metric = Metric::l2;
  int threads = 0;
  double seconds = 0, train_seconds = 0;
  bool has_graph = false;
  std::optional<ShardingOptions> sharding = {};  // nothing: not in shards
  std::optional<int> ranks = {};                 // processes that have built it
};
// One JSON object with arguments.json, else lines.
void print_built(const BuildArguments& arguments, const IndexChoice& choice, const Built& built);

}  // namespace knear::cli
