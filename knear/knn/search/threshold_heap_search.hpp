// knear/knn/search/threshold_heap_search.hpp -- the method threshold-heap: Matsumoto and Yiu
// (2015), section III, over the parts of a base.
//
//   1. samples rows are drawn at random, without repetition, and searched: the k-th key of each
//      query among them is its threshold
//   2. the scan goes over all rows with that threshold (scan/methods/threshold_heap_scan.hpp), on
//   the processor
//      (threshold_heap.cpp) or across devices (device_threshold_heap.hpp)
//
// The paper does both on its GPU; here the processor searches the sample, which is small, by
// whatever exact search is the fastest.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "knear/distance/reference.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/scan/methods/threshold_heap_scan.hpp"
#include "knear/select/sort/compressed_batch.hpp"

namespace knear::detail {

// Of a count of rows, `wanted` different ones, ascending; the same each time.
std::vector<std::int64_t> sampled_rows(std::int64_t count, std::int64_t wanted);
// The rows of a part that may be found.
std::vector<std::uint32_t> allowed_rows_of(const SearchSegment& segment);

// Base: the search that the rows are taken from, Search or one derived from it. What is derived
// from this calls fit_memory in the end of its constructor and has a search_rows of its own.
template <class Base>
class ThresholdHeap : public Base {
 public:
  // The arguments are those of Base.
  template <class... Arguments>
  explicit ThresholdHeap(Arguments&&... arguments) : Base(std::forward<Arguments>(arguments)...) {
    const MethodOptions& method = options_.method;
    this->check_plain("threshold-heap");
    this->learns_ = false;
    if (method.samples > 0 && method.samples < k_asked_)
      throw InvalidArgument("samples must be at least k = {}, but are {}", k_asked_,
                            method.samples);
    samples_ = std::min(method.samples > 0 ? method.samples : 8 * k_, allowed_rows_);
    batch_ = method.query_batch > 0 ? method.query_batch : usual_batch;
    batch_ = std::clamp<std::int64_t>(queries_.rows(), 1, batch_);
  }

  Neighbors run_heap(KnnReport* report) {
    const auto start = Base::Clock::now();
    find_thresholds();
    const double sampling = Base::seconds_since(start);
    ExactNeighbors all;
    this->run_from(all, report);
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
    return rounded(all, options_.metric, queries_.rows(), k_asked_, threads_);
  }

 protected:
  using Base::allowed_rows_, Base::k_, Base::k_asked_, Base::more_bytes_, Base::options_,
      Base::segments_, Base::queries_, Base::threads_;

  // The paper's is 16; the kernels score twelve side by side.
  static constexpr std::int64_t usual_batch = 48;

  // With a memory limit takes fewer queries at a time until they fit, `each` bytes for one of a
  // batch: a quarter of it at most. Throws where one is too many.
  void fit_memory(std::int64_t each) {
    if (options_.memory <= 0 || queries_.rows() == 0) return;
    batch_ = std::clamp<std::int64_t>(options_.memory / 4 / each, 1, batch_);
    for (const std::int64_t others = more_bytes_;; batch_ /= 2) {
      more_bytes_ = others + batch_ * each;
      try {
        for (const typename Base::Segment& segment : segments_)
          this->segment_ = &segment, this->chunk_rows();
        return;
      } catch (const MemoryBudgetError&) {
        if (batch_ == 1) throw;
      }
    }
  }

  // What the rows of the next chunk are pruned by: the sample's, or what was found since.
  std::vector<double> upper_bounds() const {
    std::vector<double> out = thresholds_;
    for (std::size_t q = 0; q < this->upper_bounds_.size(); ++q)
      out[q] = std::min(out[q], this->upper_bounds_[q]);
    return out;
  }

  // The processor's way for the queries of `todo`, with thresholds `now`.
  void search_on_processor(const BaseRows& rows, std::int64_t begin, const std::vector<double>& now,
                           std::vector<std::int64_t> todo, ExactNeighbors& out) {
    auto [job, choice, all] = this->begin_rows(rows, begin, out.keys.cols(), now);
    if (options_.metric != Metric::l2) this->answer_zero_queries(todo, job.allowed, out);
    const FirstPass pass = choice.passes.front();
    this->note_pass(pass, todo.size() * static_cast<std::size_t>(this->count_));
    if (pass == FirstPass::direct) {
      this->list_allowed(job);
      scan_threshold_heap_directly(job, batch_, this->subset_, todo, out, this->stats_, heap_,
                                   options_.progress);
      return;
    }
    this->make_room(rows.rows(), pass);
    const auto packed = this->packed_form(pass, rows, choice);
    scan_threshold_heap(*packed, job, batch_, todo, out, this->stats_, heap_, options_.progress);
    this->note_scan(*packed, pass, std::ssize(todo), (std::ssize(todo) + batch_ - 1) / batch_);
  }

  std::int64_t batch_ = usual_batch;
  ThresholdHeapStats heap_;

 private:
  void find_thresholds() {
    thresholds_.assign(static_cast<std::size_t>(queries_.rows()),
                       std::numeric_limits<double>::infinity());
    if (k_ == 0 || samples_ == allowed_rows_) return;
    const std::vector<std::int64_t> places = sampled_rows(allowed_rows_, samples_);
    std::vector<SearchSegment> segments;
    std::size_t next = 0;
    std::int64_t before = 0;  // allowed rows of the parts that were passed
    for (const typename Base::Segment& segment : segments_) {
      const std::int64_t rows = segment.given.rows->base.rows();
      std::vector<Id> sampled;
      std::vector<std::uint32_t> allowed;
      if (segment.allowed < rows) allowed = allowed_rows_of(segment.given);
      for (; next < places.size() && places[next] < before + segment.allowed; ++next) {
        const std::int64_t place = places[next] - before;
        sampled.push_back(allowed.empty() ? place : allowed[static_cast<std::size_t>(place)]);
      }
      before += segment.allowed;
      if (!sampled.empty())
        segments.push_back(
            {segment.given.rows, segment.given.ids, RowFilter::of_ids(sampled, rows)});
    }
    KnnOptions options = options_;
    options.tuning = {}, options.filter = {}, options.progress = {};
    ExactNeighbors found;
    Search(segments, queries_, k_, options, Reuse::none).run_from(found, nullptr);
    for (std::int64_t q = 0; q < queries_.rows() && found.keys.cols() == k_; ++q)
      thresholds_[static_cast<std::size_t>(q)] = found.keys.row(q)[k_ - 1];
  }

  // Eq. 3, of distances and not of their squares; 0 for products, which are no distances.
  double ratio(const ExactNeighbors& all) const {
    if (options_.metric == Metric::ip || all.keys.cols() < k_ || k_ == 0) return 0;
    std::vector<double> kth, upper_bounds;
    for (std::int64_t q = 0; q < queries_.rows(); ++q) {
      const double bound = thresholds_[static_cast<std::size_t>(q)];
      if (std::isinf(bound)) continue;
      const auto distance = [&](double key) {
        const double value = std::max(0.0, distance_of_key(options_.metric, key));
        return options_.metric == Metric::l2 ? std::sqrt(value) : value;
      };
      kth.push_back(distance(all.keys.row(q)[k_ - 1])), upper_bounds.push_back(distance(bound));
    }
    return threshold_ratio(kth.data(), upper_bounds.data(), std::ssize(kth));
  }

  std::int64_t samples_ = 0;
  std::vector<double> thresholds_;  // of each query
};

}  // namespace knear::detail
