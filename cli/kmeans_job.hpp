// cli/kmeans_job.hpp -- what `knear kmeans` and `knear dist kmeans` have in common: arguments,
// centroids to begin with, weights, and what is printed.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {

struct KMeansArguments {
  std::string base, out, metric = "l2", type, initial, weights, seeding = "random", device = "cpu";
  std::int64_t k = 0, iterations = 25, seed = 1, restarts = 1, rows_per_centroid = 0, levels = 1,
               threads = 0, memory = 0;
  double tolerance = 0;
  bool frozen = false, json = false;
};

void add_kmeans_arguments(CLI::App& command, KMeansArguments& arguments);

// The options that these numbers and words say, without what is read from files. Throws
// InvalidArgument.
KMeansOptions kmeans_options(const KMeansArguments& arguments);

// Some of the rows of a file.
struct RowsOfFile {
  std::int64_t begin = 0, end = 0, all = 0;
};

// --initial and --weights, read. Of weights those of some rows, or all. `options` refers to them as
// long as this lives. Throws InvalidArgument, ShapeMismatch and what reading throws.
class KMeansFiles {
 public:
  KMeansFiles(const KMeansArguments& arguments, KMeansOptions& options,
              std::optional<RowsOfFile> rows = {});

 private:
  std::optional<io::VectorFile> initial_;
  std::vector<float> weights_;
};

// Several that have a part of the rows each.
struct KMeansProcesses {
  int ranks = 1;
  bool on_gpus = false;
  std::string why_no_nccl;  // why GPUs do not add up among themselves; empty where they do
};

// One JSON object with arguments.json, else two lines. rows: of the base, of which the centroids
// are; processes: nothing for one that is not one of several.
void print_kmeans(const KMeansArguments& arguments, const KMeansOptions& options,
                  const KMeans& found, std::int64_t rows, double seconds,
                  const std::optional<KMeansProcesses>& processes = {});

}  // namespace knear::cli
