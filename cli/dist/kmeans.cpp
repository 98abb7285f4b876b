// cli/dist/kmeans.cpp -- `knear dist kmeans`: the centroids of `knear kmeans`, to the bit, by many
// processes that have a part of the rows each.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "cli/dist/job.hpp"
#include "cli/dist/stop_line.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/kmeans_job.hpp"
#include "knear/core/error.hpp"
#include "knear/knn/knn.hpp"
#include "knear/mpi/device_sums.hpp"

namespace knear::cli {
namespace {

// Rows are not read anew: each process has its part mapped or in memory.
constexpr auto left_out_of_kmeans = {"--memory"};

// Centroids are in memory until all iterations are done: nothing is left of them.
class Iterations : public StoppedWork {
 public:
  explicit Iterations(std::int64_t most) : most_(most) {}
  void add_one() { ++done_; }

  bool tell(SignalLine& line) const override {
    line.add(" after "), line.add(done_), line.add(" of "), line.add(most_);
    line.add(" iterations, of which nothing is kept; begin again with: ");
    return false;
  }

 private:
  const std::int64_t most_;
  std::atomic<std::int64_t> done_ = 0;
};

void run_kmeans(const CLI::App& command, const KMeansArguments& arguments, const Job& job) {
  check_left_out(command, left_out_of_kmeans);
  KMeansOptions options = kmeans_options(arguments);
  options.threads = job.threads(arguments.threads);
  const CatchInterrupts guard;
  const FilePart base(job, arguments.base, arguments.type);
  std::optional<KMeansFiles> files;
  job.together([&] {
    options.device = device_of_process(arguments.device, job.peers().number_on_host());
    files.emplace(arguments, options, RowsOfFile{base.begin(), base.end(), base.all().rows});
  });
  // The same word in all processes, so that all of them ask.
  const bool on_gpus = arguments.device != "cpu" && job.ranks() > 1;
  FoundDeviceSums between;
  if (on_gpus) between = find_device_sums(job.peers(), options.device);
  job.at_first([&] {
    check_output("--out", arguments.out, {".fvecs", ".fbin", ".npy"},
                 {arguments.base, arguments.initial, arguments.weights});
  });
  Iterations iterations(options.restarts * options.iterations);
  std::optional<StopLine> line;
  line.emplace(job, arguments.out, iterations);
  ProgressBar bar;
  const Progress shown = job.progress(bar);
  std::string stage = "k-means";
  options.progress = [&](std::string_view, double fraction) { return shown(stage, fraction); };
  options.report = [&](const KMeansStep& step) {
    iterations.add_one();
    stage = fmt::format("k-means, objective {:.6g}", step.objective);
  };
  const AnyMatrixView view = base.view();
  const RowBlocks rows{view.rows(), base.all().dim,
                       [view](const std::function<void(AnyMatrixView)>& take) {
                         if (view.rows() > 0) take(view);
                       }};
  const auto start = std::chrono::steady_clock::now();
  const KMeans found = k_means(rows, job.peers(), arguments.k, options, between.sums.get());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();
  job.at_first([&] { io::write_vectors(arguments.out, found.centroids.view()); });
  line.reset();
  job.at_first([&] {
    print_kmeans(arguments, options, found, base.all().rows, seconds,
                 KMeansProcesses{job.ranks(), on_gpus, between.why_not});
  });
}

}  // namespace

void add_dist_kmeans(CLI::App& app, const Job& job) {
  CLI::App* command =
      app.add_subcommand("kmeans", "Cluster vectors around k centroids, as knear kmeans does");
  auto arguments = std::make_shared<KMeansArguments>();
  add_kmeans_arguments(*command, *arguments);
  leave_out(*command, left_out_of_kmeans);
  command->footer(
      "Each process has a part of the rows; the centroids have the same bits as those of one. Only "
      "--levels 1 can be divided.\n\nExample:\n"
      "  mpirun -n 8 knear dist kmeans --base base.fvecs -k 1024 --out centroids.fvecs");
  command->callback([=, &job] { run_kmeans(*command, *arguments, job); });
}

}  // namespace knear::cli
