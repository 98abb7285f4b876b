// cli/dist/build.cpp -- `knear dist build`: the index in shards of `knear build --shards`, by many
// processes that make some of the shards each.
//
// What an index learns it learns in the first process, from the rows that `knear build` would draw
// from the whole file: few, and the same bits for any kind of index. The others read it from a file
// beside the shards.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/build_job.hpp"
#include "cli/dist/job.hpp"
#include "cli/dist/stop_line.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "knear/core/error.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/shards/shards.hpp"

namespace knear::cli {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The shards of one process: one after another, so that it reads one stretch of the base. The first
// process has the first shard, which has rows if there are any.
struct OwnShards {
  OwnShards(const Job& job, std::int64_t shards, std::int64_t rows)
      : rows_of(detail::even_parts(rows, shards)),
        first(first_of(shards, job.rank(), job.ranks())),
        end(first_of(shards, job.rank() + 1, job.ranks())) {}

  static std::int64_t first_of(std::int64_t shards, int rank, int ranks) {
    return (shards * rank + ranks - 1) / ranks;
  }
  std::int64_t begin_row(std::int64_t shard) const {
    return std::accumulate(rows_of.begin(), rows_of.begin() + shard, std::int64_t{0});
  }

  const std::vector<std::int64_t> rows_of;  // [shards]
  const std::int64_t first, end;            // those of this process
};

// The files of shards, which nobody can use before the manifest names them, and which no later run
// goes on with: its own have other names.
class FilesOfShards : public StoppedWork {
 public:
  FilesOfShards(const std::string& out, std::int64_t shards) : out_(out), shards_(shards) {}

  // Names the files of the save with this number, and the file with what was learned.
  void begin(std::uint64_t number) {
    for (std::int64_t s = 0; s <= shards_; ++s)
      files_.push_back(detail::file_of_shard(out_, number, s));
    phase_ = Phase::shards;
  }
  // From here on the manifest may be there. Of all processes before one of them goes on.
  void commit() { phase_ = Phase::manifest; }

  bool tell(SignalLine& line) const override {
    if (phase_ == Phase::manifest) {
      line.add(" when all shards were written; "), line.add(out_.c_str());
      line.add(
          " is the index of before, if there was one, or the new one, whole; make it again with: ");
      return false;
    }
    std::int64_t written = 0;
    if (phase_ == Phase::shards)
      for (std::int64_t s = 0; s < shards_; ++s) written += access(files_[s].c_str(), F_OK) == 0;
    line.add("; "), line.add(written), line.add(" of "), line.add(shards_);
    line.add(" shards were written, of which nothing is kept; begin again with: ");
    clean_up();
    return false;
  }
  void clean_up() const override {
    if (phase_ == Phase::shards)
      for (const std::string& file : files_) unlink(file.c_str());
  }

 private:
  enum class Phase { learning, shards, manifest };

  const std::string out_;
  const std::int64_t shards_;
  std::vector<std::string> files_;
  std::atomic<Phase> phase_ = Phase::learning;
};

void run_build(const BuildArguments& arguments, const Job& job) {
  check_build(arguments);
  ShardingOptions sharding = sharding_of(arguments);
  if (arguments.shards == BuildArguments::not_given)
    sharding.shards = checked_parts("--shards", job.ranks());
  const int threads = job.threads(arguments.threads);
  const CatchInterrupts guard;
  const FileShape file(job, arguments.base, arguments.type);
  job.at_first([&] { check_build_output(arguments); });
  FilesOfShards files(arguments.out, sharding.shards);
  std::optional<StopLine> line;
  line.emplace(job, arguments.out, files);
  Built built{.rows = file.rows,
              .dim = file.dim,
              .threads = threads,
              .sharding = sharding,
              .ranks = job.ranks()};
  ProgressBar bar;
  const Progress progress = job.progress(bar);
  const auto start = std::chrono::steady_clock::now();
  IndexChoice choice;
  std::optional<Index> like;
  job.together([&] {
    built.metric = build_metric(arguments);
    choice = build_choice(arguments, file.rows, file.dim, file.type, built.metric);
    like = make_index(choice.factory, file.dim, built.metric);
  });

  std::optional<detail::ShardSave> save;
  std::uint64_t number = 0;
  job.at_first([&] {
    save.emplace(arguments.out, sharding.shards);
    number = save->number();
  });
  job.peers().broadcast(0, std::as_writable_bytes(std::span(&number, 1)));
  files.begin(number);
  const std::int64_t trains = !like->is_trained();
  if (trains) {
    const std::string learned = detail::file_of_shard(arguments.out, number, sharding.shards);
    job.at_first([&] {
      const io::VectorFile base = open_vectors(arguments.base, arguments.type, base_dataset);
      const auto begin = std::chrono::steady_clock::now();
      like->train(base.view(), train_options(arguments, file.rows, threads, progress));
      built.train_seconds = since(begin);
      if (job.ranks() > 1) like->save(learned, progress);
    });
    job.together([&] {
      if (!job.is_first()) like = Index::load(learned);
    });
  }

  const OwnShards own(job, sharding.shards, file.rows);
  const FilePart base(job, file, own.begin_row(own.first), own.begin_row(own.end));
  const ChangeOptions change{.threads = threads, .progress = progress};
  // What an index keeps of such vectors, for shards that get none.
  std::int64_t type[] = {0};
  job.at_first([&] {
    const std::int64_t some = std::min<std::int64_t>(1, base.view().rows());
    type[0] = static_cast<std::int64_t>(
        detail::shard_of(like->body().one(), base.view().rows(0, some), 0, some, {}, change)
            ->element_type());
  });
  job.peers().broadcast(0, std::as_writable_bytes(std::span(type)));
  built.type = static_cast<ElementType>(type[0]);

  std::vector<detail::SavedShard> saved(sharding.shards);
  std::int64_t sums[] = {0, 0};  // bytes of memory, and rows that were optimised
  const bool optimizes = arguments.optimize || like->has_graph();
  job.together([&] {
    for (std::int64_t s = own.first; s < own.end; ++s) {
      const std::size_t place = s;
      const std::int64_t begin = own.begin_row(s), end = begin + own.rows_of[place];
      const std::shared_ptr<detail::IndexImpl> shard = detail::shard_of(
          like->body().one(), base.view().rows(begin - base.begin(), end - base.begin()), begin,
          file.rows, file.rows > 0 ? std::optional(built.type) : std::nullopt, change);
      if (optimizes) sums[1] += shard->optimize(change);
      saved[place] = detail::save_shard(*shard, arguments.out, number, s, {.progress = progress});
      sums[0] += shard->memory_bytes();
    }
  });
  std::vector<std::int64_t> told(3 * saved.size());
  for (std::size_t s = 0; s < saved.size(); ++s) {
    told[3 * s] = saved[s].rows, told[3 * s + 1] = saved[s].file_bytes;
    told[3 * s + 2] = static_cast<std::int64_t>(saved[s].checksum);
  }
  job.peers().sum(told), job.peers().sum(sums);
  for (std::size_t s = 0; s < saved.size(); ++s)
    saved[s] = {told[3 * s], told[3 * s + 1], static_cast<std::uint64_t>(told[3 * s + 2])};
  job.together([&] { files.commit(); });
  job.at_first([&] {
    const std::int64_t changes = trains + (file.rows > 0) + optimizes;
    save->commit({sharding.shards, file.rows, file.rows, changes, sharding.replicas}, saved,
                 {.progress = progress});
    save.reset();
  });
  line.reset();
  job.at_first([&] {
    bar.clear();
    built.seconds = since(start), built.memory_bytes = sums[0], built.optimized_rows = sums[1];
    built.has_graph = like->has_graph();
    print_built(arguments, choice, built);
  });
}

}  // namespace

void add_dist_build(CLI::App& app, const Job& job) {
  CLI::App* command = app.add_subcommand(
      "build", "Build an index in shards and keep it in files, as knear build --shards does");
  auto arguments = std::make_shared<BuildArguments>();
  add_build_arguments(*command, *arguments);
  command->footer(
      "Each process makes some of the shards, --shards as many as there are processes if nothing "
      "is said; the first learns lists and codes for all. knear search and knear dist search open "
      "the index.\n\nExample:\n"
      "  mpirun -n 8 knear dist build --base base.fvecs --index IVF1024,Flat --out base.knear\n"
      "  mpirun -n 8 knear dist search --index base.knear --queries queries.fvecs -k 10 --probes "
      "16");
  command->callback([=, &job] { run_build(*arguments, job); });
}

}  // namespace knear::cli
