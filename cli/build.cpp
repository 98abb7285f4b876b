// cli/build.cpp -- `knear build`: an index of a file of vectors, kept in a .knear file.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cli/arguments.hpp"
#include "cli/build_job.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/help.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/factory/choose_index.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {
namespace {

constexpr std::int64_t not_given = BuildArguments::not_given;

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_nothing_is_learned(const BuildArguments& arguments, const std::string& factory) {
  for (const auto& [option, value] :
       {std::pair("--train", arguments.train), std::pair("--iterations", arguments.iterations),
        std::pair("--seed", arguments.seed)})
    if (value != not_given)
      throw InvalidArgument("{} is {}, but {} learns nothing from the vectors", option, value,
                            factory);
}

bool is_divided(const BuildArguments& arguments) {
  return arguments.shards != not_given || arguments.replicas != not_given;
}

// An index of the kind that was chosen: fills, saves and describes it.
void build(Index index, const IndexChoice& choice, AnyMatrixView base,
           const BuildArguments& arguments, int threads,
           std::chrono::steady_clock::time_point start) {
  ProgressBar bar;
  Built built{
      .rows = base.rows(), .dim = base.cols(), .metric = index.metric(), .threads = threads};
  if (!index.is_trained()) {
    const auto begin = std::chrono::steady_clock::now();
    index.train(base, train_options(arguments, base.rows(), threads, bar.callback()));
    built.train_seconds = since(begin);
  }
  index.add(base, {.threads = threads, .progress = bar.callback()});
  const ChangeOptions change{.threads = threads, .progress = bar.callback()};
  built.has_graph = index.has_graph();
  built.optimized_rows = arguments.optimize || built.has_graph ? index.optimize(change) : 0;
  index.save(arguments.out, bar.callback());
  bar.clear();
  built.seconds = since(start);
  built.type = index.element_type(), built.memory_bytes = index.memory_bytes();
  if (is_divided(arguments)) built.sharding = sharding_of(arguments);
  print_built(arguments, choice, built);
}

void run_build(const BuildArguments& arguments) {
  check_build(arguments);
  const int threads = checked_threads(arguments.threads);
  const ShardingOptions sharding = sharding_of(arguments);
  const CatchInterrupts guard;
  const io::VectorFile base = open_vectors(arguments.base, arguments.type, base_dataset);
  check_build_output(arguments);
  const Metric metric = build_metric(arguments);
  check_interrupt();

  const auto start = std::chrono::steady_clock::now();
  const AnyMatrixView view = base.view();
  const IndexChoice choice = [&] {
    ProgressBar bar;
    return build_choice(arguments, view.rows(), view.cols(), view.type(), metric, view,
                        {.threads = threads, .progress = bar.callback()});
  }();
  Index index = make_index(choice.factory, view.cols(), metric);
  if (is_divided(arguments)) index = index.divided(sharding);
  build(std::move(index), choice, view, arguments, threads, start);
}

}  // namespace

void check_build(const BuildArguments& arguments) {
  if (!arguments.metric.empty()) parse_metric(arguments.metric);
  // Throws for invalid arguments before any file is read.
  for (const auto& [option, given] : {std::pair("--memory", arguments.memory != 0),
                                      std::pair("--recall", !std::isnan(arguments.recall)),
                                      std::pair("--batch", arguments.batch != not_given)})
    if (given && !arguments.automatic())
      throw InvalidArgument("{} is for --index auto, but --index is {}", option, arguments.index);
  const bool learns = arguments.automatic() || knear::learns(arguments.index);
  for (const auto& [option, value] :
       {std::pair("--train", arguments.train), std::pair("--iterations", arguments.iterations)}) {
    if (value != not_given) check_positive(option, value);
  }
  if (!learns) check_nothing_is_learned(arguments, arguments.index);
}

ShardingOptions sharding_of(const BuildArguments& arguments) {
  const auto parts = [](std::string_view option, std::int64_t value) {
    return value == not_given ? 1 : checked_parts(option, value);
  };
  return {.shards = parts("--shards", arguments.shards),
          .replicas = parts("--replicas", arguments.replicas)};
}

void check_build_output(const BuildArguments& arguments) {
  if (arguments.out.ends_with(".faiss"))
    throw InvalidArgument(
        "--out must end in .knear, but is '{}': 'knear convert' makes a file of FAISS of that",
        arguments.out);
  check_output("--out", arguments.out, {".knear"}, {arguments.base});
}

Metric build_metric(const BuildArguments& arguments) {
  return arguments.metric.empty() ? metric_of_file(arguments.base) : parse_metric(arguments.metric);
}

IndexChoice build_choice(const BuildArguments& arguments, std::int64_t rows, std::int64_t dim,
                         ElementType type, Metric metric, AnyMatrixView sample,
                         const ChangeOptions& options) {
  IndexChoice choice{.factory = arguments.index};
  if (arguments.automatic()) {
    IndexNeeds needs{.metric = metric, .type = type, .memory = arguments.memory, .sample = sample};
    if (!std::isnan(arguments.recall)) needs.recall = arguments.recall;
    if (arguments.batch != not_given) needs.batch = arguments.batch;
    try {
      choice = choose_index(rows, dim, needs, options);
    } catch (const InvalidArgument& error) {
      // The sample is of the rows of --base.
      if (error.argument() != "sample") throw;
      throw InvalidArgument("--base{}", std::string_view(error.what()).substr(6));
    }
  }
  if (!knear::learns(choice.factory)) check_nothing_is_learned(arguments, choice.factory);
  return choice;
}

TrainOptions train_options(const BuildArguments& arguments, std::int64_t rows, int threads,
                           const Progress& progress) {
  const std::int64_t used = arguments.train == not_given ? 0 : arguments.train;
  if (used > rows)
    throw InvalidArgument("--train is {}, but {} has {} rows", used, arguments.base, rows);
  TrainOptions options{.rows = used, .threads = threads, .progress = progress};
  if (arguments.seed != not_given) options.seed = static_cast<std::uint64_t>(arguments.seed);
  if (arguments.iterations != not_given)
    options.iterations = static_cast<int>(std::min<std::int64_t>(arguments.iterations, 1 << 30));
  return options;
}

void print_built(const BuildArguments& arguments, const IndexChoice& choice, const Built& built) {
  const std::string type(name_of(built.type));
  if (arguments.json) {
    nlohmann::ordered_json out = {{"index", choice.factory},
                                  {"rows", built.rows},
                                  {"dim", built.dim},
                                  {"type", type},
                                  {"metric", name_of(built.metric)},
                                  {"memory_bytes", built.memory_bytes},
                                  {"threads", built.threads},
                                  {"seconds", built.seconds},
                                  {"train_seconds", built.train_seconds}};
    if (built.sharding)
      out["shards"] = built.sharding->shards, out["replicas"] = built.sharding->replicas;
    if (built.ranks) out["ranks"] = *built.ranks;
    if (arguments.automatic()) out["reason"] = choice.reason;
    if (arguments.optimize) out["optimized_rows"] = built.optimized_rows;
    print("{}\n", out.dump(2));
    return;
  }
  if (arguments.automatic()) print("{}\n", choice.reason);
  std::string parts;
  if (built.sharding)
    parts = fmt::format(" in {} shards x {} replicas", built.sharding->shards,
                        built.sharding->replicas);
  print("{}: {}{}, {} x {} {}, {}, {} in {}\n", arguments.out, choice.factory, parts, built.rows,
        built.dim, type, name_of(built.metric), readable_bytes(double(built.memory_bytes)),
        readable_seconds(built.seconds));
  if (arguments.optimize && !knear::learns(choice.factory) && !built.has_graph)
    print("{} of {} rows are searched by a prefix{}\n", built.optimized_rows, built.rows,
          built.optimized_rows == built.rows ? "" : ", the others would not gain by one");
}

void add_build_arguments(CLI::App& command, BuildArguments& arguments) {
  command.add_option("--base", arguments.base, "vectors, as for search")
      ->type_name("FILE")
      ->required();
  command
      .add_option(
          "--index", arguments.index,
          "Flat (exact), IVF1024,Flat (1024 inverted lists), Graph32 (a graph with 32 links a "
          "row), "
          "IVF1024,PQ32 (lists of 32-byte codes), PQ32, SQ8; append ,RFlat to keep the vectors of "
          "codes; auto measures a sample and chooses by --memory, --recall and --batch")
      ->type_name("KIND")
      ->required();
  command.add_option("--out", arguments.out, "the file to write, .knear")
      ->type_name("FILE")
      ->required();
  command
      .add_option("--metric", arguments.metric,
                  "l2 (default; of .hdf5 what the file says), ip, cosine; of Flat also l1, hamming")
      ->type_name("M");
  command.add_option("--type", arguments.type, "keep vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  add_whole(command, "--train", arguments.train,
            "number of vectors to learn the lists from (default: 256 for each list)");
  add_whole(command, "--iterations", arguments.iterations,
            "iterations of k-means for the lists (default: 10)");
  add_whole(command, "--seed", arguments.seed, "seed of random choices (default: 1)");
  add_size(command, "--memory", arguments.memory,
           "auto: memory limit of the index (default: none)");
  command
      .add_option("--recall", arguments.recall,
                  "auto: recall that searches will ask for (default: 0.95)")
      ->type_name("R");
  add_whole(command, "--batch", arguments.batch, "auto: queries per call (default: 1000)");
  add_whole(command, "--shards", arguments.shards, "divide the rows into N files beside --out");
  add_whole(command, "--replicas", arguments.replicas,
            "divide the queries of a search between N groups of CPUs");
  command.add_flag("--optimize", arguments.optimize,
                   "prepare the prefix that later searches use, if it pays");
  add_whole(command, "--threads", arguments.threads, "threads to use (default: all)");
  command.add_flag("--json", arguments.json, "print one JSON object");
  group_options(command, "Automatic choice (--index auto)", {"--memory", "--recall", "--batch"});
  group_options(command, rarely_needed, {"--train", "--iterations", "--seed", "--replicas"});
}

void add_build(CLI::App& app) {
  CLI::App* command = app.add_subcommand("build", "Build an index and save it to a file");
  auto arguments = std::make_shared<BuildArguments>();
  add_build_arguments(*command, *arguments);
  command->footer(
      "The file is mapped and searched in place.\n\nExample:\n"
      "  knear build --base base.fvecs --index Flat --out base.knear\n"
      "  knear search --index base.knear --queries queries.fvecs -k 10\n"
      "  knear build --base base.fvecs --index IVF1024,Flat --out base.knear\n"
      "  knear build --base base.fvecs --index auto --memory 200M --recall 0.9 --out base.knear\n"
      "  knear search --index base.knear --queries queries.fvecs -k 10 --probes 16");
  command->callback([=] { run_build(*arguments); });
}

}  // namespace knear::cli
