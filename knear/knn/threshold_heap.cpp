// The method threshold-heap: Matsumoto and Yiu (2015), section III, over the parts of a base.
//
//   1. samples rows are drawn at random, without repetition, and searched: the k-th key of each
//      query among them is its threshold
//   2. the scan goes over all rows with that threshold (scan/threshold_heap.hpp)
//
// The paper does both on its GPU; here the sample goes by whatever exact search is the fastest.
#include <algorithm>
#include <cmath>

#include "knear/distance/reference.hpp"
#include "knear/knn/search.hpp"
#include "knear/scan/threshold_heap.hpp"
#include "knear/select/permutation.hpp"
#include "knear/select/threshold_heap.hpp"

namespace knear::detail {
namespace {

constexpr std::uint64_t sample_seed = 0x7468726573686f6c;

// Of a count of rows, `wanted` different ones, ascending.
std::vector<std::int64_t> drawn(std::int64_t count, std::int64_t wanted) {
  const Permutation order(count, sample_seed);
  std::vector<std::int64_t> out(static_cast<std::size_t>(wanted));
  for (std::int64_t i = 0; i < wanted; ++i) out[static_cast<std::size_t>(i)] = order.row_at(i);
  std::sort(out.begin(), out.end());
  return out;
}

class ThresholdHeapSearch : public Search {
 public:
  ThresholdHeapSearch(std::span<const SearchPart> parts, AnyMatrixView queries, std::int64_t k,
                      const KnnOptions& options, bool once)
      : Search(parts, queries, k, options, once) {
    check_plain("threshold-heap");
    learns_ = false;
    samples_ = options.approach.samples > 0 ? options.approach.samples : 8 * k_;
    if (options.approach.samples > 0 && options.approach.samples < k)
      throw InvalidArgument("samples must be at least k = {}, but are {}", k,
                            options.approach.samples);
    samples_ = std::min(samples_, allowed_rows_);
    batch_ = options.approach.query_batch > 0 ? options.approach.query_batch : usual_batch;
    batch_ = std::clamp<std::int64_t>(queries.rows(), 1, batch_);
    if (options.memory > 0 && queries.rows() > 0) fit_memory();
  }

  Neighbors run_heap(KnnReport* report) {
    const auto start = Clock::now();
    find_thresholds();
    const double sampling = seconds_since(start);
    ExactLists all;
    run_from(all, report);
    if (report) {
      report->method = "threshold-heap";
      report->expected_hits = static_cast<double>(allowed_rows_) * static_cast<double>(k_) /
                              static_cast<double>(std::max<std::int64_t>(1, samples_));
      report->seconds += sampling;
      report->samples = samples_, report->sampling_seconds = sampling;
      report->sorting_seconds = heap_.sort_seconds;
      report->compression_ratio =
          heap_.batches > 0 ? heap_.compress_sum / static_cast<double>(heap_.batches) : 1;
      report->threshold_ratio = ratio(all);
    }
    return pad(all);
  }

 protected:
  void search_rows(const BaseRows& rows, std::int64_t begin, ExactLists& out) override {
    std::vector<double> bars = thresholds_;
    for (std::size_t q = 0; q < bars_.size(); ++q) bars[q] = std::min(bars[q], bars_[q]);
    auto [job, choice, todo] = begin_rows(rows, begin, out.keys.cols(), bars);
    if (options_.metric != Metric::l2) answer_zero_queries(todo, job.allowed, out);
    const FirstPass pass = choice.passes.front();
    note_pass(pass, todo.size() * static_cast<std::size_t>(count_));
    if (pass == FirstPass::direct) {
      list_allowed(job);
      scan_threshold_heap_directly(job, batch_, subset_, todo, out, stats_, heap_,
                                   options_.progress);
      return;
    }
    make_room(rows.rows(), pass);
    const auto packed = packed_form(pass, rows, choice);
    scan_threshold_heap(*packed, job, batch_, todo, out, stats_, heap_, options_.progress);
    note_scan(*packed, pass, std::ssize(todo), (std::ssize(todo) + batch_ - 1) / batch_);
  }

 private:
  // Takes fewer queries at a time until they fit the memory: a quarter of it at most. Throws where
  // one is too many.
  void fit_memory() {
    const std::int64_t each = threshold_heap_bytes(allowed_rows_, k_) * threads_;
    batch_ = std::clamp<std::int64_t>(options_.memory / 4 / each, 1, batch_);
    for (;; batch_ /= 2) {
      more_bytes_ = batch_ * each;
      try {
        for (const Part& part : parts_) part_ = &part, chunk_rows();
        return;
      } catch (const MemoryBudgetError&) {
        if (batch_ == 1) throw;
      }
    }
  }

  // The paper's is 16; the kernels score twelve side by side.
  static constexpr std::int64_t usual_batch = 48;

  void find_thresholds() {
    thresholds_.assign(static_cast<std::size_t>(queries_.rows()),
                       std::numeric_limits<double>::infinity());
    if (k_ == 0 || samples_ == allowed_rows_) return;
    const std::vector<std::int64_t> places = drawn(allowed_rows_, samples_);
    std::vector<SearchPart> parts;
    std::size_t next = 0;
    std::int64_t before = 0;  // allowed rows of the parts that were passed
    for (const Part& part : parts_) {
      const std::int64_t rows = part.part.rows->base.rows();
      std::vector<Id> sampled;
      std::vector<std::uint32_t> allowed;
      if (part.allowed < rows) allowed = allowed_rows_of(part.part);
      for (; next < places.size() && places[next] < before + part.allowed; ++next) {
        const std::int64_t place = places[next] - before;
        sampled.push_back(allowed.empty() ? place : allowed[static_cast<std::size_t>(place)]);
      }
      before += part.allowed;
      if (!sampled.empty())
        parts.push_back({part.part.rows, part.part.ids, RowFilter::of_ids(sampled, rows)});
    }
    KnnOptions options = options_;
    options.choices = {}, options.filter = {}, options.progress = {};
    ExactLists found;
    Search(parts, queries_, k_, options, true).run_from(found, nullptr);
    for (std::int64_t q = 0; q < queries_.rows() && found.keys.cols() == k_; ++q)
      thresholds_[static_cast<std::size_t>(q)] = found.keys.row(q)[k_ - 1];
  }

  static std::vector<std::uint32_t> allowed_rows_of(const SearchPart& part) {
    const std::int64_t rows = part.rows->base.rows();
    if (!part.live) return part.filter.allowed(part.filter_offset, part.filter_offset + rows);
    std::vector<std::uint32_t> out;
    for (std::int64_t row = 0; row < rows; ++row)
      if (part.live->contains(row)) out.push_back(static_cast<std::uint32_t>(row));
    return out;
  }

  // Eq. 3, of distances and not of their squares; 0 for products, which are no distances.
  double ratio(const ExactLists& all) const {
    if (options_.metric == Metric::ip || all.keys.cols() < k_ || k_ == 0) return 0;
    std::vector<double> kth, bars;
    for (std::int64_t q = 0; q < queries_.rows(); ++q) {
      const double bar = thresholds_[static_cast<std::size_t>(q)];
      if (std::isinf(bar)) continue;
      const auto distance = [&](double key) {
        const double value = std::max(0.0, distance_of_key(options_.metric, key));
        return options_.metric == Metric::l2 ? std::sqrt(value) : value;
      };
      kth.push_back(distance(all.keys.row(q)[k_ - 1])), bars.push_back(distance(bar));
    }
    return threshold_ratio(kth.data(), bars.data(), std::ssize(kth));
  }

  std::int64_t samples_ = 0, batch_ = usual_batch;
  std::vector<double> thresholds_;  // of each query
  ThresholdHeapStats heap_;
};

}  // namespace

Neighbors threshold_heap_parts(std::span<const SearchPart> parts, AnyMatrixView queries,
                               std::int64_t k, const KnnOptions& options, bool once,
                               KnnReport* report) {
  return ThresholdHeapSearch(parts, queries, k, options, once).run_heap(report);
}

}  // namespace knear::detail
