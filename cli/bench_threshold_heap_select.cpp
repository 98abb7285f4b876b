// The part of `knear bench threshold-heap` that selects from precomputed distances: what the paper
// compares. All on one thread, so that a time per query is the work of a core.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "cli/bench_threshold_heap.hpp"
#include "cli/interrupt.hpp"
#include "knear/select/select_k.hpp"
#include "knear/select/sort/bitonic_partial_sort.hpp"
#include "knear/select/sort/compressed_batch.hpp"
#include "knear/select/sort/permutation.hpp"
#include "knear/select/sort/radix_sort.hpp"
#include "knear/select/top_k.hpp"

namespace knear::cli {
namespace {

// [queries x k], nearest first.
struct Selected {
  std::vector<float> values;
  std::vector<std::int32_t> ids;

  void resize(std::int64_t queries, std::int64_t k) {
    values.resize(queries * k), ids.resize(values.size());
  }
  bool operator==(const Selected& other) const {
    return values.size() == other.values.size() && ids == other.ids &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(float)) == 0;
  }
};

struct HeapSeconds {
  double sampling = 0, compressing = 0, sorting = 0;
  double all() const { return sampling + compressing + sorting; }
};

// The TH-heap. Like the other methods it keeps its memory from call to call.
class HeapSelection {
 public:
  // columns: those of the sample. Drawing them is not timed: a search does so once for all its
  // queries.
  HeapSeconds operator()(MatrixView<float> distances, const std::vector<std::int64_t>& columns,
                         std::int64_t k, Selected& out) {
    HeapSeconds seconds;
    seconds.sampling = seconds_of([&] {
      thresholds_.clear();
      sample_.resize(columns.size());
      for (std::int64_t q = 0; q < distances.rows(); ++q) {
        const float* row = distances.row(q);
        for (std::size_t i = 0; i < columns.size(); ++i) sample_[i] = row[columns[i]];
        thresholds_.push_back(
            threshold_of_sample(sample_.data(), std::ssize(sample_), k, heap_of_sample_));
      }
    });
    seconds.compressing = seconds_of([&] {
      batch_.start(distances.rows());
      batch_.compress(distances, thresholds_.data(), 0);
      batch_.pad();
    });
    seconds.sorting = seconds_of([&] {
      for (std::int64_t q = 0; q < distances.rows(); ++q)
        partial_heap_sort(batch_.values().row(q), batch_.ids().row(q), batch_.count(q), k, heap_,
                          out.values.data() + q * k, out.ids.data() + q * k);
    });
    return seconds;
  }

 private:
  std::vector<float> thresholds_, sample_, heap_of_sample_;
  CompressedBatch<float, std::int32_t> batch_;
  std::vector<std::pair<float, std::int32_t>> heap_;
};

// Another method: returns the seconds that all queries took.
struct Way {
  std::string key, name;
  std::function<double(MatrixView<float>, std::int64_t k, Selected&)> select;
};

// Calls select(row, n, k, values, ids) for every query.
template <class Select>
double for_each_query(MatrixView<float> distances, std::int64_t k, Selected& out, Select select) {
  return seconds_of([&] {
    for (std::int64_t q = 0; q < distances.rows(); ++q)
      select(distances.row(q), distances.cols(), k, out.values.data() + q * k,
             out.ids.data() + q * k);
  });
}

// The selection of the scan: in the total order, with keys in float64.
void scan_selection(const float* row, std::int64_t n, std::int64_t k, float* values,
                    std::int32_t* ids) {
  TopK best(k);
  for (std::int64_t i = 0; i < n; ++i)
    if (best.admits(row[i], i)) best.push(row[i], i);
  best.finish();
  for (const TopK::Item& item : best.items()) {
    *values++ = static_cast<float>(item.first);
    *ids++ = static_cast<std::int32_t>(item.second);
  }
}

double select_by_threshold(MatrixView<float> distances, std::int64_t k, Selected& out) {
  Selection found;
  const double seconds = seconds_of(
      [&] { found = select_k(distances, k, {.threads = 1, .method = SelectMethod::threshold}); });
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = found.values.data()[i];
    out.ids[i] = static_cast<std::int32_t>(found.places.data()[i]);
  }
  return seconds;
}

std::vector<Way> other_ways() {
  return {
      {"bitonic", "bitonic partial sort",
       [sort = BitonicPartialSort<float, std::int32_t>()](auto from, auto k, auto& out) mutable {
         return for_each_query(from, k, out, std::ref(sort));
       }},
      {"radix_sort", "radix sort",
       [sort = RadixSort()](auto from, auto k, auto& out) mutable {
         return for_each_query(from, k, out, [&](auto... row) { sort.first(row...); });
       }},
      {"radix_select", "radix selection",
       [select = RadixSelect()](auto from, auto k, auto& out) mutable {
         return for_each_query(from, k, out, std::ref(select));
       }},
      {"scan", "the scan's own",
       [](auto from, auto k, auto& out) { return for_each_query(from, k, out, scan_selection); }},
      {"select_k", "select_k (threshold)", select_by_threshold}};
}
constexpr std::size_t bitonic = 0, scan = 3;  // places in other_ways()

std::vector<std::int64_t> drawn_columns(std::int64_t count, std::int64_t wanted) {
  const Permutation order(count);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < wanted; ++i) out.push_back(order.row_at(i));
  std::sort(out.begin(), out.end());
  return out;
}

class SelectionBench {
 public:
  SelectionBench(MatrixView<float> distances, const ThresholdHeapBench& bench, ProgressBar& bar)
      : distances_(distances), bench_(bench), bar_(bar) {
    // A first run, so that no round pays for memory: the smallest sample leaves the most values.
    run_heap(distances, drawn_columns(distances.cols(), bench.k), bench.k);
    for (std::size_t way = 0; way < ways_.size(); ++way) check(way, distances, bench.k);
  }

  // Figure 6: the heap alone, by the size of its sample.
  Figure by_samples() {
    Figure figure =
        selection_figure("6", "What do sampling and sorting take, by the size of the sample?",
                         "n_S", sample_sizes(bench_.k, distances_.cols()));
    figure.add_curve("threshold_heap_seconds", "TH-heap");
    figure.add_curve("sampling_seconds", "sampling");
    figure.add_curve("compressing_seconds", "compressing");
    figure.add_curve("sorting_seconds", "sorting");
    rounds(figure, [&](std::size_t point) {
      const auto columns = drawn_columns(distances_.cols(), figure.at[point]);
      const HeapSeconds heap = run_heap(distances_, columns, bench_.k);
      check(scan, distances_, bench_.k);
      figure.add(point, {per_query(heap.all()), per_query(heap.sampling),
                         per_query(heap.compressing), per_query(heap.sorting)});
    });
    return figure;
  }

  // Figure 10: all methods, by the number of distances.
  Figure by_rows() {
    Figure figure = selection_figure(
        "10", "Which way to select is the fastest, by the number of rows?", "n_D", {});
    for (const std::int64_t part : {16, 8, 4, 2, 1})
      if (distances_.cols() / part > ThresholdHeapBench::samples_for(bench_.k))
        figure.at.push_back(distances_.cols() / part);
    compare(figure, [&](std::size_t point) {
      return std::pair(MatrixView<float>(distances_.data(), distances_.rows(), figure.at[point],
                                         distances_.stride()),
                       bench_.k);
    });
    return figure;
  }

  // Figure 11: all methods, by the number of neighbours.
  Figure by_neighbours() {
    Figure figure = selection_figure(
        "11", "Which way to select is the fastest, by k, with samples of 8 k rows?", "k",
        neighbour_counts(distances_.cols()));
    compare(figure, [&](std::size_t point) { return std::pair(distances_, figure.at[point]); });
    return figure;
  }

 private:
  double per_query(double seconds) const { return seconds / double(distances_.rows()); }

  template <class Measure>
  void rounds(const Figure& figure, Measure measure) {
    for (std::int64_t round = 0; round < bench_.repeat; ++round)
      for (std::size_t point = 0; point < figure.at.size(); ++point) {
        check_interrupt();
        bar_.show("figure " + figure.number,
                  double(round * std::ssize(figure.at) + std::int64_t(point)) /
                      double(bench_.repeat * std::ssize(figure.at)));
        measure(point);
      }
  }

  // what(point) returns the distances and k.
  template <class What>
  void compare(Figure& figure, What what) {
    figure.add_curve("threshold_heap_seconds", "TH-heap");
    figure.add_curve("sampling_seconds", "its sampling");
    for (const Way& way : ways_) figure.add_curve(way.key + "_seconds", way.name);
    figure.add_curve("bitonic_over_threshold_heap", "bitonic / TH-heap", Unit::times);
    figure.add_curve("threshold_heap_over_scan", "TH-heap / scan's", Unit::times);
    rounds(figure, [&](std::size_t point) {
      const auto [distances, k] = what(point);
      const auto columns = drawn_columns(distances.cols(), ThresholdHeapBench::samples_for(k));
      const HeapSeconds heap = run_heap(distances, columns, k);
      std::vector<double> values{per_query(heap.all()), per_query(heap.sampling)};
      for (Way& way : ways_) {
        other_.resize(distances.rows(), k);
        values.push_back(per_query(way.select(distances, k, other_)));
        agree(way.name);
      }
      values.push_back(values[2 + bitonic] / values[0]);
      values.push_back(values[0] / values[2 + scan]);
      figure.add(point, values);
    });
  }

  HeapSeconds run_heap(MatrixView<float> distances, const std::vector<std::int64_t>& columns,
                       std::int64_t k) {
    by_heap_.resize(distances.rows(), k);
    return heap_(distances, columns, k, by_heap_);
  }
  // Compares the heap's last answer with that of another method, which is not timed.
  void check(std::size_t way, MatrixView<float> distances, std::int64_t k) {
    other_.resize(distances.rows(), k);
    ways_[way].select(distances, k, other_);
    agree(ways_[way].name);
  }
  void agree(const std::string& name) const {
    if (!(other_ == by_heap_)) throw Error("TH-heap and " + name + " selected different rows");
  }

  MatrixView<float> distances_;
  const ThresholdHeapBench& bench_;
  ProgressBar& bar_;
  HeapSelection heap_;
  std::vector<Way> ways_ = other_ways();
  Selected by_heap_, other_;
};

}  // namespace

std::vector<std::int64_t> neighbour_counts(std::int64_t rows) {
  std::vector<std::int64_t> out;
  for (const std::int64_t k : {10, 32, 64, 128, 256, 512, 1000})
    if (ThresholdHeapBench::samples_for(k) < rows) out.push_back(k);
  return out;
}

std::vector<std::int64_t> sample_sizes(std::int64_t k, std::int64_t rows) {
  std::vector<std::int64_t> out;
  for (std::int64_t samples = k; samples <= std::max<std::int64_t>(8192, k) && samples < rows;
       samples *= 2)
    out.push_back(samples);
  return out;
}

std::vector<std::int64_t> row_counts(std::int64_t k, std::int64_t rows) {
  std::vector<std::int64_t> out;
  for (int step = 8; step >= 0; --step) {
    const auto count = std::llround(double(rows) / std::pow(10.0, 0.25 * step));
    if (count > ThresholdHeapBench::samples_for(k)) out.push_back(count);
  }
  return out;
}

std::vector<Figure> measure_selection(MatrixView<float> distances, const ThresholdHeapBench& bench,
                                      ProgressBar& bar) {
  SelectionBench all(distances, bench, bar);
  std::vector<Figure> out;
  out.push_back(all.by_samples());
  out.push_back(all.by_rows());
  out.push_back(all.by_neighbours());
  return out;
}

}  // namespace knear::cli
