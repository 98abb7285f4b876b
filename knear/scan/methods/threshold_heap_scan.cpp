// The TH-heap over packed tiles, and over float64 distances.
#include "knear/scan/methods/threshold_heap_scan.hpp"

#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>

#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/select/sort/compressed_batch.hpp"
#include "knear/select/sort/nth_value.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

using Clock = std::chrono::steady_clock;

// The scan's kernels as the device that computes. With `ahead`, a tile is computed by whichever
// thread is idle.
class KernelTiles final : public PrunedTiles {
 public:
  KernelTiles(const PackedBase& packed, const ScanJob& job, const std::int64_t* which,
              std::int64_t begin, std::int64_t end, GroupSize group, bool ahead, Reporter& reporter)
      : packed_(packed),
        job_(job),
        group_size_(group_sizes[group]),
        ahead_(ahead),
        filtered_(!job.allowed.all()),
        loop_(packed, job, which, {begin, end, 0, packed.tiles}, group, reporter) {
    PackedQueries& queries = loop_.queries;
    for (std::int64_t q = 0; q < loop_.count(); ++q)
      upper_bounds_.push_back(job.upper_bounds[which[begin + q]]);
    if (packed.is_integer) {
      IntegerLimits limits(packed, job, queries);
      for (std::int64_t q = 0; q < loop_.count(); ++q) limits.set_up_to(q, upper_bounds_[q]);
      limits.repeat_last();
      return;
    }
    Thresholds published(packed, queries);
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      scales_.push_back({job.metric, queries.squares[q], queries.constant[q]});
      thresholds_.push_back(scales_[q].threshold_for(upper_bounds_[q]));
      published.set(q, thresholds_[q]);
    }
    published.repeat_last();
  }

  std::int64_t tiles() const override { return packed_.tiles; }
  void start(std::int64_t tile, int buffer) override {
    if (ahead_)
      tasks_->run([this, tile, buffer] { compute(tile, buffers_[buffer]); });
    else
      compute(tile, buffers_[buffer]);
  }
  std::span<const PrunedPair> wait(int buffer) override {
    if (ahead_) tasks_->wait();
    return buffers_[buffer];
  }

  ~KernelTiles() noexcept override {
    if (!ahead_) return;
    try {  // after an error a tile may still be under way
      tasks_->cancel();
      tasks_->wait();
    } catch (...) {
    }
  }
  // Once nothing is under way.
  void report(ScanStats& stats) const {
    loop_.clock.report(stats);
    stats.hits += hits_;
  }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(loop_.queries.codes.bytes() +
                                     (buffers_[0].capacity() + buffers_[1].capacity()) *
                                         sizeof(PrunedPair));
  }

 private:
  bool allowed(std::uint32_t row) const {
    if (job_.allowed(row)) return true;
    if (!packed_.duplicates.any()) return false;
    const auto others = packed_.duplicates.others(row);
    return std::any_of(others.begin(), others.end(), job_.allowed);
  }

  void compute(std::int64_t tile, std::vector<PrunedPair>& found) {
    const DefaultFloatMode mode;  // a task of its own may run anywhere
    found.clear();
    // Rows that no filter allows are left out; one that stands for copies counts if one of them may
    // be found.
    const auto take = [&](double low, double high, std::int64_t q, std::uint32_t row) {
      if (filtered_ && !allowed(row)) return;
      found.push_back({low, high, static_cast<std::uint32_t>(q), row});
    };
    loop_.run_between(tile, tile + 1, [&](std::int64_t g, const Hit* first, int count) {
      hits_ += count;
      const GroupHead& head = loop_.queries.heads[g];
      for (const Hit* hit = first; hit != first + count; ++hit) {
        const std::uint32_t row = packed_.ids[hit->slot];
        if (row == PackedBase::no_row) continue;
        const std::int64_t q = g * group_size_ + hit->query;
        if (packed_.is_integer) {
          const double key = integer_key(packed_, loop_.queries, head, *hit, q);
          if (key <= upper_bounds_[q]) take(key, key, q, row);
          continue;
        }
        const ScoreInterval x = interval_of(packed_, head, *hit, loop_.queries.squares[q]);
        if (!(x.upper < thresholds_[q]))
          take(scales_[q].key_at_least(x.upper), scales_[q].key_at_most(x.lower), q, row);
      }
    });
  }

  const PackedBase& packed_;
  const ScanJob& job_;
  const int group_size_;
  const bool ahead_, filtered_;
  TileLoop loop_;
  std::vector<double> upper_bounds_, thresholds_;
  std::vector<KeyScale> scales_;
  std::vector<PrunedPair> buffers_[2];
  std::int64_t hits_ = 0;
  // On the heap, since its destructor may throw.
  const std::unique_ptr<tbb::task_group> tasks_ = std::make_unique<tbb::task_group>();
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
        measure_(job.metric, job.base.type(), job.isa),
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
    sorted_.resize(static_cast<std::size_t>(k)), sorted_rows_.resize(sorted_.size());
    const std::int64_t found =
        partial_heap_sort(values, rows, count, k, space_, sorted_.data(), sorted_rows_.data());
    stats.kept += count;
    TopK& best = exact_[static_cast<std::size_t>(q)];
    if (is_exact(q)) {
      for (std::int64_t j = 0; j < found; ++j)
        push(best, sorted_[static_cast<std::size_t>(j)], sorted_rows_[static_cast<std::size_t>(j)]);
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
    const double width = widest_[static_cast<std::size_t>(q)];
    return width == 0 ? kth : kth + width + 0x1p-50 * (std::fabs(kth) + width);
  }

  // Whether the values are the keys, and each stands for its row alone.
  bool is_exact(std::int64_t q) const {
    return widest_[static_cast<std::size_t>(q)] == 0 && !duplicates_.any();
  }

  // A row with that key, and its copies.
  void push(TopK& best, double key, std::uint32_t row) {
    if (job_.allowed(row)) {
      if (!best.admits(key, row)) return;  // nor is any copy that follows
      best.push(key, row);
    }
    if (!duplicates_.any()) return;
    for (const std::uint32_t other : duplicates_.others(row))
      if (job_.allowed(other)) {
        if (!best.admits(key, other)) return;
        best.push(key, other);
      }
  }

  // Measures those of a query's rows whose intervals begin no later than `last`.
  void measure(std::int64_t q, double last, std::int64_t& measured) {
    TopK& best = exact_[static_cast<std::size_t>(q)];
    const double* values = rows_.values().row(q);
    const std::uint32_t* rows = rows_.ids().row(q);
    measure_.set_query(job_.queries, which_[q]);
    scratch_.resize(ExactDistance::most_rows * job_.base.scratch_bytes());
    const void* vectors[ExactDistance::most_rows] = {};
    std::uint32_t waiting[ExactDistance::most_rows];
    int n = 0;
    const auto measure_waiting = [&] {
      double keys[ExactDistance::most_rows];
      measure_.keys(vectors, n, keys);
      for (int j = 0; j < n; ++j) push(best, keys[j], waiting[j]);
      measured += n, n = 0;
    };
    for (std::int64_t i = 0; i < rows_.count(q); ++i) {
      if (values[i] > last) continue;
      waiting[n] = rows[i];
      vectors[n] = job_.base.row(
          rows[i], scratch_.data() + static_cast<std::size_t>(n) * job_.base.scratch_bytes());
      if (++n == ExactDistance::most_rows) measure_waiting();
    }
    if (n > 0) measure_waiting();
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
        keep_smallest(pairs_, static_cast<std::size_t>(job_.k));
        rows_.clear(q);
        for (const KeyedId& pair : pairs_)
          rows_.push(q, pair.first, static_cast<std::uint32_t>(pair.second));
        continue;
      }
      numbers_.assign(values, values + count);
      numbers_.resize(static_cast<std::size_t>(2 * count));
      const double kth =
          nth_value(numbers_.data(), numbers_.data() + count, static_cast<std::size_t>(count),
                    static_cast<std::size_t>(job_.k - 1));
      rows_.keep_at_most(q, reach(q, kth));
      if (rows_.count(q) <= room_ / 2) continue;
      measure(q, infinity, measured_early_);
      exact_[static_cast<std::size_t>(q)].cut();
      rows_.clear(q);
    }
    taken_ += most - rows_.width();
  }

  const ScanJob& job_;
  const Duplicates& duplicates_;
  const std::int64_t* which_;
  ExactDistance measure_;
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
  std::vector<std::byte> scratch_;
};

// Sorts a batch and writes its lists: queries which[begin], ...
void finish(Batch& batch, std::int64_t rows, const std::int64_t* which, std::int64_t count,
            ExactNeighbors& out, ThresholdHeapStats& stats) {
  const auto start = Clock::now();
  batch.rows().pad();
  for (std::int64_t q = 0; q < count; ++q)
    batch.finish(q, out.keys.row(which[q]), out.ids.row(which[q]), stats);
  stats.measured += batch.measured_early();
  stats.compress_sum += compression_ratio(rows, std::max<std::int64_t>(1, batch.width()));
  ++stats.batches;
  stats.sort_seconds += seconds_since(start);
}

void add(ThresholdHeapStats& all, const ThresholdHeapStats& task) {
  all.sort_seconds += task.sort_seconds, all.compress_sum += task.compress_sum;
  all.batches += task.batches, all.kept += task.kept, all.measured += task.measured;
}

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
  GroupSize group = batch == 1 || count == 1 ? group_1 : batch <= 4 ? group_4 : group_12;
  for (int size = 0; size < group_size_count; ++size)
    if (job.group == group_sizes[size]) group = static_cast<GroupSize>(size);
  stats.group = group_sizes[group], stats.splits = 1;
  const std::int64_t batches = (count + batch - 1) / batch;
  // Where there are fewer batches than threads, idle ones compute the next tile.
  const bool ahead = batches < job.threads;
  Reporter reporter(progress, "search", batches * packed.tiles);
  std::mutex mutex;
  parallel_for(job.threads, batches, [&](std::int64_t b) {
    const auto start = Clock::now();
    const std::int64_t begin = b * batch, end = std::min(count, begin + batch);
    ScanStats local;
    ThresholdHeapStats local_heap;
    Batch compressed(job, packed.duplicates, which.data() + begin, end - begin);
    KernelTiles tiles(packed, job, which.data(), begin, end, group, ahead, reporter);
    // Waiting for a tile must not take up another batch.
    tbb::this_task_arena::isolate([&] {
      tiles.start(0, 0);
      for (std::int64_t t = 0; t < tiles.tiles(); ++t) {
        const std::span<const PrunedPair> pairs = tiles.wait(t % 2);
        if (t + 1 < tiles.tiles()) tiles.start(t + 1, (t + 1) % 2);
        compressed.take(pairs);
      }
    });
    tiles.report(local);
    local.scan_seconds = seconds_since(start);
    finish(compressed, packed.rows, which.data() + begin, end - begin, out, local_heap);
    local.survivors = local_heap.measured, local.rescore_seconds = local_heap.sort_seconds;
    const std::int64_t buffers = tiles.bytes() + compressed.bytes();
    std::lock_guard lock(mutex);
    stats.add(local), add(heap, local_heap);
    stats.buffer_bytes =
        std::max(stats.buffer_bytes, buffers * std::min<std::int64_t>(job.threads, batches));
  });
}

void scan_threshold_heap_directly(const ScanJob& job, std::int64_t batch,
                                  std::span<const std::uint32_t> subset,
                                  const std::vector<std::int64_t>& which, ExactNeighbors& out,
                                  ScanStats& stats, ThresholdHeapStats& heap,
                                  const Progress& progress) {
  const std::int64_t count = std::ssize(which);
  const std::int64_t rows =
      subset.empty() ? job.base.rows() : static_cast<std::int64_t>(subset.size());
  if (count == 0) return;
  const std::int64_t batches = (count + batch - 1) / batch;
  constexpr std::int64_t tile_rows = 1024;
  Reporter reporter(progress, "search", batches);
  std::mutex mutex;
  parallel_for(job.threads, batches, [&](std::int64_t b) {
    const auto start = Clock::now();
    const std::int64_t begin = b * batch, n = std::min(count, begin + batch) - begin;
    ThresholdHeapStats local_heap;
    const Duplicates no_copies;
    Batch compressed(job, no_copies, which.data() + begin, n);
    Matrix<double> tile(n, tile_rows);
    std::vector<double> upper_bounds(static_cast<std::size_t>(n));
    for (std::int64_t q = 0; q < n; ++q)
      upper_bounds[static_cast<std::size_t>(q)] = job.upper_bounds[which[begin + q]];
    ExactGroup measure(job.metric, job.base.type(), job.isa);
    std::vector<std::byte> scratch(job.base.scratch_bytes());
    std::vector<PrunedPair> found;
    for (std::int64_t first = 0; first < rows; first += tile_rows) {
      const std::int64_t here = std::min(rows - first, tile_rows);
      for (std::int64_t q = 0; q < n; q += ExactGroup::size) {
        const int together = static_cast<int>(std::min<std::int64_t>(n - q, ExactGroup::size));
        measure.set_queries(job.queries, which.data() + begin + q, together);
        for (std::int64_t i = 0; i < here; ++i) {
          const std::int64_t row = subset.empty() ? first + i : std::int64_t{subset[first + i]};
          double keys[ExactGroup::size];
          measure.keys(job.base.row(row, scratch.data()), keys);
          for (int j = 0; j < together; ++j) tile.row(q + j)[i] = keys[j];
        }
      }
      found.clear();
      for (std::int64_t q = 0; q < n; ++q)
        for (std::int64_t i = 0; i < here; ++i)
          if (const double key = tile.row(q)[i]; key <= upper_bounds[static_cast<std::size_t>(q)])
            found.push_back(
                {key, key, static_cast<std::uint32_t>(q),
                 static_cast<std::uint32_t>(subset.empty() ? first + i : subset[first + i])});
      compressed.take(found);
    }
    const double seconds = seconds_since(start);
    finish(compressed, rows, which.data() + begin, n, out, local_heap);
    reporter.add(1);
    std::lock_guard lock(mutex);
    stats.survivors += n * rows;
    stats.scan_seconds += seconds, stats.rescore_seconds += local_heap.sort_seconds;
    add(heap, local_heap);
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
      add(heap, local);
      stats.survivors += local.measured, stats.rescore_seconds += local.sort_seconds;
    });
  }
}

}  // namespace knear::detail
