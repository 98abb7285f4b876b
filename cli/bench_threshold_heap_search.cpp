// The part of `knear bench threshold-heap` that searches: method threshold-heap beside method exact
// on the same queries and the same packed base; where the number of rows varies, beside method
// partial-reduce too. With a GPU, the same rounds measure the heap across both devices and the
// exact search there.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "cli/bench_threshold_heap.hpp"
#include "cli/interrupt.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

// One search by the heap; seconds per query.
struct HeapRun {
  std::int64_t samples = 0, batch = 0;
  double all = none, sampling = none, sorting = none, compression = none, closeness = none;
};

class SearchBench {
 public:
  SearchBench(AnyMatrixView queries, AnyMatrixView base, const ThresholdHeapBench& bench,
              Metric metric, int threads, ProgressBar& bar)
      : queries_(queries),
        base_(base),
        bench_(bench),
        metric_(metric),
        threads_(threads),
        bar_(bar),
        count_(std::min(bench.count, queries.rows())),
        rows_(base.rows()),
        searcher_(base, options(Method::exact, FirstPass::automatic)) {}

  // Packs the base, makes a prefix where there can be one, and decides how rows are scored: a
  // search would do all of that by itself at some time, and change between rounds.
  void prepare(SearchedBy& by) {
    bar_.show("pack", 0);
    KnnReport report;
    const AnyMatrixView some = queries_.rows(0, count_);
    const KnnOptions heap = options(Method::threshold_heap, FirstPass::automatic);
    expect(count_, bench_.k, searcher_.search(some, bench_.k, heap, &report));
    pass_ = parse_first_pass(report.scan.first_pass);
    warm_up();
    by.first_pass = report.scan.first_pass;
  }
  std::int64_t left_by_the_device() const { return left_by_the_device_; }

  // Figures 5 and 6, which are the same searches.
  std::pair<Figure, Figure> by_samples() {
    Figure ratios = search_figure("5", "How well does a sample of this size prune and compress?",
                                  "n_S", sample_sizes(bench_.k, base_.rows()));
    add_ratios(ratios);
    Figure times = search_figure(
        "6", "What do its steps and the search take, by the size of the sample?", "n_S", ratios.at);
    add_times(times);
    rounds(times, [&](std::size_t point) {
      const HeapRun run = heap(count_, bench_.k, times.at[point]);
      ratios.add(point, {run.compression, run.closeness});
      times.add(point, beside_exact(run, count_, bench_.k));
    });
    return {std::move(ratios), std::move(times)};
  }

  // Figures 7 and 8: with the same sample size for every k, as in the paper, and with 8 k, which it
  // concludes from them.
  std::pair<Figure, Figure> by_neighbours() {
    const std::int64_t fixed = ThresholdHeapBench::samples_for(bench_.k);
    Figure ratios = search_figure("7", "How well does a sample of 8 k rows prune and compress?",
                                  "k", neighbour_counts(base_.rows()));
    const std::string at_fixed = fmt::format("n_S = {}", fixed);
    add_ratios(ratios);
    ratios.add_curve("fixed_compression_ratio", "compression, " + at_fixed, Unit::compression);
    ratios.add_curve("fixed_threshold_ratio", "k-th / threshold, " + at_fixed, Unit::closeness);
    Figure times = search_figure(
        "8", "What do its steps and the search take with samples of 8 k rows?", "k", ratios.at);
    add_times(times);
    times.add_curve("fixed_threshold_heap_seconds", "TH-heap, " + at_fixed);
    rounds(times, [&](std::size_t point) {
      const std::int64_t k = times.at[point];
      const HeapRun run = heap(count_, k, ThresholdHeapBench::samples_for(k));
      // A sample has at least k rows.
      const HeapRun with_fixed = k <= fixed ? heap(count_, k, fixed) : HeapRun{};
      ratios.add(point,
                 {run.compression, run.closeness, with_fixed.compression, with_fixed.closeness});
      std::vector<double> values = beside_exact(run, count_, k);
      values.push_back(with_fixed.all);
      times.add(point, values);
    });
    return {std::move(ratios), std::move(times)};
  }

  // Figure 9.
  Figure by_batch() {
    Figure figure = search_figure("9", "What does it change how many queries are sorted together?",
                                  "size of a batch", {1, 4, 12, 48, 192});
    add_times(figure);
    add_ratios(figure);
    rounds(figure, [&](std::size_t point) {
      const HeapRun run =
          heap(count_, bench_.k, ThresholdHeapBench::samples_for(bench_.k), figure.at[point]);
      std::vector<double> values = beside_exact(run, count_, bench_.k);
      values.insert(values.end(), {run.compression, run.closeness});
      figure.add(point, values);
    });
    return figure;
  }

  // Figure 10. One base after the other, each with all of its rounds, so that only one packed base
  // is in memory; at the end that is the whole base again.
  Figure by_rows() {
    Figure figure = search_figure("10", "What does a search take, by the number of rows?", "n_D",
                                  row_counts(bench_.k, base_.rows()));
    add_times(figure);
    figure.add_curve("partial_reduce_seconds", "partial-reduce");
    for (std::size_t point = 0; point < figure.at.size(); ++point) {
      take_rows(figure.at[point]);
      partial_reduce(count_, bench_.k);  // makes its bins
      for (std::int64_t round = 0; round < bench_.repeat; ++round) {
        show(figure, std::int64_t(point) * bench_.repeat + round);
        std::vector<double> values = beside_exact(
            heap(count_, bench_.k, ThresholdHeapBench::samples_for(bench_.k)), count_, bench_.k);
        values.push_back(partial_reduce(count_, bench_.k));
        figure.add(point, values);
      }
    }
    return figure;
  }

  // Figure 12.
  Figure by_queries() {
    Figure figure = search_figure(
        "12", "What does a search take, by the number of queries at once?", "n_Q", {});
    const std::int64_t most = std::min(bench_.most, queries_.rows());
    for (const std::int64_t part : {16, 8, 4, 2, 1})
      if (most / part > 0) figure.at.push_back(most / part);
    add_times(figure);
    rounds(figure, [&](std::size_t point) {
      const std::int64_t count = figure.at[point];
      figure.add(point,
                 beside_exact(heap(count, bench_.k, ThresholdHeapBench::samples_for(bench_.k)),
                              count, bench_.k));
    });
    return figure;
  }

 private:
  bool has_device() const { return bench_.device != "cpu"; }

  KnnOptions options(Method method, FirstPass pass) const {
    KnnOptions out{.metric = metric_, .threads = threads_, .first_pass = pass};
    out.method.kind = method;
    out.progress = [](std::string_view, double) { return !interrupted(); };
    return out;
  }

  // All columns that beside_exact() fills, in its order.
  void add_times(Figure& figure) const {
    figure.add_curve("threshold_heap_seconds", "TH-heap");
    figure.add_curve("sampling_seconds", "sampling");
    figure.add_curve("sorting_seconds", "sorting");
    figure.add_curve("exact_seconds", "exact");
    figure.add_curve("prefix_seconds", "exact, prefix");
    figure.add_curve("threshold_heap_over_exact", "TH-heap / exact", Unit::times);
    figure.add_curve("threshold_heap_over_prefix", "TH-heap / prefix", Unit::times);
    if (!has_device()) return;
    const std::string& device = bench_.device;
    figure.add_curve("device_threshold_heap_seconds", "TH-heap, " + device);
    figure.add_curve("device_sorting_seconds", "sorting, " + device);
    figure.add_curve("device_exact_seconds", "exact, " + device);
    figure.add_curve("device_threshold_heap_over_exact", fmt::format("TH-heap / exact, {}", device),
                     Unit::times);
  }
  static void add_ratios(Figure& figure) {
    figure.add_curve("compression_ratio", "compression", Unit::compression);
    figure.add_curve("threshold_ratio", "k-th / threshold", Unit::closeness);
  }

  template <class Measure>
  void rounds(const Figure& figure, Measure measure) {
    for (std::int64_t round = 0; round < bench_.repeat; ++round)
      for (std::size_t point = 0; point < figure.at.size(); ++point) {
        show(figure, round * std::ssize(figure.at) + std::int64_t(point));
        measure(point);
      }
  }
  void show(const Figure& figure, std::int64_t done) {
    bar_.show("figure " + figure.number,
              double(done) / double(bench_.repeat * std::ssize(figure.at)));
  }

  // From now on searches use only the first rows of the base.
  void take_rows(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    searcher_ = ExactSearcher(base_.rows(0, rows), options(Method::exact, FirstPass::automatic));
    warm_up();
  }
  // Makes what searches of the base keep, so that it is not timed.
  void warm_up() {
    exact(count_, bench_.k, pass_);
    try {
      if (has_prefix_) exact(count_, bench_.k, FirstPass::prefix);
    } catch (const InvalidArgument&) {
      has_prefix_ = false;  // there is none for ip, say
    }
    if (has_device()) {
      const std::int64_t samples = ThresholdHeapBench::samples_for(bench_.k);
      heap(count_, bench_.k, samples, 0, bench_.device);
      exact_on_device(count_, bench_.k);
    }
  }

  HeapRun heap(std::int64_t count, std::int64_t k, std::int64_t samples, std::int64_t batch = 0,
               const std::string& device = "cpu") {
    // A GPU has passes of its own.
    KnnOptions how =
        options(Method::threshold_heap, device == "cpu" ? pass_ : FirstPass::automatic);
    how.method.threshold_heap.samples = samples, how.method.threshold_heap.query_batch = batch,
    how.device = device;
    KnnReport report;
    HeapRun run;
    run.samples = samples, run.batch = batch;
    const double queries = double(count);
    run.all = timed(count, k, how, report) / queries;
    run.sampling = report.threshold_heap.sampling_seconds / queries;
    // A sum over threads, where all other times are wall-clock.
    run.sorting = report.threshold_heap.sorting_seconds / double(report.threads) / queries;
    run.compression = report.threshold_heap.compression_ratio;
    run.closeness = traits_of(metric_).product ? none : report.threshold_heap.threshold_ratio;
    return run;
  }

  // Seconds per query of the exact search.
  double exact(std::int64_t count, std::int64_t k, FirstPass pass) {
    KnnReport report;
    return timed(count, k, options(Method::exact, pass), report) / double(count);
  }

  double exact_on_device(std::int64_t count, std::int64_t k) {
    KnnOptions how = options(Method::exact, FirstPass::automatic);
    how.device = bench_.device;
    KnnReport report;
    return timed(count, k, how, report) / double(count);
  }

  // With a recall of 1, the answer is that of the other methods. The bins alone are never measured.
  double partial_reduce(std::int64_t count, std::int64_t k) {
    const FirstPass pass = pass_ == FirstPass::direct ? FirstPass::automatic : pass_;
    KnnReport report;
    return timed(count, k, options(Method::partial_reduce, pass), report) / double(count);
  }

  std::vector<double> beside_exact(const HeapRun& run, std::int64_t count, std::int64_t k) {
    const double same = exact(count, k, pass_);
    const double prefix = has_prefix_ ? exact(count, k, FirstPass::prefix) : none;
    std::vector<double> out{run.all, run.sampling,   run.sorting,     same,
                            prefix,  run.all / same, run.all / prefix};
    if (has_device()) {
      const HeapRun across = heap(count, k, run.samples, run.batch, bench_.device);
      const double there = exact_on_device(count, k);
      out.insert(out.end(), {across.all, across.sorting, there, across.all / there});
    }
    return out;
  }

  double timed(std::int64_t count, std::int64_t k, const KnnOptions& how, KnnReport& report) {
    check_interrupt();
    Neighbors near;
    const double seconds =
        seconds_of([&] { near = searcher_.search(queries_.rows(0, count), k, how, &report); });
    expect(count, k, std::move(near));
    if (how.device != "cpu")
      left_by_the_device_ = std::max(left_by_the_device_, report.scan.fallback_queries);
    return seconds;
  }

  // The first answer to a question is kept; all later ones with as many rows must equal it.
  void expect(std::int64_t count, std::int64_t k, Neighbors near) {
    const auto [first, is_new] = answers_.try_emplace({rows_, count, k}, std::move(near));
    if (!is_new && !same_bits(first->second, near))
      throw Error(fmt::format(
          "two searches of {} rows for {} neighbours of {} queries gave different answers", rows_,
          k, count));
  }

  AnyMatrixView queries_, base_;
  const ThresholdHeapBench& bench_;
  Metric metric_;
  int threads_;
  ProgressBar& bar_;
  std::int64_t count_;  // of queries; other numbers in Figure 12
  std::int64_t rows_;   // of the base; fewer in Figure 10
  ExactSearcher searcher_;
  FirstPass pass_ = FirstPass::automatic;
  bool has_prefix_ = true;
  std::int64_t left_by_the_device_ = 0;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Neighbors> answers_;
};

}  // namespace

std::vector<Figure> measure_searches(AnyMatrixView queries, AnyMatrixView base,
                                     const ThresholdHeapBench& bench, Metric metric, int threads,
                                     SearchedBy& by, ProgressBar& bar) {
  SearchBench all(queries, base, bench, metric, threads, bar);
  all.prepare(by);
  std::vector<Figure> out;
  auto [ratios_by_samples, times_by_samples] = all.by_samples();
  out.push_back(std::move(ratios_by_samples));
  out.push_back(std::move(times_by_samples));
  auto [ratios_by_k, times_by_k] = all.by_neighbours();
  out.push_back(std::move(ratios_by_k));
  out.push_back(std::move(times_by_k));
  out.push_back(all.by_batch());
  out.push_back(all.by_rows());
  out.push_back(all.by_queries());
  by.left_by_the_device = all.left_by_the_device();
  return out;
}

}  // namespace knear::cli
