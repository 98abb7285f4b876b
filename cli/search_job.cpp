#include "cli/search_job.hpp"
#include "cli/help.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/system.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/reference.hpp"
#include "knear/io/hdf5.hpp"
#include "knear/knn/device_peaks.hpp"
#include "knear/knn/streamed_search.hpp"

namespace knear::cli {
namespace {

// Shapes that do not fit are reported before the search.
Matrix<Id> read_truth(const SearchArguments& arguments, std::int64_t queries) {
  Matrix<Id> truth = io::read_ids(arguments.truth);
  if (truth.cols() < arguments.k)
    throw ShapeMismatch("--truth has {} columns, but -k is {}", truth.cols(), arguments.k);
  if (truth.rows() != queries)
    throw ShapeMismatch("--truth has {} rows, but there are {} queries", truth.rows(), queries);
  return truth;
}

// Recall is measured by the index's own rows, so each true neighbour has to be one of them.
void check_index_holds(const Matrix<Id>& truth, const SearchArguments& arguments,
                       const Index& index) {
  for (std::int64_t q = 0; q < truth.rows(); ++q)
    for (std::int64_t j = 0; j < arguments.k; ++j)
      if (const Id id = truth.row(q)[j]; id != no_id && !index.contains(id))
        throw InvalidArgument("--truth names id {} for query {}, which {} does not hold", id, q,
                              arguments.index);
}

// The system promises more memory than it has and kills processes that use it, so this checks
// first.
void check_answer_fits(std::int64_t queries, std::int64_t k) {
  const double bytes = double(queries) * double(k) * (sizeof(Id) + sizeof(float));
  const auto available = detail::available_memory();
  if (available && bytes > static_cast<double>(*available))
    throw MemoryBudgetError("the answer of {} queries x k = {} takes {}, but {} are free", queries,
                            k, readable_bytes(bytes),
                            readable_bytes(static_cast<double>(*available)));
}

// Loads --index into the outcome and returns its columns. `metric` becomes that of the index, which
// --metric may repeat but not change.
std::int64_t load_index(const SearchArguments& arguments, Metric& metric, SearchOutcome& outcome) {
  const int replicas =
      arguments.replicas ? checked_parts("--replicas", *arguments.replicas) : 0;  // 0: not said
  const bool partial = arguments.allow_partial && is_sharded_file(arguments.index);
  outcome.index = Index::load(arguments.index, {.replicas = replicas, .allow_partial = partial});
  if (arguments.allow_partial && !partial)
    throw InvalidArgument("--allow-partial is for an index in shards, but {} is one file",
                          arguments.index);
  outcome.base_type = outcome.index->element_type(), outcome.rows = outcome.index->size();
  if (!arguments.metric.empty() && metric != outcome.index->metric())
    throw InvalidArgument("--metric is {}, but {} was built for {}", arguments.metric,
                          arguments.index, name_of(outcome.index->metric()));
  metric = outcome.index->metric();
  return outcome.index->dim();
}

// The base as a file to be read block by block, or none where it is opened as a whole.
std::optional<BlockwiseFile> blockwise_base(const SearchArguments& arguments,
                                            SearchOutcome& outcome) {
  auto out = blockwise_file(arguments.base, arguments.type, base_dataset, arguments.memory);
  if (!out) return out;
  outcome.rows = out->rows, outcome.base_type = out->type;
  if (out->dim != outcome.queries.view().cols())
    throw ShapeMismatch("queries have {} columns, base has {}", outcome.queries.view().cols(),
                        out->dim);
  return out;
}

void search_blocks(const BlockwiseFile& base, std::int64_t memory, std::int64_t k,
                   KnnOptions options, SearchOutcome& outcome) {
  io::VectorBlocks blocks(base.path, base.options);
  options.memory = memory > 0 ? memory - base.block_bytes() : 0;
  const Progress whole = options.progress;
  std::int64_t done = 0, count = 0;
  if (whole)  // that of the whole base, not of the block
    options.progress = [&](std::string_view stage, double fraction) {
      return whole(stage, (double(done) + fraction * double(count)) / double(blocks.rows()));
    };
  StreamedSearch search(outcome.queries.view(), k, options, blocks.rows());
  for (AnyMatrixView rows = blocks.next(base.block_rows); rows.rows() > 0;
       rows = blocks.next(base.block_rows)) {
    count = rows.rows();
    search.add(rows);
    done += count;
    check_interrupt();
  }
  outcome.near = search.finish(&outcome.report);
  outcome.distances = search.take_distances();
}

// The rows of a streamed base with these ids, ascending.
AnyMatrix gathered(const BlockwiseFile& base, const std::vector<Id>& ids) {
  io::VectorBlocks blocks(base.path, base.options);
  AnyMatrix out(blocks.type(), std::ssize(ids), blocks.dim());
  const std::size_t row_bytes = blocks.dim() * size_of(blocks.type());
  std::int64_t done = 0;
  std::size_t next = 0;
  for (AnyMatrixView rows = blocks.next(base.block_rows); rows.rows() > 0;
       rows = blocks.next(base.block_rows)) {
    for (; next < ids.size() && ids[next] < done + rows.rows(); ++next)
      std::memcpy(out.row(static_cast<std::int64_t>(next)), rows.row(ids[next] - done), row_bytes);
    done += rows.rows();
  }
  if (next < ids.size())
    throw InvalidArgument("truth names row {}, but the base has {} rows", ids[next], done);
  return out;
}

// Rows by id: those of the base, or of an index or a streamed base those that some ids name.
class NamedRows {
 public:
  NamedRows(const SearchOutcome& outcome, const std::optional<BlockwiseFile>& streamed,
            std::initializer_list<MatrixView<Id>> ids) {
    if (outcome.base) {
      rows_ = outcome.base->view();
      return;
    }
    for (const MatrixView<Id>& some : ids)
      for (std::int64_t i = 0; i < some.rows(); ++i)
        std::copy_if(some.row(i), some.row(i) + some.cols(), std::back_inserter(ids_),
                     [](Id id) { return id != no_id; });
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    if (ids_.empty()) return;
    own_ = streamed ? gathered(*streamed, ids_) : outcome.index->reconstruct(ids_);
    rows_ = own_;
  }
  AnyMatrixView rows() const { return rows_; }
  Id place(Id id) const {
    if (ids_.empty() || id == no_id) return id;
    return std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin();
  }
  Matrix<Id> places(MatrixView<Id> ids) const {
    Matrix<Id> out(ids.rows(), ids.cols());
    for (std::int64_t i = 0; i < ids.rows(); ++i)
      std::transform(ids.row(i), ids.row(i) + ids.cols(), out.row(i),
                     [this](Id id) { return place(id); });
    return out;
  }

 private:
  AnyMatrix own_;
  AnyMatrixView rows_;
  std::vector<Id> ids_;
};

// Keeps those of the answer's k (or k + 1) neighbours that are within the radius. Compared in
// float64, as the search orders rows.
void cut_at_radius(const SearchArguments& arguments, Metric metric, SearchOutcome& outcome) {
  const bool known = outcome.distances.rows() > 0;  // no need to measure again
  const NamedRows named(outcome, {}, {known ? MatrixView<Id>() : outcome.near.ids.view()});
  const AnyMatrixView queries = outcome.queries.view(), base = named.rows();
  const std::int64_t k = arguments.k;
  const double limit = order_key(metric, arguments.radius);
  Neighbors kept{Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
  ExactDistance measure(metric, base.type());
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    measure.set_query(queries, q);
    const Id* ids = outcome.near.ids.row(q);
    std::int64_t count = 0;  // neighbours are in order
    while (count < outcome.near.ids.cols() && ids[count] != no_id &&
           (known ? order_key(metric, outcome.distances.row(q)[count])
                  : measure.key(base.row(named.place(ids[count])))) <= limit)
      ++count;
    outcome.queries_cut += count > k;
    outcome.within_radius += std::min(count, k);
    for (std::int64_t j = 0; j < k; ++j) {
      kept.ids.row(q)[j] = j < count ? ids[j] : no_id;
      kept.distances.row(q)[j] = j < count ? outcome.near.distances.row(q)[j] : no_distance(metric);
    }
  }
  outcome.near = std::move(kept);
  outcome.report.k = k;
}

// Of codes: the nearest of all rows within the radius. Their k nearest are those of the nearest
// codes, among which some within the radius may be missing.
void search_within(const SearchArguments& arguments, const SearchOptions& options,
                   SearchOutcome& outcome) {
  const RangeNeighbors found = outcome.index->range_search(outcome.queries.view(), arguments.radius,
                                                           options, &outcome.report);
  const std::int64_t queries = outcome.queries.view().rows(), k = arguments.k;
  outcome.near = {Matrix<Id>(queries, k), Matrix<float>(queries, k)};
  for (std::int64_t q = 0; q < queries; ++q) {
    const std::int64_t begin = found.begin[q], all = found.begin[q + 1] - begin,
                       count = std::min(all, k);
    outcome.queries_cut += all > k, outcome.within_radius += count;
    Id* const ids = outcome.near.ids.row(q);
    float* const distances = outcome.near.distances.row(q);
    std::copy_n(found.ids.data() + begin, count, ids);
    std::copy_n(found.distances.data() + begin, count, distances);
    std::fill(ids + count, ids + k, no_id);
    std::fill(distances + count, distances + k, no_distance(outcome.report.metric));
  }
  outcome.report.k = k;
}

}  // namespace

void check_answer_files(const SearchArguments& arguments, std::int64_t queries) {
  const auto inputs = {arguments.base, arguments.index, arguments.queries, arguments.truth,
                       arguments.filter};
  check_output("--out", arguments.out, {".ivecs", ".ibin", ".npy"}, inputs);
  check_output("--distances", arguments.distances, {".fvecs", ".fbin", ".npy"}, inputs);
  if (!arguments.out.empty() && !arguments.distances.empty() &&
      same_file(arguments.out, arguments.distances))
    throw InvalidArgument("--out and --distances are the same file, {}", arguments.out);
  check_answer_fits(queries, arguments.k);
}

void write_answers(const SearchArguments& arguments, const Neighbors& near) {
  if (!arguments.out.empty()) io::write_ids(arguments.out, near.ids);
  if (arguments.distances.empty()) return;
  try {
    io::write_distances(arguments.distances, near.distances);
  } catch (...) {  // ids without their distances would be half an output
    if (!arguments.out.empty()) unlink(arguments.out.c_str());
    throw;
  }
}

void add_search_arguments(CLI::App& command, SearchArguments& arguments) {
  command.add_option("--base", arguments.base, "vectors to search in")->type_name("FILE");
  command.add_option("--queries", arguments.queries, "vectors to search for")->type_name("FILE");
  add_whole(command, "-k", arguments.k, "neighbours per query")->required();
  command
      .add_option(
          "--metric", arguments.metric,
          "l2, ip, cosine, l1 or hamming (default: l2, or the metric of the index or .hdf5)")
      ->type_name("M");
  add_number(command, "--recall", arguments.recall,
             "share of the true neighbours to find, in (0, 1] (default: all)");
  command.add_option("--type", arguments.type, "read vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  command
      .add_option("--device", arguments.device,
                  "cpu (default), cuda, cuda:N, cuda:0,1,2,3, or auto for the faster one (--base)")
      ->type_name("D");
  add_whole(command, "--threads", arguments.threads, "threads to use (default: all)");
  add_size(command, "--memory", arguments.memory,
           "memory limit besides the files: 512M, 1.5G (default: none)");
  command.add_option("--out", arguments.out, "write ids here: .ivecs .ibin or .npy")
      ->type_name("IDS");
  command.add_option("--distances", arguments.distances, "write distances: .fvecs .fbin or .npy")
      ->type_name("FILE");
  command.add_option("--truth", arguments.truth, "true ids, to measure the recall against")
      ->type_name("IDS");
  command.add_option("--filter", arguments.filter, "ids of the rows that may be found")
      ->type_name("IDS");
  command
      .add_option_function<std::string>(
          "--radius",
          [&arguments](const std::string& word) {
            constexpr double infinity = std::numeric_limits<double>::infinity();
            const bool minus = word.starts_with('-');
            const bool unlimited = word == "inf" || word == "+inf" || word == "-inf";
            arguments.radius =
                unlimited ? (minus ? -infinity : infinity) : parse_number("--radius", word);
          },
          "at most k rows within this distance (ip: with at least this product), or inf")
      ->type_name("X");
  command.add_flag("--explain", arguments.explain, "print the plan and where the time went");
  command.add_option("--machine", arguments.machine, "predict the time on: " + machine_names())
      ->type_name("NAME");
  command.add_flag("--json", arguments.json, "print one JSON object");
  command
      .add_option("--choose", arguments.choices,
                  "override automatic choices, not the answer: group=1|4|12,parts=N,columns=N,"
                  "clusters=N,tile=KiB,guess=on|off,refine=on|off")
      ->type_name("LIST");
  command
      .add_option("--first-pass", arguments.first_pass,
                  "how to score candidates, with the same answer: auto (default), integer, int8, "
                  "int16, fp32, direct or prefix")
      ->type_name("P");
  group_options(command, "Search", {"-k", "--metric", "--recall", "--filter", "--radius"});
  group_options(command, "Output", {"--out", "--distances", "--truth", "--explain", "--json"});
  group_options(command, rarely_needed, {"--machine", "--choose", "--first-pass"});
}

BaseOrIndexOptions search_options(const SearchArguments& arguments) {
  BaseOrIndexOptions options;
  if (!arguments.metric.empty()) options.metric = parse_metric(arguments.metric);
  options.threads = checked_threads(arguments.threads);
  options.memory = arguments.memory;
  options.first_pass = parse_first_pass(arguments.first_pass);
  options.tuning = parse_tuning(arguments.choices);
  const bool chosen = arguments.device == "auto";
  if (chosen && arguments.base.empty())
    throw InvalidArgument("--device auto chooses for searches of a --base alone, but there is {}",
                          arguments.index);
  if (!chosen && arguments.explain)  // plans are of one GPU
    check_one_device(arguments.device);
  else if (!chosen)
    check_device(arguments.device);
  if (arguments.device != "cpu" && !chosen && arguments.explain &&
      arguments.method == name_of(Method::threshold_heap))
    throw InvalidArgument(
        "--explain has no plan of --method {} on a GPU so far, but --device is {}",
        arguments.method, arguments.device);
  options.device = arguments.device;
  if (!arguments.machine.empty()) known_machine(arguments.machine);
  options.method = {.kind = parse_method(arguments.method),
                    .probes = arguments.probes.value_or(0),
                    .ef = arguments.ef.value_or(0),
                    .lists = {.widen = arguments.widen, .certify = arguments.certify},
                    .codes = {.refine_factor = arguments.refine_factor.value_or(0)},
                    .threshold_heap = {.samples = arguments.samples}};
  if (!std::isnan(arguments.recall)) options.method.recall = arguments.recall;
  check_positive("-k", arguments.k);
  if (const double recall = options.method.recall.value_or(1); !(recall > 0 && recall <= 1))
    throw InvalidArgument("--recall must be in (0, 1], but is {}", recall);
  if (arguments.probes) check_positive("--probes", *arguments.probes);
  if (arguments.ef) check_positive("--ef", *arguments.ef);
  if (arguments.refine_factor) check_positive("--refine-factor", *arguments.refine_factor);
  if (!arguments.type.empty()) parse_element_type(arguments.type);
  if (!std::isnan(arguments.radius) && !arguments.truth.empty())
    throw InvalidArgument(
        "--truth holds k neighbours of each query, but --radius {} leaves some out",
        arguments.radius);
  return options;
}

SearchOutcome run_search_job(const SearchArguments& arguments) {
  BaseOrIndexOptions options = search_options(arguments);
  const bool ranged = !std::isnan(arguments.radius);
  CatchInterrupts guard;
  SearchOutcome outcome{.queries =
                            open_vectors(arguments.queries, arguments.type, queries_dataset)};
  std::int64_t columns = 0;
  std::optional<BlockwiseFile> streamed;
  if (arguments.index.empty()) {
    if (arguments.metric.empty()) options.metric = metric_of_file(arguments.base);
    streamed = blockwise_base(arguments, outcome);
  }
  if (streamed && options.method.kind != Method::automatic && options.method.kind != Method::exact)
    throw InvalidArgument(
        "--method is {}, but {} is read block by block, since it is no plain file and large: only "
        "auto and exact do that",
        arguments.method, arguments.base);
  if (streamed) {
    columns = outcome.queries.view().cols();
  } else if (arguments.index.empty()) {
    outcome.base = open_vectors(arguments.base, arguments.type, base_dataset);
    columns = outcome.base->view().cols(), outcome.base_type = outcome.base->view().type();
    outcome.rows = outcome.base->view().rows();
  } else {
    columns = load_index(arguments, options.metric, outcome);
    const std::string kind = outcome.index->description();
    if (kind != "Flat" && !arguments.machine.empty())
      throw InvalidArgument("--machine plans for scans of all rows so far, but {} is an index {}",
                            arguments.index, kind);
    if ((outcome.index->lists() > 0 || outcome.index->has_codes()) && arguments.explain &&
        arguments.device != "cpu")
      throw InvalidArgument(
          "--explain has no plan of lists and codes on a GPU so far, but --device is {} and {} is "
          "an index {}",
          arguments.device, arguments.index, kind);
  }
  if (columns != outcome.queries.view().cols())
    throw ShapeMismatch("queries have {} columns, {} has {}", outcome.queries.view().cols(),
                        outcome.base ? "base" : "index", columns);
  check_answer_files(arguments, outcome.queries.view().rows());
  IdFilter index_filter;
  if (!arguments.filter.empty()) {
    const Matrix<Id> ids = io::read_ids(arguments.filter);
    const std::span<const Id> list(ids.data(), ids.rows() * ids.cols());
    if (!outcome.index)
      options.filter = RowFilter::of_ids(list, outcome.rows);
    else
      index_filter = IdFilter::of_ids(list);
  }
  std::optional<Matrix<Id>> truth;
  if (!arguments.truth.empty()) truth = read_truth(arguments, outcome.queries.view().rows());
  if (truth && outcome.index) check_index_holds(*truth, arguments, *outcome.index);
  check_interrupt();

  {
    ProgressBar bar;
    options.progress = bar.callback();
    const auto start = std::chrono::steady_clock::now();
    // One neighbour more shows whether a query has more than k within the radius.
    const std::int64_t k = arguments.k + (ranged && arguments.k < outcome.rows);
    const bool by_codes = ranged && outcome.index && outcome.index->has_codes();
    if (!outcome.index) {
      const KnnOptions of_base = options_of_base(options);
      if (streamed)
        search_blocks(*streamed, arguments.memory, k, of_base, outcome);
      else
        outcome.near =
            knn(outcome.queries.view(), outcome.base->view(), k, of_base, &outcome.report);
    } else {
      const SearchOptions of_index = options.with(MetricOfIndex{}, index_filter, options.method);
      if (by_codes)
        search_within(arguments, of_index, outcome);
      else
        outcome.near = outcome.index->search(outcome.queries.view(), k, of_index, &outcome.report);
    }
    if (ranged && !by_codes) cut_at_radius(arguments, options.metric, outcome);
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  check_interrupt();
  const std::string place = place_of(arguments.device, outcome.report);
  if (place == "cpu")
    outcome.prediction = predict(outcome.report, known_peaks(active_isa(), options.threads));
  else if (has_device_plan(outcome.report))
    outcome.device_prediction =
        predict_on_device(outcome.report, outcome.base_type, arguments.memory,
                          peaks_of_device(place), known_peaks(active_isa(), options.threads));
  if (truth && outcome.index && !outcome.index->keeps_vectors()) {
    outcome.recall = measure_recall_by_id(outcome.near.ids, *truth, arguments.k, options.threads);
  } else if (truth) {
    const NamedRows named(outcome, streamed, {outcome.near.ids.view(), truth->view()});
    outcome.recall = measure_recall(outcome.queries.view(), named.rows(), options.metric,
                                    named.places(outcome.near.ids), named.places(*truth),
                                    arguments.k, options.threads);
  }
  write_answers(arguments, outcome.near);
  return outcome;
}

}  // namespace knear::cli
