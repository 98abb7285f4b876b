#include "knear/graph/knn_graph.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/public_call.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/graph/copies.hpp"
#include "knear/graph/partial_graph.hpp"
#include "knear/index/ivf_flat.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/search/search_request.hpp"

namespace knear {
namespace {

constexpr std::int64_t usual_block_rows = 131072;
// Fewer rows are joined exactly in less time than inverted lists of them take to build.
constexpr std::int64_t least_rows_in_lists = 100000;

// What finds the neighbours of rows of a base, by the options.
class Builder {
 public:
  Builder(AnyMatrixView base, std::int64_t k, const KnnGraphOptions& options)
      : base_(base), k_(k), options_(options) {
    if (k < 1 || k >= (std::int64_t{1} << 31) - 1)
      throw InvalidArgument("k must be in [1, 2147483646], but is {}", k);
    detail::check_dim("base", base.cols());
    if (options.memory < 0)
      throw InvalidArgument("memory must not be negative, but is {}", options.memory);
    if (options.recall && !(*options.recall > 0 && *options.recall <= 1))
      throw InvalidArgument("recall must be in (0, 1], but is {}", *options.recall);
    options_.threads = resolve_threads(options.threads);
    // Names the row of a NaN before anything is compared or counted.
    find_value_range(base, options.metric, "base", options_.threads);
    by_lists_ = options.recall.value_or(1) < 1 && base.rows() >= least_rows_in_lists;
    if (by_lists_)
      report_.promised_recall = *options.recall, report_.recall_argument = "calibrated";
    report_.rows = report_.distinct_rows = base.rows();
    if (options.distinct)
      copies_ = detail::find_copies(base), report_.distinct_rows = std::ssize(copies_.firsts);
  }

  // All rows at once, each pair scored once where that pays.
  Neighbors join() {
    if (by_lists_) return search_all();
    KnnReport report;
    Neighbors out = self_join(base_, k_, knn_options(), &report);
    report_.method = report.joined ? "self-join" : "search";
    report_.searched_rows += base_.rows();
    if (copies_.filter.everything()) return out;
    for (Id row = 0; row < base_.rows(); ++row)
      if (const Id first = own(row); first != row) {
        std::copy_n(out.ids.row(first), k_, out.ids.row(row));
        std::copy_n(out.distances.row(first), k_, out.distances.row(row));
      }
    return out;
  }

  // Rows begin, ..., end - 1.
  Neighbors search(std::int64_t begin, std::int64_t end) {
    const AnyMatrixView rows = base_.rows(begin, end);
    report_.searched_rows += end - begin;
    if (!by_lists_) {
      if (!searcher_) searcher_.emplace(base_, knn_options());
      report_.method = "search";
      return without_itself(searcher_->search(rows, k_ + 1, knn_options()), begin);
    }
    make_lists();
    // In the order of their lists, so that the rows that one measures are still at hand for the
    // next (a fifth of the time of 1,000,000 x 96).
    std::vector<Id> order(static_cast<std::size_t>(end - begin));
    std::iota(order.begin(), order.end(), begin);
    std::vector<Id> known(order.size());
    std::transform(order.begin(), order.end(), known.begin(), [&](Id row) { return own(row); });
    const std::vector<std::int64_t> list = lists_->lists_of(known);
    std::stable_sort(order.begin(), order.end(), [&](Id a, Id b) {
      return list[static_cast<std::size_t>(a - begin)] < list[static_cast<std::size_t>(b - begin)];
    });
    KnnReport report;
    // The promise is for the k + 1 nearest others; the k nearest of these are found more often.
    const Neighbors found =
        lists_->search(detail::rows_at(base_, order), k_ + 1, list_options(), &report);
    std::vector<Id> place(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      place[static_cast<std::size_t>(order[i] - begin)] = static_cast<Id>(i);
    probes_ += report.probes * static_cast<double>(end - begin);
    return without_itself(found, begin, place);
  }

  // All rows, so many at a time that the copies of them in order take little memory.
  Neighbors search_all() {
    Neighbors out{Matrix<Id>::unset(base_.rows(), k_), Matrix<float>::unset(base_.rows(), k_)};
    for (std::int64_t begin = 0; begin < base_.rows(); begin += usual_block_rows) {
      const std::int64_t end = std::min(base_.rows(), begin + usual_block_rows);
      const Neighbors found = search_block(begin, end);
      std::copy_n(found.ids.data(), (end - begin) * k_, out.ids.row(begin));
      std::copy_n(found.distances.data(), (end - begin) * k_, out.distances.row(begin));
    }
    return out;
  }

  // The same, one block of a graph after another: progress is that of all.
  Neighbors search_block(std::int64_t begin, std::int64_t end) {
    if (by_lists_) make_lists();
    const Progress outer = std::exchange(options_.progress, {});
    double most = 0;
    if (outer)
      options_.progress = [&](std::string_view stage, double fraction) {
        if (stage == "search") most = std::max(most, fraction);
        return outer("graph",
                     (static_cast<double>(begin) + most * static_cast<double>(end - begin)) /
                         static_cast<double>(base_.rows()));
      };
    Neighbors found;
    try {
      found = search(begin, end);
    } catch (...) {
      options_.progress = outer;
      throw;
    }
    options_.progress = outer;
    return found;
  }

  KnnGraphReport report() const {
    KnnGraphReport out = report_;
    if (lists_ && out.searched_rows > 0) {
      out.method = "lists";
      out.lists = lists_->lists();
      out.probes = probes_ / static_cast<double>(out.searched_rows);
    }
    return out;
  }

 private:
  KnnOptions knn_options() const {
    return {.metric = options_.metric,
            .threads = options_.threads,
            .memory = options_.memory,
            .filter = copies_.filter,
            .progress = options_.progress};
  }
  SearchOptions list_options() const {
    return {.threads = options_.threads,
            .memory = options_.memory,
            .progress = options_.progress,
            .method = {.recall = options_.recall}};
  }

  void make_lists() {
    if (lists_) return;
    lists_.emplace(base_.cols(), usual_lists(base_.rows()), options_.metric);
    lists_->train(base_,
                  {.hold_out = false, .threads = options_.threads, .progress = options_.progress});
    const ChangeOptions changing{options_.threads, options_.progress};
    if (copies_.filter.everything()) {
      lists_->add(base_, changing);
    } else {
      lists_->add(detail::rows_at(base_, copies_.firsts).view(), copies_.firsts, changing);
    }
    lists_->tune(k_ + 1, {}, changing);
  }

  // The row by which a search finds this one.
  Id own(Id row) const {
    return copies_.first.empty() ? row : copies_.first[static_cast<std::size_t>(row)];
  }

  // [rows x k] of [rows x (k + 1)], of rows begin, begin + 1, ..., which were found in places 0, 1,
  // ..., or in those given. A row may not be among the nearest to itself, if copies of it that are
  // numbered before it fill all places.
  Neighbors without_itself(const Neighbors& found, Id begin,
                           const std::vector<Id>& places = {}) const {
    const std::int64_t rows = found.ids.rows();
    Neighbors out{Matrix<Id>::unset(rows, k_), Matrix<float>::unset(rows, k_)};
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t at = places.empty() ? i : places[static_cast<std::size_t>(i)];
      std::int64_t to = 0;
      for (std::int64_t j = 0; j <= k_ && to < k_; ++j) {
        if (found.ids.row(at)[j] == own(begin + i)) continue;
        out.ids.row(i)[to] = found.ids.row(at)[j];
        out.distances.row(i)[to++] = found.distances.row(at)[j];
      }
    }
    return out;
  }

  const AnyMatrixView base_;
  const std::int64_t k_;
  KnnGraphOptions options_;
  bool by_lists_ = false;
  detail::Copies copies_;  // none unless they are left out
  std::optional<ExactSearcher> searcher_;
  std::optional<IvfFlatIndex> lists_;
  double probes_ = 0;  // sum over rows
  KnnGraphReport report_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

NeighborGraph knn_graph(AnyMatrixView base, std::int64_t k, const KnnGraphOptions& options,
                        KnnGraphReport* report) {
  return detail::public_call([&] {
    const auto start = std::chrono::steady_clock::now();
    Builder builder(base, k, options);
    Neighbors found = builder.join();
    const KnnGraphReport done = builder.report();
    NeighborGraph graph(std::move(found),
                        {options.metric, mark_of(base, options.progress), done.promised_recall,
                         done.recall_argument, options.distinct});
    if (report) *report = done, report->seconds = seconds_since(start);
    return graph;
  });
}

void build_graph_file(AnyMatrixView base, std::int64_t k, const std::string& path,
                      const KnnGraphOptions& options, Resume resume, KnnGraphReport* report,
                      std::int64_t block_rows) {
  detail::public_call([&] {
    const auto start = std::chrono::steady_clock::now();
    if (block_rows < 0)
      throw InvalidArgument("block_rows must not be negative, but is {}", block_rows);
    Builder builder(base, k, options);
    const std::string partial_path = path + ".partial";
    const bool begun = detail::PartialGraph::exists(partial_path);
    if (begun && resume == Resume::no)
      throw InvalidArgument("{} is there, of a graph that was begun: resume it, or remove the file",
                            partial_path);
    const detail::GraphPlan plan{mark_of(base, options.progress),
                                 k,
                                 block_rows > 0 ? block_rows : usual_block_rows,
                                 options.metric,
                                 options.recall.value_or(1),
                                 options.distinct};
    const auto finish = [&](MatrixView<Id> ids, MatrixView<float> distances) {
      const KnnGraphReport done = builder.report();
      detail::save_graph(
          path, ids, distances,
          {options.metric, plan.base, done.promised_recall, done.recall_argument, options.distinct},
          options.progress);
      if (report) *report = done, report->seconds = seconds_since(start);
    };
    // What takes seconds is made at once.
    if (!begun && base.rows() <= plan.block_rows) {
      const Neighbors found = builder.join();
      return finish(found.ids, found.distances);
    }

    detail::PartialGraph partial = begun ? detail::PartialGraph::open(partial_path, plan)
                                         : detail::PartialGraph::create(partial_path, plan);
    for (std::int64_t block = 0; block < partial.blocks(); ++block) {
      if (partial.has(block)) continue;
      const std::int64_t begin = block * plan.block_rows;
      const std::int64_t end = std::min(base.rows(), begin + plan.block_rows);
      const Neighbors found = builder.search_block(begin, end);
      partial.write(block, found.ids, found.distances);
    }
    finish(partial.ids(), partial.distances());
    partial.remove();
  });
}

}  // namespace knear
