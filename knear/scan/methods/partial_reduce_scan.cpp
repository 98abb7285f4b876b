// Partial reduction over packed tiles: exact integers, and intervals that are measured tile by
// tile.
#include "knear/scan/methods/partial_reduce_scan.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>

#include "knear/distance/exact.hpp"
#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/select/sort/nth_value.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

constexpr KeyedId none{infinity, std::numeric_limits<Id>::max()};

// What scan_partial_reduce was called with.
struct Reduction {
  const PackedBase& packed;
  const ScanJob& job;
  int kept;
  const std::vector<std::int64_t>& which;
  ExactNeighbors& out;
  std::vector<KeyedId>& dropped;
  ExactNeighbors* candidates;
};

// What the queries of a task have found, and where it goes.
class TaskResults {
 public:
  TaskResults(const Reduction& call, const Task& task)
      : call_(call),
        task_(task),
        best_(static_cast<std::size_t>(task.query_end - task.query_begin), TopK(call.job.k)),
        dropped_(best_.size(), none) {}

  // Of the queries of the job, this one of the task.
  std::int64_t query(std::int64_t q) const { return call_.which[task_.query_begin + q]; }
  // The pair that rows still have to come before, whatever bin they are in; `none` where candidates
  // are wanted, whatever the k best are.
  KeyedId bound(std::int64_t q) const {
    if (call_.candidates) return none;
    const TopK& best = best_[static_cast<std::size_t>(q)];
    const double known = call_.job.upper_bounds ? call_.job.upper_bounds[query(q)] : infinity;
    return known < best.bound() ? KeyedId{known, Id{PackedBase::no_row}}
                                : KeyedId{best.bound(), best.bound_id()};
  }
  bool admits(std::int64_t q, double key, Id row) const {
    return call_.candidates || best_[static_cast<std::size_t>(q)].admits(key, row);
  }

  // The rows of a bin, ascending: those that are kept, and the first that is not. Of each query the
  // tiles come in order.
  void take(std::int64_t q, std::int64_t tile, const std::vector<KeyedId>& items) {
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
    // Brings the bar down now and then.
    if (ThresholdEstimates::look(tile - task_.tile_begin + 1)) best.cut();
  }

  std::vector<TopK>& lists() { return best_; }
  KeyedId dropped(std::int64_t q) const { return dropped_[static_cast<std::size_t>(q)]; }

 private:
  const Reduction& call_;
  const Task& task_;
  std::vector<TopK> best_;
  std::vector<KeyedId> dropped_;
};

// The bins of the tile at hand, one a query, of exact integers.
class IntegerBins {
 public:
  IntegerBins(const Reduction& call, TileLoop& loop, TaskResults& found, ScanStats&)
      : call_(call),
        queries_(loop.queries),
        found_(found),
        limits_(call.packed, call.job, loop.queries),
        // One more than is kept: the best that is dropped.
        bins_(static_cast<std::size_t>(loop.count()), TopK(call.kept + 1)) {
    for (std::int64_t q = 0; q < loop.count(); ++q) publish(q);
    limits_.repeat_last();
  }

  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    TopK& bin = bins_[static_cast<std::size_t>(q)];
    const double key = integer_key(call_.packed, queries_, head, hit, q);
    if (!bin.admits(key, row) || !call_.job.allowed(row) || !found_.admits(q, key, row)) return;
    bin.push(key, row);
    publish(q);
  }
  // Hands the bin over and begins the one of the next tile.
  void finish(std::int64_t q, std::int64_t tile) {
    TopK& bin = bins_[static_cast<std::size_t>(q)];
    bin.finish();
    found_.take(q, tile, bin.items());
    bin = TopK(call_.kept + 1);
    publish(q);
  }
  void repeat_last(GroupHead& head) const { limits_.repeat_last(head); }
  std::int64_t bytes() const {
    return std::ssize(bins_) * (call_.job.k + 2 * call_.kept + 40) *
           static_cast<std::int64_t>(sizeof(KeyedId));
  }

 private:
  void publish(std::int64_t q) {
    const TopK& bin = bins_[static_cast<std::size_t>(q)];
    const KeyedId bound = std::min(KeyedId{bin.bound(), bin.bound_id()}, found_.bound(q));
    limits_.set_up_to(q, bound.first, std::min<Id>(bound.second, Id{PackedBase::no_row}));
  }

  const Reduction& call_;
  const PackedQueries& queries_;
  TaskResults& found_;
  IntegerLimits limits_;
  std::vector<TopK> bins_;
};

// The same of intervals: when a tile is done, what may be among those kept is measured.
class CertifiedBins {
 public:
  CertifiedBins(const Reduction& call, TileLoop& loop, TaskResults& found, ScanStats& stats)
      : call_(call),
        queries_(loop.queries),
        found_(found),
        stats_(stats),
        thresholds_(call.packed, loop.queries),
        bins_(static_cast<std::size_t>(loop.count())),
        distance_(call.job.metric, call.job.base.type(), call.job.isa),
        scratch_(ExactDistance::most_rows * call.job.base.scratch_bytes()) {
    for (std::int64_t q = 0; q < loop.count(); ++q) begin(q);
    thresholds_.repeat_last();
  }

  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    if (filtered_ && !call_.job.allowed(row)) return;
    Bin& bin = bins_[static_cast<std::size_t>(q)];
    const ScoreInterval x =
        interval_of(call_.packed, head, hit, queries_.squares[static_cast<std::size_t>(q)]);
    if (x.upper < bin.threshold) return;
    bin.pending.push_back(x);
    const double before = bin.threshold;
    if (!many_)
      bin.threshold = std::max(bin.threshold, bin.lowers.push(x.lower));
    else if (bin.pending.size() >= room_)
      tighten(bin);
    if (bin.threshold != before) thresholds_.set(q, bin.threshold);
  }
  void finish(std::int64_t q, std::int64_t tile) {
    Bin& bin = bins_[static_cast<std::size_t>(q)];
    if (many_)
      tighten(bin);
    else
      keep_reaching(bin.pending, bin.threshold);
    most_pending_ = std::max(most_pending_, bin.pending.capacity());
    measure(q, bin.pending);
    found_.take(q, tile, measured_);
    begin(q);
  }
  void repeat_last(GroupHead& head) const { thresholds_.repeat_last(head); }
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

  void begin(std::int64_t q) {
    const auto place = static_cast<std::size_t>(q);
    Bin& bin = bins_[place];
    const double squares = queries_.squares[place], longest = call_.packed.longest;
    bin.pending.clear(), bin.threshold = -infinity;
    bin.lowers = LargestK(call_.kept + 1, (std::sqrt(squares) + longest) * longest);
    const double bound = found_.bound(q).first;
    if (bound < infinity)
      bin.threshold =
          KeyScale{call_.job.metric, squares, queries_.constant[place]}.threshold_for(bound);
    thresholds_.set(q, bin.threshold);
  }
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
  // Fills measured_, ascending.
  void measure(std::int64_t q, const std::vector<ScoreInterval>& rows) {
    constexpr auto most = static_cast<std::size_t>(ExactDistance::most_rows);
    const BaseRows& base = call_.job.base;
    measured_.clear();
    if (!rows.empty()) distance_.set_query(call_.job.queries, found_.query(q));
    for (std::size_t first = 0; first < rows.size(); first += most) {
      const std::size_t some = std::min(rows.size() - first, most);
      const void* vectors[most] = {};
      double keys[most];
      for (std::size_t j = 0; j < some; ++j)
        vectors[j] = base.row(rows[first + j].row, scratch_.data() + j * base.scratch_bytes());
      distance_.keys(vectors, static_cast<int>(some), keys);
      for (std::size_t j = 0; j < some; ++j) measured_.emplace_back(keys[j], rows[first + j].row);
    }
    stats_.survivors += std::ssize(measured_);
    std::sort(measured_.begin(), measured_.end());
  }

  const Reduction& call_;
  const PackedQueries& queries_;
  TaskResults& found_;
  ScanStats& stats_;
  Thresholds thresholds_;
  std::vector<Bin> bins_;
  const bool filtered_ = !call_.job.allowed.all();
  const bool many_ = call_.kept + 1 > LargestK::longest;
  const std::size_t room_ = 2 * static_cast<std::size_t>(call_.kept) + 64;  // where they are many
  std::size_t most_pending_ = 0;
  ExactDistance distance_;
  std::vector<std::byte> scratch_;
  std::vector<KeyedId> measured_;
  std::vector<double> numbers_;
};

// The k best of each query, put together from what the tasks for it found.
void write_lists(const Reduction& call, const Division& division,
                 std::vector<std::vector<TopK>>& found) {
  const auto parts = static_cast<std::size_t>(division.parts);
  for (std::size_t t = 0; t < found.size(); t += parts)
    for (std::size_t q = 0; q < found[t].size(); ++q) {
      TopK& best = found[t][q];
      for (std::size_t p = 1; p < parts; ++p)
        for (const TopK::Item& item : found[t + p][q].items()) best.push(item.first, item.second);
      best.finish();
      const std::int64_t query =
          call.which[division.tasks[t].query_begin + static_cast<std::int64_t>(q)];
      write_list(best, call.job.k, call.out.keys.row(query), call.out.ids.row(query));
    }
}

template <class Bins>
void reduce(const Reduction& call, ScanStats& stats, const Progress& progress) {
  const PackedBase& packed = call.packed;
  const Division division = divide(packed, std::ssize(call.which), call.job, stats);
  const std::int64_t group_size = group_sizes[division.group];
  std::vector<std::vector<TopK>> found(division.tasks.size());
  std::mutex mutex;
  const auto work = [&](std::int64_t t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    ScanStats local;
    TaskResults here(call, loop.task);
    Bins bins(call, loop, here, local);
    const auto drain = [&](std::int64_t g, const Hit* first, int count) {
      GroupHead& head = loop.queries.heads[g];
      local.hits += count;
      for (const Hit* hit = first; hit != first + count; ++hit)
        if (const std::uint32_t row = packed.ids[hit->slot]; row != PackedBase::no_row)
          bins.take(g * group_size + hit->query, head, *hit, row);
      bins.repeat_last(head);
    };
    const auto tile_done = [&](std::int64_t g, std::int64_t tile) {
      GroupHead& head = loop.queries.heads[g];
      for (std::int64_t q = g * group_size; q < g * group_size + head.count; ++q)
        bins.finish(q, tile);
      bins.repeat_last(head);
      return true;
    };
    loop.run(drain, tile_done);
    loop.clock.report(local);
    local.scan_seconds = seconds_since(start);
    const std::int64_t buffers =
        static_cast<std::int64_t>(loop.queries.codes.bytes()) + bins.bytes();
    std::lock_guard lock(mutex);
    for (std::int64_t q = 0; q < loop.count(); ++q) {
      KeyedId& least = call.dropped[static_cast<std::size_t>(here.query(q))];
      least = std::min(least, here.dropped(q));
    }
    found[static_cast<std::size_t>(t)] = std::move(here.lists());
    stats.add(local);
    stats.buffer_bytes =
        std::max(stats.buffer_bytes,
                 buffers * std::min<std::int64_t>(call.job.threads, std::ssize(division.tasks)));
  };
  for_each_task(packed, call.job, call.which, division, progress, work);
  if (!call.candidates) write_lists(call, division, found);
}

}  // namespace

void scan_partial_reduce(const PackedBase& packed, const ScanJob& job, int kept,
                         const std::vector<std::int64_t>& which, ExactNeighbors& out,
                         std::vector<KeyedId>& dropped, ExactNeighbors* candidates,
                         ScanStats& stats, const Progress& progress) {
  if (which.empty()) return;
  const Reduction call{packed, job, kept, which, out, dropped, candidates};
  if (packed.is_integer)
    reduce<IntegerBins>(call, stats, progress);
  else
    reduce<CertifiedBins>(call, stats, progress);
}

std::int64_t RowBins::bin_of(Id row) const {
  if (subset.empty()) return interleaving.tile_of(row);
  return interleaving.tile_of(std::lower_bound(subset.begin(), subset.end(), row) - subset.begin());
}

bool reduce_list(const double* keys, const Id* rows, std::int64_t count, bool whole,
                 const RowBins& bins, std::int64_t k, std::vector<int>& taken, double* out_keys,
                 Id* out_rows, KeyedId& dropped) {
  KeyedId first = none;  // that does not count
  std::int64_t found = 0, looked = 0;
  for (; looked < count && found < k && rows[looked] != no_id; ++looked) {
    int& of_bin = taken[static_cast<std::size_t>(bins.bin_of(rows[looked]))];
    if (of_bin < bins.kept)
      ++of_bin, out_keys[found] = keys[looked], out_rows[found++] = rows[looked];
    else
      first = std::min(first, KeyedId{keys[looked], rows[looked]});
  }
  for (std::int64_t i = 0; i < looked; ++i)
    taken[static_cast<std::size_t>(bins.bin_of(rows[i]))] = 0;
  if (found < k && !whole) return false;
  std::fill(out_keys + found, out_keys + k, infinity);
  std::fill(out_rows + found, out_rows + k, no_id);
  dropped = std::min(dropped, first);
  return true;
}

}  // namespace knear::detail
