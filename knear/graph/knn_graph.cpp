#include "knear/graph/knn_graph.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/cost/plan.hpp"
#include "knear/graph/base_lists.hpp"
#include "knear/graph/copies.hpp"
#include "knear/graph/partial_graph.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/mapped_pages.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/search/search_request.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {
namespace {

constexpr std::int64_t usual_block_rows = 131072;
// Fewer rows are joined exactly in less time than inverted lists of them take to build.
constexpr std::int64_t least_rows_in_lists = 100000;

// Rows by which the time of all is predicted: so many, but no larger share, and none where that
// leaves too few to say anything.
constexpr std::int64_t most_on_trial = 2048, least_on_trial = 64, share_on_trial = 32;
// Of rows in lists: pairs of slices in the order of lists, of which the first is not timed. It
// brings from disk what the second shares with it, as the slices before will when all are searched.
constexpr std::int64_t slices_on_trial = 4, share_of_slice = 512;

// Rows of a graph in a file are brought into their order so many bytes of them at a time, where the
// memory has no limit, and by this share of the memory.
constexpr std::int64_t usual_arranging_bytes = std::int64_t{1} << 28, share_of_arranging = 4;

// What finds the neighbours of rows of a base, by the options: exactly, or by inverted lists.
class Builder {
 public:
  // scratch: where inverted lists may be kept in files; empty: nowhere.
  Builder(AnyMatrixView base, std::int64_t k, const KnnGraphOptions& options,
          std::string scratch = {})
      : base_(base), k_(k), options_(options), scratch_(std::move(scratch)) {
    if (k < 1 || k >= (std::int64_t{1} << 31) - 1)
      throw InvalidArgument("k must be in [1, 2147483646], but is {}", k);
    detail::check_dim("base", base.cols());
    if (options.memory < 0)
      throw InvalidArgument("memory must not be negative, but is {}", options.memory);
    if (options.recall && !(*options.recall > 0 && *options.recall <= 1))
      throw InvalidArgument("recall must be in (0, 1], but is {}", *options.recall);
    if (options.recall.value_or(1) < 1) check_by_products(options.metric, "a recall below 1");
    options_.threads = resolve_threads(options.threads);
    if (options.memory > 0) {
      pages_ = std::make_unique<io::MappedPages>(options.memory / 3);
      pages_->add(base.data());
    }
    // Names the row of a NaN before anything is compared or counted.
    range_ = find_value_range(base, options.metric, "base", options_.threads);
    by_lists_ = options.recall.value_or(1) < 1 && base.rows() >= least_rows_in_lists;
    if (by_lists_)
      report_.promised_recall = *options.recall, report_.recall_argument = "calibrated";
    report_.rows = report_.distinct_rows = base.rows();
    if (options.distinct)
      copies_ = detail::find_copies(base), report_.distinct_rows = std::ssize(copies_.firsts);
  }

  // What inverted lists will take. Throws MemoryBudgetError.
  detail::BaseListsSize size_of_lists() const {
    if (!by_lists_) return {};
    return detail::BaseLists::size_of_lists(base_, report_.distinct_rows, lists_options());
  }

  bool by_lists() const { return by_lists_; }
  // The row in each place of the order in which search_block() counts rows: that of their lists, so
  // that the rows that one reads and measures are still at hand for the next. After
  // prepare_lists().
  std::span<const Id> order() const { return order_; }

  // All rows at once, each pair scored once where that pays.
  Neighbors join() {
    if (by_lists_) return search_all();
    report_.method = "self-join";
    KnnReport report;
    Neighbors out = detail::self_join(
        base_, k_, knn_options(options_.progress), [&](double seconds) { plan(seconds); }, &report);
    report_.method = report.scan.joined ? "self-join" : "search";
    report_.searched_rows += base_.rows();
    if (copies_.filter.everything()) return out;
    for (Id row = 0; row < base_.rows(); ++row)
      if (const Id first = own(row); first != row) {
        std::copy_n(out.ids.row(first), k_, out.ids.row(row));
        std::copy_n(out.distances.row(first), k_, out.distances.row(row));
      }
    return out;
  }

  // Whether join_rows() may find any. The answer is in memory as a whole, before it is known
  // whether a join pays: not where that is much, nor where it never does (fewer columns, or more
  // neighbours, than it is forecast for).
  bool may_join() const {
    const double bytes = 16.0 * static_cast<double>(base_.rows()) * static_cast<double>(k_ + 1);
    return !by_lists_ && options_.memory == 0 && copies_.filter.everything() &&
           bytes <= static_cast<double>(machine_memory()) / 16 &&
           (options_.first_pass != FirstPass::automatic ||
            (base_.cols() >= 32 && k_ <= base_.rows() / 64));
  }
  // Scores each pair of rows once, and hands over rows as soon as they are finished. Where that
  // does not pay it finds none, or not all.
  void join_rows(const std::function<void(std::span<const Id>, const Neighbors&)>& found) {
    if (!may_join()) return;
    detail::SearchRequest request =
        this->request(detail::SearchKind::self_join, base_, k_, options_.progress);
    request.expecting = [&](double seconds) { plan(seconds); };
    request.joined = [&](std::span<const Id> rows, const ExactNeighbors& answer) {
      report_.method = "self-join", report_.searched_rows += std::ssize(rows);
      found(rows, rounded_rows(answer, options_.metric, rows, k_, options_.threads));
    };
    detail::nearest_in_segments(request, nullptr);
  }

  // Makes the inverted lists, and says how long blocks of `left` will take. They are made where
  // none is left too: they say the order of what is there.
  void prepare_lists(const std::vector<std::int64_t>& left, std::int64_t block_rows) {
    std::int64_t rows = 0;
    for (const std::int64_t block : left)
      rows += std::min(base_.rows(), (block + 1) * block_rows) - block * block_rows;
    detail::BaseListsOptions options = lists_options();
    report_.scratch_bytes = size_of_lists().file_bytes;
    lists_ = std::make_unique<detail::BaseLists>(base_, copies_.firsts, options, options_.progress);
    report_.method = "lists", report_.lists = lists_->lists();
    order_by_list();
    try_slices(rows, left, block_rows);
  }

  // Says how long it will take to search for so many rows, if nothing has been said.
  void prepare_search(std::int64_t rows, std::int64_t block_rows) {
    if (report_.method.empty()) report_.method = "search";
    const std::int64_t trial = std::min(most_on_trial, rows / share_on_trial);
    if (trial < least_on_trial || report_.predicted_seconds > 0) return;
    std::vector<Id> some(trial);
    for (std::int64_t i = 0; i < trial; ++i) some[i] = i * base_.rows() / trial;
    KnnReport report;
    const AnyMatrix queries = detail::rows_at(base_, some);
    detail::search_segments(
        request(detail::SearchKind::nearest, queries.view(), k_ + 1, options_.progress), &report);
    const double blocks = static_cast<double>(rows) / static_cast<double>(block_rows);
    const double model = predict_scan(scan_of(trial), peaks()).seconds;
    const double block = predict_scan(scan_of(std::min(rows, block_rows)), peaks()).seconds;
    plan(blocks *
         (report.seconds / model * block + (report.scan.chunks > 1 ? report.prepare_seconds : 0)));
  }

  // Searches for some of the rows that are left, spread over them, as all will be.
  void try_slices(std::int64_t rows, const std::vector<std::int64_t>& left,
                  std::int64_t block_rows) {
    const std::int64_t slice = std::min(lists_->batch(), rows / share_of_slice);
    if (slice < least_on_trial) return;
    double probes = 0, seconds = 0;
    for (std::int64_t i = 0; i < slices_on_trial; ++i) {
      const std::int64_t at = (rows - 2 * slice) * i / (slices_on_trial - 1);
      const std::int64_t begin =
          std::min(left[at / block_rows] * block_rows + at % block_rows, base_.rows() - 2 * slice);
      lists_->search(rows_in(begin, begin + slice), probes, options_.progress);
      const std::vector<Id> timed = rows_in(begin + slice, begin + 2 * slice);
      const Clock::time_point start = Clock::now();
      lists_->search(timed, probes, options_.progress);
      seconds += since(start);
    }
    plan(seconds / static_cast<double>(slices_on_trial * slice) * static_cast<double>(rows));
  }

  // All rows, so many at a time that the copies of them in order take little memory.
  Neighbors search_all() {
    const std::int64_t rows = base_.rows(),
                       blocks = (rows + usual_block_rows - 1) / usual_block_rows;
    std::vector<std::int64_t> all(blocks);
    std::iota(all.begin(), all.end(), 0);
    prepare_lists(all, usual_block_rows);
    Neighbors out{Matrix<Id>::unset(rows, k_), Matrix<float>::unset(rows, k_)};
    for (std::int64_t begin = 0; begin < rows; begin += usual_block_rows) {
      const std::int64_t end = std::min(rows, begin + usual_block_rows);
      const Neighbors found = search_block(begin, end);
      for (std::int64_t i = 0; i < end - begin; ++i) {
        const Id row = order_[begin + i];
        std::copy_n(found.ids.row(i), k_, out.ids.row(row));
        std::copy_n(found.distances.row(i), k_, out.distances.row(row));
      }
    }
    return out;
  }

  // The rows in places begin, ..., end - 1: those of the lists, or of the base.
  std::vector<Id> rows_in(std::int64_t begin, std::int64_t end) const {
    std::vector<Id> rows(end - begin);
    for (std::int64_t place = begin; place < end; ++place)
      rows[place - begin] = by_lists_ ? order_[place] : place;
    return rows;
  }
  // The neighbours of these; progress is that of all.
  Neighbors search_block(std::int64_t begin, std::int64_t end) {
    const Progress progress = progress_of(begin, end);
    if (!by_lists_) return search(base_.rows(begin, end), rows_in(begin, end), progress);
    const std::vector<Id> rows = own(rows_in(begin, end));
    report_.searched_rows += end - begin;
    return without_itself(lists_->search(rows, probes_, progress), rows);
  }
  // The neighbours of these rows, exactly, where so many are done. They are copied, within an
  // eighth of the memory: call it for most_together() at most.
  Neighbors search_rows(std::span<const Id> rows, std::int64_t done) {
    const AnyMatrix queries = detail::rows_at(base_, rows);
    return search(queries.view(), {rows.begin(), rows.end()},
                  progress_of(done, done + std::ssize(rows)));
  }
  std::int64_t most_together() const {
    if (options_.memory == 0) return usual_block_rows;
    return std::clamp<std::int64_t>(options_.memory / 8 / (base_.cols() * size_of(base_.type())), 1,
                                    usual_block_rows);
  }

  KnnGraphReport report() const {
    KnnGraphReport out = report_;
    if (out.method.empty()) out.method = "none";
    if (lists_ && out.searched_rows > 0)
      out.probes = probes_ / static_cast<double>(out.searched_rows);
    return out;
  }

  double seconds() const { return since(start_); }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  KnnOptions knn_options(const Progress& progress) const {
    return {.metric = options_.metric,
            .threads = options_.threads,
            .memory = options_.memory,
            .first_pass = options_.first_pass,
            .filter = copies_.filter,
            .progress = progress};
  }
  detail::BaseListsOptions lists_options() const {
    // The promise is for the k + 1 nearest others; the k nearest of these are found more often.
    return {.metric = options_.metric,
            .neighbors = k_ + 1,
            .recall = options_.recall.value_or(1),
            .threads = options_.threads,
            .memory = options_.memory,
            .scratch = scratch_};
  }
  ScanShape scan_of(std::int64_t queries) const {
    return {.rows = base_.rows(),
            .dim = base_.cols(),
            .queries = queries,
            .k = k_ + 1,
            .bytes_per_element = 1,
            .op = ScanOp::int8,
            .threads = options_.threads};
  }
  const MachinePeaks& peaks() const { return planning_peaks(active_isa(), options_.threads); }

  // Rows will take so long from now on.
  void plan(double seconds) {
    report_.predicted_seconds = since(start_) + seconds;
    if (options_.planned) options_.planned(report_);
  }

  detail::SearchRequest request(detail::SearchKind kind, AnyMatrixView queries, std::int64_t k,
                                const Progress& progress) {
    if (!rows_) rows_.emplace(base_, options_.metric, range_);
    const detail::SearchSegment segment{.rows = &*rows_, .filter = copies_.filter};
    return {kind, {&segment, 1}, queries, k, knn_options(progress), detail::Reuse::expected};
  }

  // The neighbours of rows, whose vectors are the queries.
  Neighbors search(AnyMatrixView queries, std::vector<Id> rows, const Progress& progress) {
    report_.searched_rows += std::ssize(rows);
    return without_itself(
        detail::search_segments(request(detail::SearchKind::nearest, queries, k_ + 1, progress),
                                nullptr),
        own(std::move(rows)));
  }

  Progress progress_of(std::int64_t begin, std::int64_t end) const {
    if (!options_.progress) return {};
    return [this, begin, end, most = 0.0](std::string_view stage, double fraction) mutable {
      if (stage == "search") most = std::max(most, fraction);
      return options_.progress(
          "graph", (static_cast<double>(begin) + most * static_cast<double>(end - begin)) /
                       static_cast<double>(base_.rows()));
    };
  }

  void order_by_list() {
    const auto list = [&](Id row) { return lists_->list_of(own(row)); };
    std::vector<std::size_t> next(static_cast<std::size_t>(lists_->lists()) + 1);
    for (Id row = 0; row < base_.rows(); ++row) ++next[list(row) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    order_.resize(base_.rows());
    for (Id row = 0; row < base_.rows(); ++row) order_[next[list(row)]++] = row;
  }

  // The row by which a search finds this one.
  Id own(Id row) const { return copies_.first.empty() ? row : copies_.first[row]; }

  std::vector<Id> own(std::vector<Id> rows) const {
    for (Id& row : rows) row = own(row);
    return rows;
  }

  // [rows x k] of [rows x (k + 1)], rows as own() has them. A row may not be among the nearest
  // to itself, if copies of it that are numbered before it fill all places.
  Neighbors without_itself(const Neighbors& found, std::span<const Id> rows) const {
    const std::int64_t count = std::ssize(rows);
    Neighbors out{Matrix<Id>::unset(count, k_), Matrix<float>::unset(count, k_)};
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t to = 0;
      for (std::int64_t j = 0; j <= k_ && to < k_; ++j) {
        if (found.ids.row(i)[j] == rows[i]) continue;
        out.ids.row(i)[to] = found.ids.row(i)[j];
        out.distances.row(i)[to++] = found.distances.row(i)[j];
      }
    }
    return out;
  }

  const Clock::time_point start_ = Clock::now();
  const AnyMatrixView base_;
  const std::int64_t k_;
  KnnGraphOptions options_;
  const std::string scratch_;
  std::unique_ptr<io::MappedPages> pages_;  // of the base, which outlives this
  bool by_lists_ = false;
  detail::Copies copies_;  // none unless they are left out
  ValueRange range_;
  std::optional<detail::PreparedRows> rows_;  // of exact searches
  std::unique_ptr<detail::BaseLists> lists_;
  std::vector<Id> order_;
  double probes_ = 0;  // sum over rows
  KnnGraphReport report_;
};

// The rows of an exact graph, written as they are found, in the blocks that are not there yet.
class FoundRows {
 public:
  FoundRows(detail::PartialGraph& partial, std::int64_t rows, std::int64_t k)
      : partial_(partial), is_found_(rows, false), order_(rows, no_id) {
    for (std::int64_t block = 0; block < partial.blocks(); ++block) {
      if (partial.has(block))
        note(partial.rows(block), block * partial.block_rows());
      else
        open_.push_back(block);
    }
    const std::int64_t most = std::min(rows, partial.block_rows());
    ids_ = Matrix<Id>::unset(most, k), distances_ = Matrix<float>::unset(most, k);
  }

  std::int64_t count() const { return count_; }
  // The row in each place, once all are found.
  std::span<const Id> order() const { return order_; }
  // How many the block at hand still takes.
  std::int64_t room() const { return last_place() - next_place(); }
  std::vector<Id> left() const {
    std::vector<Id> rows;
    for (std::size_t row = 0; row < is_found_.size(); ++row)
      if (!is_found_[row]) rows.push_back(static_cast<Id>(row));
    return rows;
  }

  void add(std::span<const Id> rows, const Neighbors& found) {
    for (std::int64_t from = 0; from < std::ssize(rows);) {
      const std::int64_t some = std::min(std::ssize(rows) - from, room()), k = ids_.cols();
      std::copy_n(found.ids.row(from), some * k, ids_.row(waiting_));
      std::copy_n(found.distances.row(from), some * k, distances_.row(waiting_));
      note(rows.subspan(from, some), next_place());
      from += some, waiting_ += some;
      if (room() == 0) write();
    }
  }

 private:
  std::int64_t next_place() const { return open_[at_] * partial_.block_rows() + waiting_; }
  std::int64_t last_place() const {
    return std::min(std::ssize(order_), (open_[at_] + 1) * partial_.block_rows());
  }
  void note(std::span<const Id> rows, std::int64_t place) {
    for (const Id row : rows) {
      if (is_found_[row])
        throw CorruptFile("{} has row {} twice; remove it to begin anew", partial_.path(), row);
      is_found_[row] = true;
      order_[place++] = row;
    }
    count_ += std::ssize(rows);
  }
  void write() {
    const std::size_t first = open_[at_] * partial_.block_rows();
    partial_.write(open_[at_], ids_.view(), distances_.view(), order().subspan(first, waiting_));
    ++at_, waiting_ = 0;
  }

  detail::PartialGraph& partial_;
  std::vector<bool> is_found_;
  std::vector<Id> order_;
  std::vector<std::int64_t> open_;  // blocks that were not there
  std::size_t at_ = 0;              // of these, the one at hand
  std::int64_t waiting_ = 0, count_ = 0;
  Matrix<Id> ids_;  // of the block at hand
  Matrix<float> distances_;
};

}  // namespace

NeighborGraph knn_graph(AnyMatrixView base, std::int64_t k, const KnnGraphOptions& options,
                        KnnGraphReport* report) {
  return detail::public_call([&] {
    Builder builder(base, k, options);
    builder.size_of_lists();
    Neighbors found = builder.join();
    const KnnGraphReport done = builder.report();
    NeighborGraph graph(std::move(found),
                        {options.metric, mark_of(base, options.progress), done.promised_recall,
                         done.recall_argument, options.distinct});
    if (report) *report = done, report->seconds = builder.seconds();
    return graph;
  });
}

void build_graph_file(AnyMatrixView base, std::int64_t k, const std::string& path,
                      const KnnGraphOptions& options, Resume resume, KnnGraphReport* report,
                      std::int64_t block_rows) {
  detail::public_call([&] {
    if (block_rows < 0)
      throw InvalidArgument("block_rows must not be negative, but is {}", block_rows);
    const std::string partial_path = path + ".partial", scratch = path + ".lists";
    Builder builder(base, k, options, scratch);
    const bool begun = detail::PartialGraph::exists(partial_path);
    if (begun && resume == Resume::no)
      throw InvalidArgument("{} is there, of a graph that was begun: resume it, or remove the file",
                            partial_path);
    // Of a graph whose PATH.partial was removed.
    if (!begun && detail::has_lists_files(scratch))
      throw InvalidArgument("{}.1 is there, but no {}: remove the former", scratch, partial_path);
    const std::int64_t list_bytes = builder.size_of_lists().file_bytes;
    if (block_rows == 0 && !begun) block_rows = usual_block_rows;
    const detail::GraphPlan plan{
        mark_of(base, options.progress),
        k,
        block_rows,
        options.metric,
        options.recall.value_or(1),
        options.distinct,
        builder.by_lists() ? detail::RowOrder::by_list : detail::RowOrder::as_found};
    if (resume == Resume::yes && !begun && detail::PartialGraph::exists(path)) {
      const KnnGraphReport wanted = builder.report();
      detail::check_finished(path, plan, wanted.promised_recall, wanted.recall_argument,
                             options.progress);
      if (report) *report = wanted, report->method = "none";
      if (report) report->seconds = builder.seconds();
      return;
    }
    const bool as_found = builder.may_join();
    const auto finish = [&](MatrixView<Id> ids, MatrixView<float> distances) {
      const KnnGraphReport done = builder.report();
      detail::save_graph(
          path, ids, distances,
          {options.metric, plan.base, done.promised_recall, done.recall_argument, options.distinct},
          options.progress);
      if (report) *report = done, report->seconds = builder.seconds();
    };
    // What takes seconds is made at once.
    if (!begun && base.rows() <= plan.block_rows && list_bytes == 0) {
      const Neighbors found = builder.join();
      return finish(found.ids, found.distances);
    }

    detail::PartialGraph partial = [&] {
      if (begun) return detail::PartialGraph::open(partial_path, plan);
      detail::GraphPlan own = plan;
      if (!builder.by_lists() && !as_found) own.order = detail::RowOrder::by_number;
      // The graph, what is found of it, and that once more where it comes in another order.
      const std::int64_t copies = own.order == detail::RowOrder::by_number ? 2 : 3;
      io::check_free_space(path, list_bytes + copies * 12 * k * base.rows(),
                           "the graph and what is made on the way");
      return detail::PartialGraph::create(partial_path, own);
    }();
    block_rows = partial.block_rows();
    const std::int64_t arranging_bytes =
        options.memory > 0 ? options.memory / share_of_arranging : usual_arranging_bytes;
    // No graph can hold a distance beyond float32: what was begun leads to none.
    const auto or_remove = [&](auto f) {
      try {
        f();
      } catch (const InvalidArgument&) {
        detail::remove_lists_files(scratch);
        partial.remove();
        throw;
      }
    };
    const auto check = [&](std::span<const Id> rows, const Neighbors& found) {
      or_remove([&] { detail::check_distances(path, rows, found.ids, found.distances); });
    };
    if (partial.order() != detail::RowOrder::as_found) {
      std::vector<std::int64_t> left;
      std::int64_t rows_left = 0;
      const auto end_of = [&](std::int64_t block) {
        return std::min(base.rows(), (block + 1) * block_rows);
      };
      for (std::int64_t block = 0; block < partial.blocks(); ++block)
        if (!partial.has(block))
          left.push_back(block), rows_left += end_of(block) - block * block_rows;
      if (builder.by_lists())
        builder.prepare_lists(left, block_rows);
      else if (rows_left > 0)
        builder.prepare_search(rows_left, block_rows);
      partial.set_order(builder.order());
      for (const std::int64_t block : left) {
        const Neighbors found = builder.search_block(block * block_rows, end_of(block));
        check(builder.rows_in(block * block_rows, end_of(block)), found);
        partial.write(block, found.ids, found.distances);
      }
      partial.arrange(builder.order(), arranging_bytes);
    } else {
      FoundRows rows(partial, base.rows(), k);
      if (rows.count() == 0)
        builder.join_rows([&](std::span<const Id> some, const Neighbors& found) {
          check(some, found);
          rows.add(some, found);
        });
      const std::vector<Id> all_left = rows.left();
      if (!all_left.empty()) builder.prepare_search(std::ssize(all_left), block_rows);
      for (std::span<const Id> left = all_left; !left.empty();) {
        const auto some =
            left.first(std::min({std::ssize(left), rows.room(), builder.most_together()}));
        const Neighbors found = builder.search_rows(some, rows.count());
        check(some, found);
        rows.add(some, found);
        left = left.subspan(some.size());
      }
      partial.arrange(rows.order(), arranging_bytes);
    }
    if (begun) partial.check_edges();
    or_remove([&] { finish(partial.ids(), partial.distances()); });
    detail::remove_lists_files(scratch);
    partial.remove();
  });
}

}  // namespace knear
