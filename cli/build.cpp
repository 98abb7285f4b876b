// cli/build.cpp -- `knear build`: an index of a file of vectors, kept in a .knear file.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/factory/choose_index.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/sharded.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {
namespace {

constexpr std::int64_t not_given = std::numeric_limits<std::int64_t>::min();

struct BuildArguments {
  std::string base, index, out, metric, type;
  std::int64_t threads = 0, train = not_given, iterations = not_given, seed = not_given;
  // For --index auto.
  std::int64_t memory = 0, batch = not_given;
  std::int64_t shards = not_given, replicas = not_given;
  double recall = std::numeric_limits<double>::quiet_NaN();
  bool json = false, optimize = false;
};

// Trains what learns from vectors; returns the seconds that it took.
template <class AnyIndex>
double train(AnyIndex& index, AnyMatrixView base, const BuildArguments& arguments, int threads,
             ProgressBar& bar) {
  if (index.is_trained()) return 0;
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t rows = arguments.train == not_given ? 0 : arguments.train;
  if (rows > base.rows())
    throw InvalidArgument("--train is {}, but {} has {} rows", rows, arguments.base, base.rows());
  TrainOptions options{.rows = rows, .threads = threads, .progress = bar.callback()};
  if (arguments.seed != not_given) options.seed = static_cast<std::uint64_t>(arguments.seed);
  if (arguments.iterations != not_given)
    options.iterations = static_cast<int>(std::min<std::int64_t>(arguments.iterations, 1 << 30));
  index.train(base, options);
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

IndexChoice chosen(const io::VectorFile& base, Metric metric, const BuildArguments& arguments) {
  IndexNeeds needs{.metric = metric, .type = base.view().type(), .memory = arguments.memory};
  if (!std::isnan(arguments.recall)) needs.recall = arguments.recall;
  if (arguments.batch != not_given) needs.batch = arguments.batch;
  return choose_index(base.view().rows(), base.view().cols(), needs);
}

// An index of the kind that was chosen: fills, saves and describes it.
template <class AnyIndex>
void build(AnyIndex index, const IndexChoice& choice, AnyMatrixView base,
           const BuildArguments& arguments, int threads,
           std::chrono::steady_clock::time_point start) {
  ProgressBar bar;
  const double train_seconds = train(index, base, arguments, threads, bar);
  index.add(base, {.threads = threads, .progress = bar.callback()});
  const ChangeOptions change{.threads = threads, .progress = bar.callback()};
  const std::int64_t optimized =
      arguments.optimize || index.has_graph() ? index.optimize(change) : 0;
  index.save(arguments.out, bar.callback());
  bar.clear();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string type(name_of(index.element_type()));
  const bool automatic = arguments.index == "auto";
  if (arguments.json) {
    nlohmann::ordered_json out = {{"index", choice.factory},
                                  {"rows", index.size()},
                                  {"dim", index.dim()},
                                  {"type", type},
                                  {"metric", name_of(index.metric())},
                                  {"memory_bytes", index.memory_bytes()},
                                  {"threads", threads},
                                  {"seconds", seconds},
                                  {"train_seconds", train_seconds}};
    if constexpr (requires { index.shards(); })
      out["shards"] = index.shards(), out["replicas"] = index.replicas();
    if (automatic) out["reason"] = choice.reason;
    if (arguments.optimize) out["optimized_rows"] = optimized;
    print("{}\n", out.dump(2));
    return;
  }
  if (automatic) print("{}\n", choice.reason);
  std::string parts;
  if constexpr (requires { index.shards(); })
    parts = fmt::format(" in {} shards x {} replicas", index.shards(), index.replicas());
  print("{}: {}{}, {} x {} {}, {}, {} in {}\n", arguments.out, choice.factory, parts, index.size(),
        index.dim(), type, name_of(index.metric()), readable_bytes(double(index.memory_bytes())),
        readable_seconds(seconds));
  if (arguments.optimize && !knear::learns(choice.factory) && !index.has_graph())
    print("{} of {} rows are searched by a prefix{}\n", optimized, index.size(),
          optimized == index.size() ? "" : ", the others would not gain by one");
}

void run_build(const BuildArguments& arguments) {
  if (!arguments.metric.empty()) parse_metric(arguments.metric);
  // What is wrong is said before a file is read.
  const bool automatic = arguments.index == "auto";
  for (const auto& [option, given] : {std::pair("--memory", arguments.memory != 0),
                                      std::pair("--recall", !std::isnan(arguments.recall)),
                                      std::pair("--batch", arguments.batch != not_given)})
    if (given && !automatic)
      throw InvalidArgument("{} is for --index auto, but --index is {}", option, arguments.index);
  const bool learns = automatic || knear::learns(arguments.index);
  for (const auto& [option, value] :
       {std::pair("--train", arguments.train), std::pair("--iterations", arguments.iterations)}) {
    if (value != not_given) check_positive(option, value);
  }
  if (!learns) check_nothing_is_learned(arguments, arguments.index);
  const int threads = checked_threads(arguments.threads);
  const auto parts = [](std::string_view option, std::int64_t value) {
    return value == not_given ? 1 : checked_parts(option, value);
  };
  const ShardingOptions sharding{.shards = parts("--shards", arguments.shards),
                                 .replicas = parts("--replicas", arguments.replicas)};
  const CatchInterrupts guard;
  const io::VectorFile base = open_vectors(arguments.base, arguments.type, base_dataset);
  if (arguments.out.ends_with(".faiss"))
    throw InvalidArgument(
        "--out must end in .knear, but is '{}': 'knear convert' makes a file of FAISS of that",
        arguments.out);
  check_output("--out", arguments.out, {".knear"}, {arguments.base});
  const Metric metric =
      arguments.metric.empty() ? metric_of_file(arguments.base) : parse_metric(arguments.metric);
  check_interrupt();

  const auto start = std::chrono::steady_clock::now();
  const IndexChoice choice =
      automatic ? chosen(base, metric, arguments) : IndexChoice{.factory = arguments.index};
  if (!knear::learns(choice.factory)) check_nothing_is_learned(arguments, choice.factory);
  Index index = make_index(choice.factory, base.view().cols(), metric);
  if (arguments.shards == not_given && arguments.replicas == not_given)
    build(std::move(index), choice, base.view(), arguments, threads, start);
  else
    build(ShardedIndex(index, sharding), choice, base.view(), arguments, threads, start);
}

}  // namespace

void add_build(CLI::App& app) {
  CLI::App* command = app.add_subcommand("build", "Build an index and keep it in a file");
  auto arguments = std::make_shared<BuildArguments>();
  command->add_option("--base", arguments->base, "vectors, as for search")
      ->type_name("FILE")
      ->required();
  command
      ->add_option(
          "--index", arguments->index,
          "kind of index: Flat (exact search, prepared once), IVF1024,Flat (1024 inverted "
          "lists), Graph32 (a graph of 32 links a row, for one query a call), IVF1024,PQ32 "
          "(lists and codes of 32 bytes), PQ32, SQ8; ,RFlat behind codes keeps the "
          "vectors too; auto: what suits --memory, --recall and --batch")
      ->type_name("KIND")
      ->required();
  command->add_option("--out", arguments->out, "the file to write, .knear")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--metric", arguments->metric,
                   "l2 (default; of .hdf5 what the file says), ip or cosine")
      ->type_name("M");
  command->add_option("--type", arguments->type, "keep vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  add_whole(
      *command, "--train", arguments->train,
      "vectors that the lists are learned from, drawn at random (default: 256 for each list)");
  add_whole(*command, "--iterations", arguments->iterations,
            "of k-means on a quarter of these, and half as many on all (default: 10)");
  add_whole(*command, "--seed", arguments->seed, "of what is drawn at random (default: 1)");
  add_size(*command, "--memory", arguments->memory,
           "auto: what the index may take (default: as much as it likes)");
  command->add_option("--recall", arguments->recall, "auto: the recall to come (default: 0.95)")
      ->type_name("R");
  add_whole(*command, "--batch", arguments->batch,
            "auto: queries in a call (default: 1000; for up to 4 a graph may be taken)");
  add_whole(*command, "--shards", arguments->shards,
            "divide the rows into so many parts, each with a file of its own beside --out");
  add_whole(*command, "--replicas", arguments->replicas,
            "divide the queries of a search between so many groups of processors");
  command->add_flag("--optimize", arguments->optimize,
                    "make now what many searches would come to make, where it pays");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "The file is searched where it lies, without being read first.\n\nExample:\n"
      "  knear build --base base.fvecs --index Flat --out base.knear\n"
      "  knear search --index base.knear --queries queries.fvecs -k 10\n"
      "  knear build --base base.fvecs --index IVF1024,Flat --out base.knear\n"
      "  knear build --base base.fvecs --index auto --memory 200M --recall 0.9 --out base.knear\n"
      "  knear search --index base.knear --queries queries.fvecs -k 10 --probes 16");
  command->callback([=] { run_build(*arguments); });
}

}  // namespace knear::cli
