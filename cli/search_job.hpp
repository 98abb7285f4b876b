// cli/search_job.hpp -- what search and truth have in common: arguments, files, the search itself.
#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "cli/device_prediction.hpp"
#include "cli/prediction.hpp"
#include "cli/recall.hpp"
#include "knear/index/index.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {

struct SearchArguments {
  std::string base, index, queries;  // either base or index
  std::string metric;                // empty: l2, or that of the index
  std::string method = "auto", type, device = "cpu", first_pass = "auto", choices;
  std::string out, distances, truth, filter, machine;
  std::int64_t k = 0, threads = 0, memory = 0, samples = 0;
  // Nothing: none given.
  std::optional<std::int64_t> probes, refine_factor, ef, replicas;
  // NaN: none given.
  double recall = std::numeric_limits<double>::quiet_NaN(),
         radius = std::numeric_limits<double>::quiet_NaN();
  bool widen = false, certify = false, allow_partial = false, explain = false, json = false;
};

// The options that both commands take. --base and --queries are not marked as required.
void add_search_arguments(CLI::App& command, SearchArguments& arguments);

// Arguments that only search has.
void add_search_only_arguments(CLI::App& command, SearchArguments& arguments);
// Throws CLI::ParseError unless there are queries, and a base or an index.
void check_search_files(const SearchArguments& arguments);

// The options that these numbers and words say, without those that files do. Throws
// InvalidArgument, DeviceUnavailable.
// The options of either; an index has its own metric and filter.
using BaseOrIndexOptions = BasicKnnOptions<Metric, RowFilter, SearchMethod>;
BaseOrIndexOptions search_options(const SearchArguments& arguments);
// Throws InvalidArgument for what only an index takes.
inline KnnOptions options_of_base(const BaseOrIndexOptions& options) {
  return options.with(options.metric, options.filter, detail::method_of_scan(options.method));
}
// Throws where arguments.out or arguments.distances cannot be written, or the answer to so many
// queries is more than there is memory.
void check_answer_files(const SearchArguments& arguments, std::int64_t queries);
// Writes both where they are given, or neither.
void write_answers(const SearchArguments& arguments, const Neighbors& near);

struct SearchOutcome {
  io::VectorFile queries;
  std::optional<io::VectorFile> base = {};  // either this
  std::optional<Index> index = {};          // or this, or neither: the base was read block by block
  std::int64_t rows = 0;                    // of the base or index
  ElementType base_type = ElementType::f32;
  Neighbors near = {};
  Matrix<double> distances = {};  // float64, for a base read block by block
  KnnReport report = {};
  // Of a search by the processor; of one on a GPU, where has_device_plan().
  std::optional<Prediction> prediction = {};
  std::optional<DevicePrediction> device_prediction = {};
  std::optional<RecallFigures> recall = {};  // if arguments.truth is given
  // If arguments.radius is given: neighbours kept, over all queries; queries that have more than k
  // within it.
  std::int64_t within_radius = 0, queries_cut = 0;
  double seconds = 0;  // of the search, including packing of the base, not reading files
};

// Checks every argument, then the files, then searches with a progress bar; writes arguments.out
// and arguments.distances where they are given. Ctrl-C ends it with Cancelled. An error leaves
// neither output behind.
SearchOutcome run_search_job(const SearchArguments& arguments);

// Prints one JSON object with arguments.json, else a summary, and the first few answers where no
// file holds them.
void print_outcome(const SearchArguments& arguments, const SearchOutcome& outcome);

}  // namespace knear::cli
