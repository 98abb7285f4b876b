// cli/dist/search.cpp -- `knear dist search`: the answer of `knear search`, to the bit, by many
// processes that have a part of the rows each, or some of the shards of an index.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/dist/job.hpp"
#include "cli/dist/stop_line.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/search_job.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/core/value_range.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/cost/shard_plan.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/io/archive.hpp"
#include "knear/mpi/part_search.hpp"

namespace knear::cli {
namespace {

constexpr auto left_out_of_search = {"--truth",   "--radius",        "--explain",  "--machine",
                                     "--samples", "--allow-partial", "--replicas", "--certify"};

// Memory limit of the results that processes collect before merging them.
constexpr std::int64_t block_bytes = std::int64_t{1} << 28;

// What one process searches in: its part of a base, or its shards of an index.
class Part {
 public:
  virtual ~Part() = default;
  virtual ExactNeighbors search(AnyMatrixView queries, KnnReport& report) = 0;
  // Returns true if this process has rows to search. The first process always has.
  virtual bool has_part() const = 0;

  std::int64_t rows = 0, dim = 0, shards = 0;  // of all processes; no shards of a base
  std::int64_t own_rows = 0;
  Metric metric = Metric::l2;
};

class PartOfBase : public Part {
 public:
  PartOfBase(const Job& job, const SearchArguments& arguments, KnnOptions options)
      : base_(job, arguments.base, arguments.type), options_(std::move(options)), k_(arguments.k) {
    rows = base_.all().rows, dim = base_.all().dim, own_rows = base_.end() - base_.begin();
    job.together([&] {
      if (arguments.metric.empty()) options_.metric = metric_of_file(arguments.base);
      if (!arguments.filter.empty()) {
        const Matrix<Id> ids = io::read_ids(arguments.filter);
        options_.filter = RowFilter::of_ids(
            {ids.data(), static_cast<std::size_t>(ids.rows() * ids.cols())}, rows);
      }
    });
    metric = options_.metric;
  }
  ExactNeighbors search(AnyMatrixView queries, KnnReport& report) override {
    if (!part_) part_.emplace(base_.view(), base_.begin(), rows, options_);
    return part_->search(queries, k_, options_, &report);
  }
  bool has_part() const override { return true; }

 private:
  const FilePart base_;
  KnnOptions options_;
  const std::int64_t k_;
  std::optional<PartSearch> part_;
};

// Shard s is rank s % ranks's.
class SomeShards : public Part {
 public:
  SomeShards(const Job& job, const SearchArguments& arguments, const BaseOrIndexOptions& options)
      : k_(arguments.k) {
    std::int64_t what[] = {0, 0};  // rows, and whether this is an index of a metric that was asked
    job.together([&] {
      if (!is_sharded_file(arguments.index)) {
        io::Archive::open(arguments.index);  // says of what is no index what knear search says
        throw InvalidArgument(
            "--index {} is one file: dist search is for an index in shards, as dist build and "
            "build --shards make it",
            arguments.index);
      }
      const auto is_own = [&](std::size_t shard) {
        return static_cast<int>(shard % static_cast<std::size_t>(job.ranks())) == job.rank();
      };
      shards_ = detail::load_shards(arguments.index, false, {}, is_own, &shards);
      if (!shards_.all.empty()) detail::put_together(shards_);
      what[0] = own_rows = shards_.size;
    });
    job.peers().sum(what);
    rows = what[0];
    // The first process has the first shard.
    std::int64_t shape[] = {0, 0};
    job.at_first([&] {
      const detail::IndexShape& like = shards_.any().index->shape;
      shape[0] = like.dim, shape[1] = static_cast<std::int64_t>(like.metric);
      if (!arguments.metric.empty() && like.metric != options.metric)
        throw InvalidArgument("--metric is {}, but {} was built for {}", arguments.metric,
                              arguments.index, name_of(like.metric));
      // It is calibrated for all shards as one index, which no process has.
      if (const double recall = options.method.recall.value_or(1); recall < 1 && job.ranks() > 1)
        throw InvalidArgument(
            "--recall is {}, but what it takes is not known of shards in several processes: "
            "--probes or --ef says how much is searched",
            recall);
    });
    job.peers().broadcast(0, std::as_writable_bytes(std::span(shape)));
    dim = shape[0], metric = static_cast<Metric>(shape[1]);
    options_ = options.with(MetricOfIndex{}, filter_of(job, arguments), options.method);
  }
  ExactNeighbors search(AnyMatrixView queries, KnnReport& report) override {
    if (shards_.all.empty()) return {};
    detail::check_answer(queries.rows(), k_);
    return detail::nearest(shards_, queries, k_, options_, speeds_, &report);
  }
  bool has_part() const override { return !shards_.all.empty(); }

 private:
  // The ids of a list that are in the shards of this process.
  IdFilter filter_of(const Job& job, const SearchArguments& arguments) const {
    if (arguments.filter.empty()) return {};
    std::vector<Id> ids;
    job.together([&] {
      const Matrix<Id> read = io::read_ids(arguments.filter);
      const IdFilter all =
          IdFilter::of_ids({read.data(), static_cast<std::size_t>(read.rows() * read.cols())});
      ids = *all.list();
    });
    std::vector<std::int64_t> held(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) held[i] = shards_.find(ids[i]) != nullptr;
    std::vector<Id> own;
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (held[i]) own.push_back(ids[i]);
    job.peers().sum(held);
    if (const auto none = std::find(held.begin(), held.end(), 0); none != held.end())
      throw InvalidArgument("filter holds id {}, which the index does not hold",
                            ids[none - held.begin()]);
    return IdFilter::of_ids(own);
  }

  const std::int64_t k_;
  detail::Shards shards_;
  detail::ReplicaSpeeds speeds_{1};
  SearchOptions options_;
};

// Answers are in memory until all queries have theirs.
class AnsweredQueries : public StoppedWork {
 public:
  explicit AnsweredQueries(std::int64_t all) : all_(all) {}
  void add(std::int64_t queries) { done_ += queries; }

  bool tell(SignalLine& line) const override {
    line.add(" after "), line.add(done_), line.add(" of "), line.add(all_);
    line.add(" queries, of which nothing is kept; begin again with: ");
    return false;
  }

 private:
  const std::int64_t all_;
  std::atomic<std::int64_t> done_ = 0;
};

struct Outcome {
  Neighbors near;    // of rank 0
  KnnReport report;  // of all
  Merged merged;
  std::int64_t merges = 0;
  std::vector<std::int64_t> rows;  // of each rank
  double seconds = 0;
};

// How much an argument for a recall is worth, least first.
constexpr const char* arguments_for_recall[] = {"none", "calibrated", "analytic", "exact"};

// What processes did, as that of one: `of` was summed over blocks of queries, if this process has
// searched.
void put_together(const Job& job, bool searched, KnnReport& of) {
  const auto worth = std::find(std::begin(arguments_for_recall), std::end(arguments_for_recall),
                               of.promise.recall_argument);
  // Over the processes that have searched. A minimum is the maximum of the negatives.
  const double never = -2;
  double most[] = {double(of.lists.count),
                   of.lists.probes,
                   double(of.graph.ef),
                   searched ? -of.promise.promised_recall : never,
                   searched ? -of.promise.expected_recall : never,
                   searched ? -double(worth - std::begin(arguments_for_recall)) : -4.0};
  job.peers().largest(most);
  of.lists.count = static_cast<std::int64_t>(most[0]), of.lists.probes = most[1];
  of.graph.ef = static_cast<std::int64_t>(most[2]);
  of.promise.promised_recall = -most[3], of.promise.expected_recall = -most[4];
  of.promise.recall_argument = arguments_for_recall[std::lround(-most[5])];
  // Sums of means, as whole millionths.
  constexpr double unit = 1e6;
  std::int64_t sums[] = {of.memory_bytes, std::llround(of.scan.survivors_per_query * unit),
                         std::llround(of.scan.probed_rows * unit)};
  job.peers().sum(sums);
  of.memory_bytes = sums[0];
  of.scan.survivors_per_query = double(sums[1]) / unit,
  of.scan.probed_rows = double(sums[2]) / unit;
}

// The report of more queries.
void add(KnnReport& all, const KnnReport& more) {
  if (all.queries == 0) {
    all = more;
    return;
  }
  const double share = double(more.queries) / double(all.queries + more.queries);
  const auto average = [&](double& mean, double other) { mean += share * (other - mean); };
  average(all.scan.survivors_per_query, more.scan.survivors_per_query);
  average(all.scan.probed_rows, more.scan.probed_rows);
  average(all.lists.probes, more.lists.probes);
  all.queries += more.queries;
  all.memory_bytes = std::max(all.memory_bytes, more.memory_bytes);
}

Outcome search(const Job& job, Part& part, AnyMatrixView queries, std::int64_t k,
               const BaseOrIndexOptions& options, AnsweredQueries& answered) {
  Outcome out;
  if (job.is_first()) out.near = {Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
  // A recall below 1 is a promise for a batch as a whole.
  const std::int64_t at_once =
      options.method.recall.value_or(1) < 1
          ? std::max<std::int64_t>(1, queries.rows())
          : std::max<std::int64_t>(1, block_bytes / (16 * std::max<std::int64_t>(1, k)));
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t begin = 0; begin < std::max<std::int64_t>(1, queries.rows());
       begin += at_once) {
    const std::int64_t end = std::min(queries.rows(), begin + at_once);
    ExactNeighbors found;
    job.together([&] {
      KnnReport report;
      found = part.search(queries.rows(begin, end), report);
      add(out.report, report);
      check_interrupt();
    });
    merge_at_first(job.peers(), found, end - begin, k, options.threads, out.merged);
    ++out.merges, answered.add(end - begin);
    if (!job.is_first()) continue;
    const Neighbors some = rounded(found, part.metric, end - begin, k, options.threads);
    std::copy_n(some.ids.data(), (end - begin) * k, out.near.ids.row(begin));
    std::copy_n(some.distances.data(), (end - begin) * k, out.near.distances.row(begin));
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  put_together(job, part.has_part(), out.report);
  job.peers().sum({&out.merged.sent_bytes, 1});
  out.rows.resize(job.ranks());
  out.rows[job.rank()] = part.own_rows;
  job.peers().sum(out.rows);
  return out;
}

void print_dist(const Job& job, const SearchArguments& arguments, const Part& part,
                const Outcome& outcome, std::int64_t queries, int threads) {
  const KnnReport& report = outcome.report;
  const double rate = outcome.seconds > 0 ? double(queries) / outcome.seconds : 0;
  const MergeShape shape{job.ranks(), queries, arguments.k, threads};
  const double predicted =
      job.ranks() > 1 ? predict_merge(shape, known_peaks(active_isa(), threads).peaks) : 0;
  const std::int64_t predicted_bytes =
      merge_bytes(outcome.rows, queries, arguments.k, outcome.merges);
  if (!arguments.json) {
    print("{} rows x {}, {} queries, k = {}, {}\n", part.rows, part.dim, queries, arguments.k,
          name_of(part.metric));
    print("{}: {} queries/s, {} ({}, {} ranks of {} threads)\n", report.method,
          readable_count(rate), readable_seconds(outcome.seconds), report.scan.isa, job.ranks(),
          threads);
    print("merged {} in {}\n", readable_bytes(double(outcome.merged.sent_bytes)),
          readable_seconds(outcome.merged.seconds));
    return;
  }
  nlohmann::ordered_json out;
  out["k"] = arguments.k;
  out["metric"] = name_of(part.metric);
  out["method"] = report.method;
  out["device"] = arguments.device;
  out["isa"] = report.scan.isa;
  out["ranks"] = job.ranks();
  out["threads"] = threads;
  out["rows"] = part.rows;
  out["dim"] = part.dim;
  out["queries"] = queries;
  out["seconds"] = outcome.seconds;
  out["queries_per_second"] = rate;
  out["memory_bytes"] = report.memory_bytes;
  out["survivors_per_query"] = report.scan.survivors_per_query;
  out["promised_recall"] = report.promise.promised_recall;
  out["expected_recall"] = report.promise.expected_recall;
  out["recall_argument"] = report.promise.recall_argument;
  if (part.shards > 0) out["shards"] = part.shards;
  if (report.lists.count > 0) {
    out["lists"] = report.lists.count;
    out["probes"] = report.lists.probes;
    out["probed_rows"] = report.scan.probed_rows;
  }
  if (report.graph.ef > 0) out["ef"] = report.graph.ef;
  out["merge_bytes"] = outcome.merged.sent_bytes;
  out["predicted_merge_bytes"] = predicted_bytes;
  out["merge_seconds"] = outcome.merged.seconds;
  out["predicted_merge_seconds"] = predicted;
  print("{}\n", out.dump(2));
}

void run_search(const CLI::App& command, const SearchArguments& arguments, const Job& job) {
  check_search_files(arguments);
  check_left_out(command, left_out_of_search);
  BaseOrIndexOptions options;
  job.together([&] {  // not every machine need have a GPU
    options = search_options(arguments);
    options.device = device_of_process(arguments.device, job.peers().number_on_host());
  });
  options.threads = job.threads(arguments.threads);
  if (options.method.kind != Method::automatic && options.method.kind != Method::exact)
    throw InvalidArgument("--method must be auto or exact in dist search, but is {}",
                          arguments.method);
  if (arguments.index.empty()) {
    const double recall = options.method.recall.value_or(1);
    if (recall < 1 && options.method.kind == Method::exact)
      throw InvalidArgument("--recall is {}, but --method exact finds all", recall);
    options.method.recall = {};  // of a base all is found
  }
  const CatchInterrupts guard;
  std::unique_ptr<Part> part;
  ProgressBar bar;
  options.progress = job.progress(bar);
  std::optional<io::VectorFile> file;
  job.together([&] { file = open_vectors(arguments.queries, arguments.type, queries_dataset); });
  const AnyMatrixView queries = file->view();
  check_same(job, arguments.queries, std::array{queries.rows(), queries.cols()});
  if (arguments.index.empty())
    part = std::make_unique<PartOfBase>(job, arguments, options_of_base(options));
  else
    part = std::make_unique<SomeShards>(job, arguments, options);
  job.at_first([&] {
    if (part->dim != queries.cols())
      throw ShapeMismatch("queries have {} columns, {} has {}", queries.cols(),
                          arguments.index.empty() ? "base" : "index", part->dim);
    // By their own numbers, not by those of a block.
    find_value_range(queries, part->metric, "queries", options.threads);
    check_answer_files(arguments, queries.rows());
  });
  AnsweredQueries answered(queries.rows());
  std::optional<StopLine> line;
  line.emplace(job, arguments.out, answered);
  const Outcome outcome = search(job, *part, queries, arguments.k, options, answered);
  bar.clear();
  job.at_first([&] { write_answers(arguments, outcome.near); });
  line.reset();
  job.at_first(
      [&] { print_dist(job, arguments, *part, outcome, queries.rows(), options.threads); });
}

}  // namespace

void add_dist_search(CLI::App& app, const Job& job) {
  CLI::App* command =
      app.add_subcommand("search", "Find the k nearest vectors of a base, as knear search does");
  auto arguments = std::make_shared<SearchArguments>();
  add_search_arguments(*command, *arguments);
  add_search_only_arguments(*command, *arguments);
  leave_out(*command, left_out_of_search);
  command->get_option("--method")->description("auto (default) or exact");
  command->get_option("--device")
      ->description(
          "where to search: cpu (default), cuda (processes of a machine take its GPUs in turn) or "
          "cuda:N");
  command->get_option("--recall")
      ->description(
          "of an index: 1, for the true neighbours; of a base these are found in any case");
  command->footer(
      "Each process searches its part of the base, or some of the shards of an index; what they "
      "find is merged in a tree. Files are those of knear search. A base is searched exactly, "
      "whatever --recall.\n\nExample:\n"
      "  mpirun -n 8 knear dist search --base base.fvecs --queries queries.fvecs -k 10 --out "
      "near.ivecs");
  command->callback([=, &job] { run_search(*command, *arguments, job); });
}

}  // namespace knear::cli
