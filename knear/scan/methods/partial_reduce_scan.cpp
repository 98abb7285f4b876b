// Partial reduction over packed tiles: whole numbers, and intervals that are measured tile by tile.
#include "knear/scan/methods/partial_reduce_scan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/scan/scores.hpp"
#include "knear/scan/threshold_estimates.hpp"
#include "knear/select/sort/nth_value.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

constexpr KeyedId no_pair{infinity, std::numeric_limits<Id>::max()};

// What scan_partial_reduce was called with, and the k best of each query of the table so far.
struct Reduction {
  const PackedBase& packed;
  const ScanJob& job;
  int kept;
  const WorkTable& table;
  std::vector<KeyedId>& dropped;
  ExactNeighbors* candidates;
  std::vector<TopK> best = std::vector<TopK>(table.queries.size(), TopK(job.k));
};

// What the queries of a task have found in the bins that are done.
class TaskResults {
 public:
  TaskResults(const Reduction& call, std::int64_t begin, std::int64_t count)
      : call_(call),
        begin_(begin),
        best_(count, TopK(call.job.k)),
        dropped_(best_.size(), no_pair) {}

  // The row of the job's queries that a task's query is.
  std::int64_t query(std::int64_t q) const { return call_.table.queries[begin_ + q]; }
  // The pair that rows still have to come before, whatever bin they are in; `no_pair` where
  // candidates are wanted, whatever the k best are.
  KeyedId bound(std::int64_t q) const {
    if (call_.candidates) return no_pair;
    const TopK& best = best_[q];
    const double known = call_.job.upper_bounds ? call_.job.upper_bounds[query(q)] : infinity;
    return known < best.bound() ? KeyedId{known, Id{PackedBase::no_row}}
                                : KeyedId{best.bound(), best.bound_id()};
  }
  bool admits(std::int64_t q, double key, Id row) const {
    return call_.candidates || best_[q].admits(key, row);
  }

  // The rows of a bin, ascending: those that are kept, and the first that is not. A query's tiles
  // come in order; `seen` is how many came.
  void take(std::int64_t q, std::int64_t tile, std::int64_t seen,
            const std::vector<KeyedId>& items) {
    const auto place = static_cast<std::size_t>(q), kept = static_cast<std::size_t>(call_.kept);
    if (items.size() > kept) dropped_[place] = std::min(dropped_[place], items[kept]);
    if (call_.candidates) {
      double* keys = call_.candidates->keys.row(query(q)) + tile * call_.kept;
      Id* ids = call_.candidates->ids.row(query(q)) + tile * call_.kept;
      for (std::size_t i = 0; i < kept; ++i) {
        keys[i] = i < items.size() ? items[i].first : infinity;
        ids[i] = i < items.size() ? items[i].second : no_id;
      }
      return;
    }
    TopK& best = best_[place];
    for (std::size_t i = 0; i < std::min(items.size(), kept); ++i)
      best.push(items[i].first, items[i].second);
    // Brings the bound down now and then.
    if (ThresholdEstimates::due(seen)) best.cut();
  }

  // Adds what was found to that of other tasks.
  void hand_over(Reduction& call) const {
    for (std::size_t q = 0; q < best_.size(); ++q) {
      const std::int64_t number = query(static_cast<std::int64_t>(q));
      KeyedId& least = call.dropped[number];
      least = std::min(least, dropped_[q]);
      for (const TopK::Item& item : best_[q].items())
        call.best[static_cast<std::size_t>(begin_) + q].push(item.first, item.second);
    }
  }

 private:
  const Reduction& call_;
  const std::int64_t begin_;
  std::vector<TopK> best_;
  std::vector<KeyedId> dropped_;
};

// The bins of the tile at hand, one a query, of whole numbers.
class IntegerBins {
 public:
  IntegerBins(const Reduction& call, TileLoop& loop, TaskResults& found, ScanStats&)
      : call_(call),
        found_(found),
        scores_(call.packed, call.job, loop.queries),
        // One more than is kept: the best that is dropped.
        bins_(loop.count(), TopK(call.kept + 1)) {}

  // Begins the bin of the next tile.
  void begin(std::int64_t q) {
    bins_[q] = TopK(call_.kept + 1);
    publish(q);
  }
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    TopK& bin = bins_[q];
    const double key = scores_.key(q, head, hit);
    if (!bin.admits(key, row) || !call_.job.allowed(row) || !found_.admits(q, key, row)) return;
    bin.push(key, row);
    publish(q);
  }
  // The rows of the bin that count, ascending.
  const std::vector<KeyedId>& finish(std::int64_t q) {
    TopK& bin = bins_[q];
    bin.finish();
    return bin.items();
  }
  IntegerScores& scores() { return scores_; }
  std::int64_t bytes() const {
    return std::ssize(bins_) * (call_.job.k + 2 * call_.kept + 40) *
           static_cast<std::int64_t>(sizeof(KeyedId));
  }

 private:
  void publish(std::int64_t q) {
    const TopK& bin = bins_[q];
    const KeyedId bound = std::min(KeyedId{bin.bound(), bin.bound_id()}, found_.bound(q));
    if (bound.first < infinity && bound.second < Id{PackedBase::no_row})
      scores_.publish_key(q, static_cast<std::int64_t>(bound.first), bound.second);
    else
      scores_.publish(q, bound.first);  // a key from elsewhere, whatever its row
  }

  const Reduction& call_;
  TaskResults& found_;
  IntegerScores scores_;
  std::vector<TopK> bins_;
};

// Bins of intervals: when a tile is done, what may be among those kept is measured.
class CertifiedBins {
 public:
  CertifiedBins(const Reduction& call, TileLoop& loop, TaskResults& found, ScanStats& stats)
      : call_(call),
        queries_(loop.queries),
        found_(found),
        stats_(stats),
        scores_(call.packed, call.job, loop.queries),
        bins_(loop.count()),
        measurer_(call.job) {}

  void begin(std::int64_t q) {
    const std::size_t place = q;
    Bin& bin = bins_[place];
    const double longest = call_.packed.longest;
    bin.pending.clear(), bin.threshold = -infinity;
    bin.lowers = LargestK(call_.kept + 1, (std::sqrt(queries_.squares[place]) + longest) * longest);
    const double bound = found_.bound(q).first;
    if (bound < infinity) bin.threshold = scores_.scale(q).threshold_for(bound);
    scores_.publish_threshold(q, bin.threshold);
  }
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    if (filtered_ && !call_.job.allowed(row)) return;
    Bin& bin = bins_[q];
    const ScoreInterval x = scores_.interval(q, head, hit);
    if (x.upper < bin.threshold) return;
    bin.pending.push_back(x);
    const double before = bin.threshold;
    if (!many_)
      bin.threshold = std::max(bin.threshold, bin.lowers.push(x.lower));
    else if (bin.pending.size() >= room_)
      tighten(bin);
    if (bin.threshold != before) scores_.publish_threshold(q, bin.threshold);
  }
  const std::vector<KeyedId>& finish(std::int64_t q) {
    Bin& bin = bins_[q];
    if (many_)
      tighten(bin);
    else
      keep_reaching(bin.pending, bin.threshold);
    most_pending_ = std::max(most_pending_, bin.pending.capacity());
    measured_.clear();
    if (!bin.pending.empty()) measurer_.set_query(found_.query(q));
    const auto row_of = [&](std::int64_t i) { return bin.pending[i].row; };
    measurer_.measure(std::ssize(bin.pending), row_of,
                      [&](std::int64_t i, double key) { measured_.emplace_back(key, row_of(i)); });
    stats_.survivors += std::ssize(measured_);
    std::sort(measured_.begin(), measured_.end());
    return measured_;
  }
  CertifiedScores& scores() { return scores_; }
  std::int64_t bytes() const {
    const std::size_t pending = bins_.size() * most_pending_ * sizeof(ScoreInterval);
    return static_cast<std::int64_t>(pending) +
           std::ssize(bins_) * (call_.job.k + 24) * static_cast<std::int64_t>(sizeof(KeyedId));
  }

 private:
  struct Bin {
    std::vector<ScoreInterval> pending;
    LargestK lowers;
    double threshold = -infinity;
  };

  // Raises the threshold of a bin for many to its (kept + 1)-th largest lower end.
  void tighten(Bin& bin) {
    const std::size_t count = bin.pending.size(), rank = static_cast<std::size_t>(call_.kept);
    if (count <= rank) return;
    numbers_.resize(2 * count);
    for (std::size_t i = 0; i < count; ++i) numbers_[i] = -bin.pending[i].lower;
    bin.threshold =
        std::max(bin.threshold, -nth_value(numbers_.data(), numbers_.data() + count, count, rank));
    keep_reaching(bin.pending, bin.threshold);
  }

  const Reduction& call_;
  const PackedQueries& queries_;
  TaskResults& found_;
  ScanStats& stats_;
  CertifiedScores scores_;
  std::vector<Bin> bins_;
  const bool filtered_ = !call_.job.allowed.all();
  const bool many_ = call_.kept + 1 > LargestK::longest;
  const std::size_t room_ = 2 * static_cast<std::size_t>(call_.kept) + 64;  // where they are many
  std::size_t most_pending_ = 0;
  RowMeasurer measurer_;
  std::vector<KeyedId> measured_;
  std::vector<double> numbers_;
};

// The accumulator: a bin is filled while its tile is scored, and handed over when it is done.
template <class Bins>
class Binned {
 public:
  Binned(Reduction& call, TileLoop& loop, ScanStats& stats)
      : call_(call),
        loop_(loop),
        found_(call, call.table.sets[loop.task.set].begin, loop.count()),
        bins_(call, loop, found_, stats) {}

  void begin() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) bins_.begin(q);
    bins_.scores().publish_groups();
  }
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    bins_.take(q, head, hit, row);
  }
  void publish_group(GroupHead& head) { bins_.scores().publish_group(head); }
  bool tile_done(std::int64_t g, std::int64_t seen) {
    const std::int64_t tile = loop_.task.panels.begin / call_.packed.panels_per_tile + seen - 1;
    GroupHead& head = loop_.queries.heads[g];
    const std::int64_t first = g * loop_.group_size();
    for (std::int64_t q = first; q < first + head.count; ++q) {
      found_.take(q, tile, seen, bins_.finish(q));
      bins_.begin(q);
    }
    bins_.scores().publish_group(head);
    return true;
  }
  std::int64_t finish(ScanStats&) const { return bins_.bytes(); }
  void hand_over() { found_.hand_over(call_); }

 private:
  Reduction& call_;
  TileLoop& loop_;
  TaskResults found_;
  Bins bins_;
};

}  // namespace

void scan_partial_reduce(const PackedBase& packed, const ScanJob& job, int kept,
                         const std::vector<std::int64_t>& which, ExactNeighbors& out,
                         std::vector<KeyedId>& dropped, ExactNeighbors* candidates,
                         ScanStats& stats, const Progress& progress) {
  if (which.empty()) return;
  const WorkTable table = divide(packed, which, job, stats);
  Reduction call{packed, job, kept, table, dropped, candidates};
  const auto run_with = [&]<class Bins>() {
    run_tasks(packed, job, table, stats, progress,
              [&](TileLoop& loop, ScanStats& local) { return Binned<Bins>(call, loop, local); });
  };
  if (packed.is_integer)
    run_with.template operator()<IntegerBins>();
  else
    run_with.template operator()<CertifiedBins>();
  for (std::size_t i = 0; i < which.size() && !candidates; ++i) {
    call.best[i].finish();
    write_list(call.best[i], job.k, out.keys.row(which[i]), out.ids.row(which[i]));
  }
}

std::int64_t RowBins::bin_of(Id row) const {
  if (subset.empty()) return interleaving.tile_of(row);
  return interleaving.tile_of(std::lower_bound(subset.begin(), subset.end(), row) - subset.begin());
}

bool reduce_list(const double* keys, const Id* rows, std::int64_t count, bool whole,
                 const RowBins& bins, std::int64_t k, std::vector<int>& taken, double* out_keys,
                 Id* out_rows, KeyedId& dropped) {
  KeyedId first = no_pair;  // that does not count
  std::int64_t found = 0, looked = 0;
  for (; looked < count && found < k && rows[looked] != no_id; ++looked) {
    int& of_bin = taken[bins.bin_of(rows[looked])];
    if (of_bin < bins.kept)
      ++of_bin, out_keys[found] = keys[looked], out_rows[found++] = rows[looked];
    else
      first = std::min(first, KeyedId{keys[looked], rows[looked]});
  }
  for (std::int64_t i = 0; i < looked; ++i) taken[bins.bin_of(rows[i])] = 0;
  if (found < k && !whole) return false;
  std::fill(out_keys + found, out_keys + k, infinity);
  std::fill(out_rows + found, out_rows + k, no_id);
  dropped = std::min(dropped, first);
  return true;
}

}  // namespace knear::detail
