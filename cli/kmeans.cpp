// cli/kmeans.cpp -- `knear kmeans`: the centroids of a file of vectors.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/help.hpp"
#include "cli/interrupt.hpp"
#include "cli/kmeans_job.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/cluster/k_means.hpp"
#include "knear/core/json.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

// The rows of a file, read anew each time.
RowBlocks blocks_of(const BlockwiseFile& file) {
  return {file.rows, file.dim, [=](const std::function<void(AnyMatrixView)>& take) {
            io::VectorBlocks blocks(file.path, file.options);
            for (AnyMatrixView rows = blocks.next(file.block_rows); rows.rows() > 0;
                 rows = blocks.next(file.block_rows)) {
              take(rows);
              check_interrupt();
            }
          }};
}

// An int; what is too large stays too large, for the library to refuse.
int narrow(std::int64_t value) {
  return static_cast<int>(std::clamp<std::int64_t>(value, -1, 1 << 30));
}

void run_kmeans(const KMeansArguments& arguments) {
  KMeansOptions options = kmeans_options(arguments);
  check_one_device(options.device);  // before files are read
  check_output("--out", arguments.out, {".fvecs", ".fbin", ".npy"},
               {arguments.base, arguments.initial, arguments.weights});
  const CatchInterrupts guard;
  const std::optional<BlockwiseFile> file =
      blockwise_file(arguments.base, arguments.type, base_dataset, arguments.memory);
  std::optional<io::VectorFile> base;
  if (!file) base = open_vectors(arguments.base, arguments.type, base_dataset);
  const KMeansFiles files(arguments, options);
  ProgressBar bar;
  const Progress shown = bar.callback();
  std::string stage = "k-means";
  options.progress = [&](std::string_view, double fraction) { return shown(stage, fraction); };
  options.report = [&](const KMeansStep& step) {
    stage = fmt::format("k-means, objective {:.6g}", step.objective);
  };
  const auto start = std::chrono::steady_clock::now();
  const KMeans found = file ? k_means(blocks_of(*file), arguments.k, options)
                            : k_means(base->view(), arguments.k, options);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();
  io::write_vectors(arguments.out, found.centroids.view());
  print_kmeans(arguments, options, found, file ? file->rows : base->view().rows(), seconds);
}

}  // namespace

KMeansOptions kmeans_options(const KMeansArguments& arguments) {
  check_positive("-k", arguments.k);
  if (arguments.frozen && arguments.initial.empty())
    throw InvalidArgument("--frozen is for centroids that are given by --initial");
  return {.metric = parse_metric(arguments.metric),
          .iterations = narrow(arguments.iterations),
          .seed = static_cast<std::uint64_t>(arguments.seed),
          .seeding = parse_seeding(arguments.seeding),
          .restarts = narrow(arguments.restarts),
          .rows_per_centroid = arguments.rows_per_centroid,
          .tolerance = arguments.tolerance,
          .levels = narrow(arguments.levels),
          .threads = checked_threads(arguments.threads),
          .device = arguments.device};
}

KMeansFiles::KMeansFiles(const KMeansArguments& arguments, KMeansOptions& options,
                         std::optional<RowsOfFile> rows) {
  if (!arguments.initial.empty()) {
    initial_ = open_vectors(arguments.initial, "f32", base_dataset);
    options.initial = initial_->view().as<float>();
    if (arguments.frozen) options.frozen_rows = options.initial.rows();
  }
  if (arguments.weights.empty()) return;
  const io::VectorFile file = open_vectors(arguments.weights, "f32", base_dataset);
  const MatrixView<float> one = file.view().as<float>();
  if (one.cols() != 1 && one.rows() != 1)
    throw ShapeMismatch("--weights {} is {} x {}, but wants one number for each row of --base",
                        arguments.weights, one.rows(), one.cols());
  for (std::int64_t i = 0; i < one.rows(); ++i)
    weights_.insert(weights_.end(), one.row(i), one.row(i) + one.cols());
  options.weights = weights_;
  if (!rows) return;
  if (std::ssize(weights_) != rows->all)
    throw ShapeMismatch("weights are {}, rows are {}", weights_.size(), rows->all);
  options.weights = options.weights.subspan(rows->begin, rows->end - rows->begin);
}

void print_kmeans(const KMeansArguments& arguments, const KMeansOptions& options,
                  const KMeans& found, std::int64_t rows, double seconds,
                  const std::optional<KMeansProcesses>& processes) {
  const std::int64_t dim = found.centroids.cols();
  const auto by_nccl = std::count_if(found.steps.begin(), found.steps.end(),
                                     [](const KMeansStep& step) { return step.summed_by_devices; });
  // Why MPI added up what GPUs had, where it did.
  std::string why_mpi;
  if (processes && processes->on_gpus && by_nccl < std::ssize(found.steps))
    why_mpi = processes->why_no_nccl.empty() ? "a GPU had no memory for its rows or sums"
                                             : processes->why_no_nccl;
  if (arguments.json) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::array();
    for (const KMeansStep& step : found.steps)
      steps.push_back({{"objective", step.objective},
                       {"moved", step.moved},
                       {"empty", step.empty},
                       {"fallback_rows", step.fallback_rows},
                       {"seconds", step.seconds}});
    nlohmann::ordered_json out = {{"rows", rows},
                                  {"dim", dim},
                                  {"k", arguments.k},
                                  {"metric", name_of(options.metric)},
                                  {"seed", arguments.seed},
                                  {"threads", options.threads},
                                  {"device", options.device},
                                  {"iterations", found.steps.size()},
                                  {"steps", steps},
                                  {"seconds", seconds}};
    if (processes) out["ranks"] = processes->ranks;
    if (processes && processes->on_gpus) {
      out["steps_by_nccl"] = by_nccl;
      out["why_mpi"] = why_mpi;
    }
    print("{}\n", out.dump(2));
    return;
  }
  print("{}: {} centroids of {} x {}, {}, in {}\n", arguments.out, arguments.k, rows, dim,
        name_of(options.metric), readable_seconds(seconds));
  if (found.steps.empty()) return;
  const KMeansStep& last = found.steps.back();
  print("{} iterations; in the last {} rows moved, objective {:.6g}\n", found.steps.size(),
        last.moved, last.objective);
  if (processes && processes->on_gpus)
    print("sums of processes: {} of {} steps by NCCL{}{}\n", by_nccl, found.steps.size(),
          why_mpi.empty() ? "" : ", others by MPI: ", why_mpi);
  if (last.fallback_rows > 0)
    print("{} rows of {} were the processor's, since the device has no memory for them\n",
          last.fallback_rows, rows);
}

void add_kmeans_arguments(CLI::App& command, KMeansArguments& arguments) {
  command.add_option("--base", arguments.base, "vectors, as for search")
      ->type_name("FILE")
      ->required();
  add_whole(command, "-k", arguments.k, "number of centroids")->required();
  command.add_option("--out", arguments.out, "file for the centroids: .fvecs, .fbin or .npy")
      ->type_name("FILE")
      ->required();
  add_whole(command, "--iterations", arguments.iterations, "most iterations (default 25)");
  command
      .add_option("--metric", arguments.metric,
                  "l2 (default), or ip or cosine for centroids of length 1")
      ->type_name("M");
  add_whole(command, "--seed", arguments.seed, "the same centroids for the same seed (default 1)");
  command
      .add_option("--seeding", arguments.seeding,
                  "the first centroids: random (default) or k-means++")
      ->type_name("S");
  add_whole(command, "--restarts", arguments.restarts, "number of runs; the best is kept");
  add_number(command, "--tolerance", arguments.tolerance,
             "stop when an iteration gains no more than this share (default 0)");
  add_whole(command, "--rows-per-centroid", arguments.rows_per_centroid,
            "size of the sample per centroid (default: all rows)");
  add_whole(command, "--levels", arguments.levels,
            "2: clusters of clusters, for very many centroids");
  command.add_option("--initial", arguments.initial, "up to k centroids to start with")
      ->type_name("FILE");
  command.add_flag("--frozen", arguments.frozen, "do not move the centroids of --initial");
  command
      .add_option("--weights", arguments.weights,
                  "weight of each row, one column or one row of numbers")
      ->type_name("FILE");
  command.add_option("--type", arguments.type, "read vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  add_size(command, "--memory", arguments.memory,
           "memory limit; a larger file that cannot be mapped is read again in each iteration");
  command.add_option("--device", arguments.device, "cpu (default), cuda or cuda:N")->type_name("D");
  add_whole(command, "--threads", arguments.threads, "threads to use (default: all)");
  command.add_flag("--json", arguments.json, "print one JSON object");
  group_options(command, rarely_needed,
                {"--restarts", "--tolerance", "--rows-per-centroid", "--levels", "--initial",
                 "--frozen", "--weights", "--type", "--memory"});
}

void add_kmeans(CLI::App& app) {
  CLI::App* command = app.add_subcommand("kmeans", "Cluster vectors around k centroids");
  auto arguments = std::make_shared<KMeansArguments>();
  add_kmeans_arguments(*command, *arguments);
  command->footer(
      "Every row goes to its nearest centroid exactly; the centroids have the same bits for any "
      "number of threads, on any machine and any --device.\n\nExample:\n"
      "  knear kmeans --base base.fvecs -k 1024 --iterations 20 --out centroids.fvecs");
  command->callback([=] { run_kmeans(*arguments); });
}

}  // namespace knear::cli
