// All rows within a radius: of whole numbers the score is the key, of others every row that the
// bound cannot exclude is measured.
#include "knear/scan/methods/range_scan.hpp"

#include <algorithm>
#include <numeric>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/scan/scores.hpp"

namespace knear::detail {
namespace {

// What a radius search was called with.
struct RangeCall {
  const PackedBase& packed;
  const ScanJob& job;
  const WorkTable& table;
  double limit;
  RangeSink& sink;
};

// Scores: IntegerScores, whose keys are known at once, or CertifiedScores, of which rows wait to be
// measured a few together.
template <class Scores>
class WithinRadius {
 public:
  WithinRadius(const RangeCall& call, TileLoop& loop, ScanStats& stats)
      : call_(call),
        loop_(loop),
        stats_(stats),
        scores_(call.packed, call.job, loop.queries),
        queries_(call.table.queries_of(loop.task.set)),
        found_(loop.count()),
        waiting_(Scores::exact ? 0 : found_.size()),
        measurer_(call.job) {}

  void begin() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) scores_.publish(q, call_.limit);
    scores_.publish_groups();
  }
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    const std::size_t place = q;
    if (!(scores_.keys(q, head, hit).low <= call_.limit)) return;
    if constexpr (Scores::exact) {
      if (call_.job.allowed(row))
        found_[place].emplace_back(scores_.key(q, head, hit), row), ++uncounted_;
    } else {
      waiting_[place].push_back(row);
      if (waiting_[place].size() == most_waiting) measure(q);
    }
  }
  void publish_group(GroupHead&) { count(); }
  bool tile_done(std::int64_t, std::int64_t) const { return true; }
  std::int64_t finish(ScanStats&) {
    for (std::size_t q = 0; q < waiting_.size(); ++q) measure(static_cast<std::int64_t>(q));
    count();
    call_.sink.take(queries_, found_);
    return 0;  // the pairs are the answer
  }
  void hand_over() {}

 private:
  static constexpr std::size_t most_waiting = 256;

  void count() {
    if (uncounted_ > 0) call_.sink.count(uncounted_);
    uncounted_ = 0;
  }
  void measure(std::int64_t q) {
    const std::size_t place = q;
    std::vector<std::uint32_t>& rows = waiting_[place];
    if (rows.empty()) return;
    measurer_.set_query(queries_[place]);
    measurer_.measure(
        std::ssize(rows), [&](std::int64_t i) { return rows[i]; },
        [&](std::int64_t i, double key) {
          if (key > call_.limit) return;
          each_copy(call_.packed.duplicates, call_.job.allowed, rows[i], [&](std::uint32_t row) {
            found_[place].emplace_back(key, row), ++uncounted_;
            return true;
          });
        });
    stats_.survivors += std::ssize(rows);
    rows.clear();
  }

  const RangeCall& call_;
  TileLoop& loop_;
  ScanStats& stats_;
  Scores scores_;
  const std::span<const std::int64_t> queries_;  // of the task
  RangeLists found_;
  std::vector<std::vector<std::uint32_t>> waiting_;
  RowMeasurer measurer_;
  std::int64_t uncounted_ = 0;
};

// Brute force: every pair in float64.
class MeasuredWithinRadius {
 public:
  MeasuredWithinRadius(double limit, RangeSink& sink, std::span<const std::int64_t> which,
                       const MeasuredTask& task)
      : limit_(limit),
        sink_(sink),
        queries_(which.subspan(task.begin, task.count)),
        found_(task.count) {}

  void take(std::int64_t q, double key, std::uint32_t row) {
    if (key <= limit_) found_[q].emplace_back(key, row), ++uncounted_;
  }
  double limit(std::int64_t) const { return limit_; }
  void block_done() {
    sink_.count(uncounted_);
    uncounted_ = 0;
  }
  std::int64_t finish(ScanStats&) {
    sink_.take(queries_, found_);
    return 0;
  }
  void hand_over() {}

 private:
  double limit_;
  RangeSink& sink_;
  const std::span<const std::int64_t> queries_;
  RangeLists found_;
  std::int64_t uncounted_ = 0;
};

std::vector<std::int64_t> all_queries(const ScanJob& job) {
  std::vector<std::int64_t> which(job.queries.rows());
  std::iota(which.begin(), which.end(), 0);
  return which;
}

}  // namespace

RangeSink::RangeSink(RangeLists& out, RowIds ids, std::int64_t most,
                     std::span<const std::int64_t> which)
    : out_(out), ids_(ids), most_(most), which_(which) {
  for (const auto& list : out) count_ += static_cast<std::int64_t>(list.size());
}

void RangeSink::count(std::int64_t more) {
  if ((count_ += more) > most_)
    throw MemoryBudgetError("more than {} rows lie within the radius, and memory holds no more",
                            most_);
}

void RangeSink::take(std::span<const std::int64_t> queries, RangeLists& found) {
  std::lock_guard lock(mutex_);
  for (std::size_t q = 0; q < found.size(); ++q) {
    auto& to = list_of(queries[q]);
    for (auto& pair : found[q]) pair.second = ids_(pair.second);
    if (to.empty())
      to = std::move(found[q]);
    else
      to.insert(to.end(), found[q].begin(), found[q].end());
    found[q] = {};
  }
}

void RangeSink::take(std::span<const PrunedPair> pairs, std::span<const std::int64_t> queries,
                     std::span<const std::uint32_t> rows, double limit, int threads) {
  const std::int64_t count = std::ssize(pairs);
  // About as many pairs a task, and all of a query in one.
  const std::int64_t tasks = std::clamp<std::int64_t>(count / 4096, 1, std::int64_t{4} * threads);
  const auto begin_of = [&](std::int64_t task) {
    if (task == 0 || task == tasks) return pairs.begin() + task / tasks * count;
    const std::uint32_t query = pairs[task * count / tasks].query;
    return std::lower_bound(
        pairs.begin(), pairs.end(), query,
        [](const PrunedPair& pair, std::uint32_t wanted) { return pair.query < wanted; });
  };
  parallel_for(tasks > 1 ? threads : 1, tasks, [&](std::int64_t task) {
    const auto from = begin_of(task), to = begin_of(task + 1);
    this->count(std::count_if(from, to, [&](const PrunedPair& p) { return p.low <= limit; }));
    for (auto pair = from; pair != to; ++pair)
      if (pair->low <= limit)
        list_of(queries[pair->query])
            .emplace_back(pair->low, ids_(rows.empty() ? pair->row : rows[pair->row]));
  });
}

void scan_range(const PackedBase& packed, const ScanJob& job, double limit, RangeSink& sink,
                ScanStats& stats, const Progress& progress) {
  scan_range(packed, job, divide(packed, all_queries(job), job, stats), limit, sink, stats,
             progress);
}

void scan_range(const PackedBase& packed, const ScanJob& job, const WorkTable& table, double limit,
                RangeSink& sink, ScanStats& stats, const Progress& progress) {
  const RangeCall call{packed, job, table, limit, sink};
  const auto run_with = [&]<class Scores>() {
    run_tasks(packed, job, table, stats, progress, [&](TileLoop& loop, ScanStats& local) {
      return WithinRadius<Scores>(call, loop, local);
    });
  };
  if (packed.is_integer)
    run_with.template operator()<IntegerScores>();
  else
    run_with.template operator()<CertifiedScores>();
}

void scan_range_directly(const ScanJob& job, std::span<const std::uint32_t> subset, double limit,
                         RangeSink& sink, ScanStats& stats, const Progress& progress) {
  const std::vector<std::int64_t> which = all_queries(job);
  measure_pairs(
      job, subset, which, queries_measured_together(job, job.queries.rows()), true, stats, progress,
      [&](const MeasuredTask& task) { return MeasuredWithinRadius(limit, sink, which, task); });
}

}  // namespace knear::detail
