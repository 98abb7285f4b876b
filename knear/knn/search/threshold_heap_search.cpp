// The method threshold-heap: Matsumoto and Yiu (2015), section III, over the segments of a base.
//
//   1. samples rows are drawn at random, without repetition, and searched: the k-th key of each
//      query among them is its threshold
//   2. the scan goes over all rows with that threshold (scan/methods/threshold_heap_scan.hpp); a
//      GPU prunes and compresses (scan/device/threshold_heap_by_tiles.hpp), the processor sorts
//
// The paper does both on its GPU; here the processor searches the sample, which is small, by
// whatever exact search is the fastest.
#include "knear/knn/search/threshold_heap_search.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "knear/distance/reference.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/select/sort/compressed_batch.hpp"
#include "knear/select/sort/permutation.hpp"

namespace knear::detail {
namespace {

constexpr std::uint64_t sample_seed = 0x7468726573686f6c;

// The paper's is 16; the kernels score twelve side by side.
constexpr std::int64_t usual_batch = 48;

// Draws `wanted` different rows of a count, ascending; the same each time.
std::vector<std::int64_t> sampled_rows(std::int64_t count, std::int64_t wanted) {
  const Permutation order(count, sample_seed);
  std::vector<std::int64_t> out(wanted);
  for (std::int64_t i = 0; i < wanted; ++i) out[i] = order.row_at(i);
  std::sort(out.begin(), out.end());
  return out;
}

class ThresholdHeapSearch final : public Search {
 public:
  ThresholdHeapSearch(const SearchRequest& request, DeviceEngine* device)
      : Search(request, device) {
    const ThresholdHeapOptions& method = request.options.method.threshold_heap;
    const std::int64_t queries = request.queries.rows(), threads = request.threads;
    report_.learns = false, report_.method = "threshold-heap";
    samples_ = std::min(method.samples > 0 ? method.samples : 8 * request.k, request.allowed_rows);
    batch_ = method.query_batch > 0 ? method.query_batch : usual_batch;
    // With a device so many that every thread has some to sort.
    if (device && method.query_batch == 0)
      batch_ = std::min(batch_, (queries + threads - 1) / threads);
    batch_ = std::clamp<std::int64_t>(queries, 1, std::max<std::int64_t>(1, batch_));
    fit_memory();
  }

  ExactNeighbors run_heap(KnnReport* report) {
    const Stopwatch time;
    find_thresholds();
    const double sampling = time.seconds();
    ExactNeighbors all;
    run_from(all);
    if (report) {
      *report = this->report();
      report->scan.expected_hits = static_cast<double>(request_.allowed_rows) *
                                   static_cast<double>(request_.k) /
                                   static_cast<double>(std::max<std::int64_t>(1, samples_));
      ThresholdHeapReport& own = report->threshold_heap;
      own.samples = samples_, own.sampling_seconds = sampling;
      own.sorting_seconds = heap_.sort_seconds;
      own.compression_ratio =
          heap_.batches > 0 ? heap_.compress_sum / static_cast<double>(heap_.batches) : 1;
      own.threshold_ratio = ratio(all);
    }
    return all;
  }

 protected:
  void search_chunk(ExactNeighbors& out) override {
    // The sample's thresholds, or what was found since.
    std::vector<double> thresholds = thresholds_;
    for (std::size_t q = 0; q < at_.upper_bounds.size(); ++q)
      thresholds[q] = std::min(thresholds[q], at_.upper_bounds[q]);
    std::vector<std::int64_t> todo = at_.all_queries();
    if (at_.device) {
      todo = at_.device->threshold_heap(at_, report_, {thresholds, batch_, heap_}, std::move(todo),
                                        out);
      report_.note_fallback(std::ssize(todo));
    }
    if (!todo.empty()) search_on_processor(thresholds, std::move(todo), out);
  }

 private:
  void search_on_processor(const std::vector<double>& thresholds, std::vector<std::int64_t> todo,
                           ExactNeighbors& out) {
    const Progress& progress = request_.options.progress;
    const ChunkSearch chunk = passes_.begin(out.columns(), thresholds);
    at_.answer_zero_queries(todo, chunk.job.allowed, out);
    const FirstPass pass = chunk.choice.passes.front();
    report_.note_pass(pass, std::ssize(todo), at_.count);
    if (pass == FirstPass::direct) {
      at_.list_allowed();
      return scan_threshold_heap_directly(chunk.job, batch_, at_.subset, todo, out, report_.stats,
                                          heap_, progress);
    }
    at_.make_room(pass);
    const auto packed = passes_.packed(pass, chunk.choice);
    scan_threshold_heap(*packed, chunk.job, batch_, todo, out, report_.stats, heap_, progress);
    report_.note_packed(at_.prepared(), *packed, pass);
    report_.note_scored(*packed, std::ssize(todo), (std::ssize(todo) + batch_ - 1) / batch_);
  }

  // With a memory limit takes fewer queries at a time until they fit: a batch of each thread takes
  // a quarter of it at most. Throws where one query is too many.
  void fit_memory() {
    if (!request_.limited() || request_.queries.rows() == 0) return;
    std::int64_t each = threshold_heap_bytes(request_.allowed_rows, request_.k);
    // Codes of queries for a device are beside what arrives in the place of the processor's tiles.
    if (at_.device)
      each += at_.device->host_bytes(request_, 1) - at_.device->host_bytes(request_, 0);
    each *= request_.threads;
    batch_ = std::clamp<std::int64_t>(request_.options.memory / 4 / each, 1, batch_);
    for (const std::int64_t others = at_.more_bytes;; batch_ /= 2) {
      at_.more_bytes = others + batch_ * each;
      try {
        at_.check_memory();
        return;
      } catch (const MemoryBudgetError&) {
        if (batch_ == 1) throw;
      }
    }
  }

  void find_thresholds() {
    thresholds_.assign(request_.queries.rows(), std::numeric_limits<double>::infinity());
    const std::int64_t k = request_.k;
    if (k == 0 || samples_ == request_.allowed_rows) return;
    const std::vector<SearchSegment> sample = sampled_segments();
    SearchRequest request = request_.among(sample, request_.queries, k);
    request.options.tuning = {}, request.options.progress = {}, request.reuse = Reuse::none;
    ExactNeighbors found;
    Search(request).run_from(found);
    for (std::int64_t q = 0; q < request_.queries.rows() && found.columns() == k; ++q)
      thresholds_[q] = found.keys.row(q)[k - 1];
  }

  // The segments with a filter that lets the sample through.
  std::vector<SearchSegment> sampled_segments() const {
    const std::vector<std::int64_t> places = sampled_rows(request_.allowed_rows, samples_);
    std::vector<SearchSegment> out;
    std::size_t next = 0;
    std::int64_t before = 0;  // allowed rows of the segments that were passed
    for (const auto& [given, allowed, integer] : request_.segments) {
      const std::int64_t rows = given.rows->base.rows();
      std::vector<Id> sampled;
      std::vector<std::uint32_t> numbers;
      if (allowed < rows) numbers = given.allowed_rows(0, rows);
      for (; next < places.size() && places[next] < before + allowed; ++next) {
        const std::int64_t place = places[next] - before;
        sampled.push_back(numbers.empty() ? place : numbers[place]);
      }
      before += allowed;
      if (!sampled.empty())
        out.push_back({given.rows, given.ids, RowFilter::of_ids(sampled, rows)});
    }
    return out;
  }

  // Eq. 3, of distances and not of their squares; 0 for products, which are no distances.
  double ratio(const ExactNeighbors& all) const {
    const std::int64_t k = request_.k;
    const Metric metric = request_.options.metric;
    if (traits_of(metric).product || all.columns() < k || k == 0) return 0;
    std::vector<double> kth, upper_bounds;
    for (std::int64_t q = 0; q < request_.queries.rows(); ++q) {
      const double bound = thresholds_[q];
      if (std::isinf(bound)) continue;
      const auto distance = [&](double key) {
        const double value = std::max(0.0, distance_of_key(metric, key));
        return traits_of(metric).squared ? std::sqrt(value) : value;
      };
      kth.push_back(distance(all.keys.row(q)[k - 1])), upper_bounds.push_back(distance(bound));
    }
    return threshold_ratio(kth.data(), upper_bounds.data(), std::ssize(kth));
  }

  std::int64_t batch_, samples_;
  ThresholdHeapStats heap_;
  std::vector<double> thresholds_;  // of each query
};

}  // namespace

ExactNeighbors threshold_heap_on(DeviceEngine* device, const SearchRequest& request,
                                 KnnReport* report) {
  return ThresholdHeapSearch(request, device).run_heap(report);
}

}  // namespace knear::detail
