// The TH-heap over packed tiles, and over float64 distances.
#include "knear/scan/methods/threshold_heap_scan.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>

#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/scan/scores.hpp"
#include "knear/select/sort/compressed_batch.hpp"
#include "knear/select/sort/nth_value.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

using Clock = std::chrono::steady_clock;

// The scan's kernels as the device that computes. With `ahead`, a tile is computed by whichever
// thread is idle.
template <class Scores>
class KernelTiles final : public PrunedTiles {
 public:
  KernelTiles(const PackedBase& packed, const ScanJob& job, const std::int64_t* which,
              std::int64_t count, GroupSize group, bool ahead, Reporter& reporter)
      : packed_(packed),
        job_(job),
        loop_(packed, job, {0, 0, packed.panels()},
              pack_queries(packed, job.queries, which, count, group_sizes[group], job.query_range),
              clock_, reporter),
        scores_(packed, job, loop_.queries) {
    clock_.charge(clock_.queries);
    for (std::int64_t q = 0; q < count; ++q) {
      upper_bounds_.push_back(job.upper_bounds[which[q]]);
      scores_.publish(q, upper_bounds_.back());
    }
    scores_.publish_groups();
    if (ahead) ahead_.emplace();
  }

  std::int64_t tiles() const override { return loop_.tiles(); }
  void start(std::int64_t tile, int buffer) override {
    if (ahead_)
      ahead_->run([this, tile, buffer] { compute(tile, buffers_[buffer]); });
    else
      compute(tile, buffers_[buffer]);
  }
  std::span<const PrunedPair> wait(int buffer) override {
    if (ahead_) ahead_->wait();
    return buffers_[buffer];
  }

  // Once nothing is under way.
  void report(ScanStats& stats) const {
    clock_.report(stats);
    stats.add(stats_);
  }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(loop_.queries.codes->bytes() +
                                     (buffers_[0].capacity() + buffers_[1].capacity()) *
                                         sizeof(PrunedPair));
  }

  // The accumulator of a tile. A row that no filter allows is left out; one that stands for copies
  // counts if one of them may be found.
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    const KeyInterval keys = scores_.keys(q, head, hit);
    if (!(keys.low <= upper_bounds_[q])) return;
    if (filtered_ && !job_.allowed.any_of(row, packed_.duplicates)) return;
    found_->push_back({keys.low, keys.high, static_cast<std::uint32_t>(q), row});
  }
  void publish_group(GroupHead&) const {}  // thresholds stand from the beginning
  bool tile_done(std::int64_t, std::int64_t) const { return true; }

 private:
  void compute(std::int64_t tile, std::vector<PrunedPair>& found) {
    const DefaultFloatMode mode;  // a task of its own may run anywhere
    found.clear();
    found_ = &found;
    run_task(loop_, tile, tile + 1, *this, stats_);
  }

  const PackedBase& packed_;
  const ScanJob& job_;
  StageClock clock_;
  TileLoop loop_;
  Scores scores_;
  const bool filtered_ = !job_.allowed.all();
  std::vector<double> upper_bounds_;
  std::vector<PrunedPair> buffers_[2];
  std::vector<PrunedPair>* found_ = nullptr;
  ScanStats stats_;
  std::optional<BackgroundTask> ahead_;  // last: waits for what it runs
};

// Wider batches are cut down to what may still be among the k, so that memory has a bound.
std::int64_t most_width(std::int64_t k) { return std::max<std::int64_t>(1 << 17, 4 * k); }

// The compressed rows of one batch, and their end. What was packed as one row for several copies is
// one row here too, until the end.
class Batch {
 public:
  Batch(const ScanJob& job, const Duplicates& duplicates, const std::int64_t* which,
        std::int64_t queries)
      : job_(job),
        duplicates_(duplicates),
        which_(which),
        measurer_(job),
        widest_(queries, 0.0),
        exact_(queries, TopK(job.k)),
        coming_(queries, 0),
        room_(most_width(job.k)) {
    rows_.start(queries);
  }

  // first: the number of the batch's first query in the pairs.
  void take(std::span<const PrunedPair> pairs, std::int64_t first = 0) {
    std::fill(coming_.begin(), coming_.end(), 0);
    for (const PrunedPair& pair : pairs) ++coming_[pair.query - first];
    rows_.make_room(*std::max_element(coming_.begin(), coming_.end()));
    for (const PrunedPair& pair : pairs) {
      const std::int64_t q = pair.query - first;
      rows_.push(q, pair.low, pair.row);
      widest_[q] = std::max(widest_[q], pair.high - pair.low);
    }
    longest_ = std::max(longest_, taken_ + rows_.width());
    if (rows_.width() > room_) cut();
  }
  CompressedBatch<double, std::uint32_t>& rows() { return rows_; }

  std::int64_t measured_early() const { return measured_early_; }
  // Eq. 4's length of the longest row, over all that came.
  std::int64_t width() const { return longest_; }

  // Sorts what is left of a query, measures it where scores were intervals, and writes its list.
  void finish(std::int64_t q, double* keys, Id* ids, ThresholdHeapStats& stats) {
    const std::int64_t count = rows_.count(q), k = job_.k;
    const double* values = rows_.values().row(q);
    const std::uint32_t* rows = rows_.ids().row(q);
    sorted_.resize(k), sorted_rows_.resize(sorted_.size());
    const std::int64_t found =
        partial_heap_sort(values, rows, count, k, space_, sorted_.data(), sorted_rows_.data());
    stats.kept += count;
    TopK& best = exact_[q];
    if (is_exact(q)) {
      for (std::int64_t j = 0; j < found; ++j) push(best, sorted_[j], sorted_rows_[j]);
    } else {
      measure(q, reach(q, found == k ? sorted_.back() : infinity), stats.measured);
    }
    best.finish();
    write_list(best, k, keys, ids);
  }

  std::int64_t bytes() const {
    return rows_.bytes() + static_cast<std::int64_t>(numbers_.capacity() * sizeof(double));
  }

 private:
  // Where an interval may begin at most for its key to be no larger than that of k rows whose
  // intervals begin at `kth` or before.
  double reach(std::int64_t q, double kth) const {
    const double width = widest_[q];
    return width == 0 ? kth : kth + width + 0x1p-50 * (std::fabs(kth) + width);
  }

  // Whether the values are the keys, and each stands for its row alone.
  bool is_exact(std::int64_t q) const { return widest_[q] == 0 && !duplicates_.any(); }

  // A row with that key, and its copies.
  void push(TopK& best, double key, std::uint32_t row) {
    each_copy(duplicates_, job_.allowed, row, [&](std::uint32_t each) {
      const bool admitted = best.admits(key, each);
      if (admitted) best.push(key, each);
      return admitted;
    });
  }

  // Measures those of a query's rows whose intervals begin no later than `last`.
  void measure(std::int64_t q, double last, std::int64_t& measured) {
    TopK& best = exact_[q];
    const double* values = rows_.values().row(q);
    const std::uint32_t* rows = rows_.ids().row(q);
    waiting_.clear();
    for (std::int64_t i = 0; i < rows_.count(q); ++i)
      if (!(values[i] > last)) waiting_.push_back(rows[i]);
    measurer_.set_query(which_[q]);
    const auto row_of = [&](std::int64_t i) { return waiting_[i]; };
    measurer_.measure(std::ssize(waiting_), row_of,
                      [&](std::int64_t i, double key) { push(best, key, row_of(i)); });
    measured += std::ssize(waiting_);
  }

  // Cuts each row that is long down to what may still be among the k. Where that is much (ties,
  // intervals that tell nothing apart) it is measured, or if values are exact cut to k: so memory
  // has a bound.
  void cut() {
    std::int64_t most = 0;
    for (std::int64_t q = 0; q < rows_.rows(); ++q) {
      const std::int64_t count = rows_.count(q);
      most = std::max(most, count);
      if (count <= room_ / 2) continue;
      const double* values = rows_.values().row(q);
      if (is_exact(q)) {
        pairs_.clear();
        for (std::int64_t i = 0; i < count; ++i)
          pairs_.emplace_back(values[i], rows_.ids().row(q)[i]);
        keep_smallest(pairs_, job_.k);
        rows_.clear(q);
        for (const KeyedId& pair : pairs_)
          rows_.push(q, pair.first, static_cast<std::uint32_t>(pair.second));
        continue;
      }
      numbers_.assign(values, values + count);
      numbers_.resize(2 * count);
      const double kth = nth_value(numbers_.data(), numbers_.data() + count, count, job_.k - 1);
      rows_.keep_at_most(q, reach(q, kth));
      if (rows_.count(q) <= room_ / 2) continue;
      measure(q, infinity, measured_early_);
      exact_[q].cut();
      rows_.clear(q);
    }
    taken_ += most - rows_.width();
  }

  const ScanJob& job_;
  const Duplicates& duplicates_;
  const std::int64_t* which_;
  RowMeasurer measurer_;
  CompressedBatch<double, std::uint32_t> rows_;
  std::vector<double> widest_;
  std::vector<TopK> exact_;  // of rows measured so far
  std::vector<std::int64_t> coming_;
  std::int64_t room_, longest_ = 0, taken_ = 0;
  std::vector<std::pair<double, std::uint32_t>> space_;
  std::vector<double> sorted_, numbers_;
  std::int64_t measured_early_ = 0;
  std::vector<KeyedId> pairs_;
  std::vector<std::uint32_t> sorted_rows_;
  std::vector<std::uint32_t> waiting_;
};

// Sorts a batch and writes its lists: queries which[begin], ...
void finish(Batch& batch, std::int64_t rows, const std::int64_t* which, std::int64_t count,
            ExactNeighbors& out, ThresholdHeapStats& stats) {
  const auto start = Clock::now();
  batch.rows().pad();
  for (std::int64_t q = 0; q < count; ++q) {
    batch.finish(q, out.keys.row(which[q]), out.ids.row(which[q]), stats);
    stop_if_asked();
  }
  stats.measured += batch.measured_early();
  stats.compress_sum += compression_ratio(rows, std::max<std::int64_t>(1, batch.width()));
  ++stats.batches;
  stats.sort_seconds += seconds_since(start);
}

// The pairs of a batch, all measured in float64, pruned by the thresholds.
class MeasuredBatch {
 public:
  MeasuredBatch(const ScanJob& job, std::int64_t rows, const std::vector<std::int64_t>& which,
                const MeasuredTask& task, ExactNeighbors& out, ThresholdHeapStats& heap)
      : job_(job),
        rows_(rows),
        queries_(which.data() + task.begin),
        count_(task.count),
        out_(out),
        heap_(heap),
        compressed_(job, no_copies(), queries_, count_) {}

  void take(std::int64_t q, double key, std::uint32_t row) {
    if (key <= job_.upper_bounds[queries_[q]])
      found_.push_back({key, key, static_cast<std::uint32_t>(q), row});
  }
  double limit(std::int64_t q) const { return job_.upper_bounds[queries_[q]]; }
  void block_done() {
    compressed_.take(found_);
    found_.clear();
  }
  std::int64_t finish(ScanStats&) {
    knear::detail::finish(compressed_, rows_, queries_, count_, out_, local_);
    return compressed_.bytes();
  }
  void hand_over() { heap_.add(local_); }

 private:
  static const Duplicates& no_copies() {
    static const Duplicates none;
    return none;
  }

  const ScanJob& job_;
  const std::int64_t rows_;
  const std::int64_t* const queries_;
  const std::int64_t count_;
  ExactNeighbors& out_;
  ThresholdHeapStats& heap_;
  ThresholdHeapStats local_;
  Batch compressed_;
  std::vector<PrunedPair> found_;
};

}  // namespace

std::int64_t threshold_heap_bytes(std::int64_t rows, std::int64_t k) {
  // Both tiles under way, and the compressed row, which doubles as it grows and is copied then.
  constexpr std::int64_t tile = 4096;
  const std::int64_t width = 2 * std::min(rows, most_width(k) + tile);
  return 2 * std::min(rows, tile) * static_cast<std::int64_t>(sizeof(PrunedPair)) + 2 * width * 12 +
         16 * (k + 1) + 2 * 8 * width;
}

void scan_threshold_heap(const PackedBase& packed, const ScanJob& job, std::int64_t batch,
                         const std::vector<std::int64_t>& which, ExactNeighbors& out,
                         ScanStats& stats, ThresholdHeapStats& heap, const Progress& progress) {
  const std::int64_t count = std::ssize(which);
  if (count == 0) return;
  const GroupSize group = group_for(std::min(batch, count), job);
  stats.group = group_sizes[group], stats.splits = 1;
  const std::int64_t batches = (count + batch - 1) / batch;
  // Where there are fewer batches than threads, idle ones compute the next tile.
  const bool ahead = batches < job.threads;
  Reporter reporter(progress, "search", batches * packed.tiles);
  std::mutex mutex;
  const auto run_batch = [&]<class Scores>(std::int64_t b) {
    const auto start = Clock::now();
    const std::int64_t* const queries = which.data() + b * batch;
    const std::int64_t n = std::min(batch, count - b * batch);
    ScanStats local;
    ThresholdHeapStats local_heap;
    Batch compressed(job, packed.duplicates, queries, n);
    KernelTiles<Scores> tiles(packed, job, queries, n, group, ahead, reporter);
    // Waiting for a tile must not take up another batch.
    run_isolated([&] {
      tiles.start(0, 0);
      for (std::int64_t t = 0; t < tiles.tiles(); ++t) {
        const std::span<const PrunedPair> pairs = tiles.wait(t % 2);
        if (t + 1 < tiles.tiles()) tiles.start(t + 1, (t + 1) % 2);
        compressed.take(pairs);
      }
    });
    tiles.report(local);
    local.scan_seconds = seconds_since(start);
    finish(compressed, packed.rows, queries, n, out, local_heap);
    local.survivors = local_heap.measured, local.rescore_seconds = local_heap.sort_seconds;
    std::lock_guard lock(mutex);
    heap.add(local_heap);
    stats.add(local, tiles.bytes() + compressed.bytes(),
              std::min<std::int64_t>(job.threads, batches));
  };
  parallel_for(job.threads, batches, [&](std::int64_t b) {
    if (packed.is_integer)
      run_batch.template operator()<IntegerScores>(b);
    else
      run_batch.template operator()<CertifiedScores>(b);
  });
}

void scan_threshold_heap_directly(const ScanJob& job, std::int64_t batch,
                                  std::span<const std::uint32_t> subset,
                                  const std::vector<std::int64_t>& which, ExactNeighbors& out,
                                  ScanStats& stats, ThresholdHeapStats& heap,
                                  const Progress& progress) {
  const std::int64_t rows = subset.empty() ? job.base.rows() : std::ssize(subset);
  measure_pairs(job, subset, which, batch, false, stats, progress, [&](const MeasuredTask& task) {
    return MeasuredBatch(job, rows, which, task, out, heap);
  });
}

void sort_pruned_tiles(PrunedTiles& tiles, std::int64_t group, const ScanJob& job,
                       std::int64_t rows, std::int64_t batch, std::span<const std::int64_t> which,
                       ExactNeighbors& out, ScanStats& stats, ThresholdHeapStats& heap,
                       Reporter& reporter) {
  const std::int64_t count = std::ssize(which), groups = (count + group - 1) / group;
  if (count == 0) return;
  const std::int64_t all = tiles.tiles(), each = all / groups;
  const Duplicates no_copies;
  const bool filtered = !job.allowed.all();
  const auto by_query = [](const PrunedPair& pair, std::int64_t query) {
    return pair.query < query;
  };
  std::mutex mutex;
  tiles.start(0, 0);
  for (std::int64_t begin = 0, tile = 0; begin < count; begin += group) {
    const auto start = Clock::now();
    const std::int64_t end = std::min(count, begin + group);
    const std::int64_t batches = (end - begin + batch - 1) / batch;
    const auto first_of = [&](std::int64_t b) { return std::min(end, begin + b * batch); };
    std::deque<Batch> compressed;
    for (std::int64_t b = 0; b < batches; ++b)
      compressed.emplace_back(job, no_copies, which.data() + first_of(b),
                              first_of(b + 1) - first_of(b));
    for (const std::int64_t last = tile + each; tile < last; ++tile) {
      const std::span<const PrunedPair> pairs = tiles.wait(tile % 2);
      if (tile + 1 < all) tiles.start(tile + 1, (tile + 1) % 2);
      parallel_for(job.threads, batches, [&](std::int64_t b) {
        const auto from = std::lower_bound(pairs.begin(), pairs.end(), first_of(b), by_query);
        const auto to = std::lower_bound(from, pairs.end(), first_of(b + 1), by_query);
        if (!filtered) return compressed[b].take({from, to}, first_of(b));
        std::vector<PrunedPair> allowed;
        std::copy_if(from, to, std::back_inserter(allowed),
                     [&](const PrunedPair& pair) { return job.allowed(pair.row); });
        compressed[b].take(allowed, first_of(b));
      });
      stats.hits += std::ssize(pairs);
      reporter.add(end - begin);
    }
    stats.scan_seconds += seconds_since(start);
    std::int64_t bytes = 0;
    for (const Batch& one : compressed) bytes += one.bytes();
    stats.buffer_bytes = std::max(stats.buffer_bytes, bytes);
    parallel_for(job.threads, batches, [&](std::int64_t b) {
      ThresholdHeapStats local;
      finish(compressed[b], rows, which.data() + first_of(b), first_of(b + 1) - first_of(b), out,
             local);
      std::lock_guard lock(mutex);
      heap.add(local);
      stats.survivors += local.measured, stats.rescore_seconds += local.sort_seconds;
    });
  }
}

}  // namespace knear::detail
