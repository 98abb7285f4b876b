// All rows within a radius: the threshold stands from the beginning, and every hit that the bound
// cannot exclude is measured.
#include <algorithm>
#include <mutex>
#include <numeric>

#include "knear/core/error.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/methods/range_scan.hpp"
#include "knear/scan/scan.hpp"
#include "knear/scan/tile_loop.hpp"

namespace knear::detail {
namespace {

std::vector<std::int64_t> all_queries(const ScanJob& job) {
  std::vector<std::int64_t> which(job.queries.rows());
  std::iota(which.begin(), which.end(), 0);
  return which;
}

void range_integer(const PackedBase& packed, const ScanJob& job, double limit, RangeSink& sink,
                   ScanStats& stats, const Progress& progress) {
  const Division division = divide(packed, job.queries.rows(), job, stats);
  const int group_size = group_sizes[division.group];
  std::mutex mutex;
  const auto work = [&](std::int64_t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    PackedQueries& queries = loop.queries;
    RangeLists found(loop.count());
    IntegerLimits limits(packed, job, queries);
    for (std::int64_t q = 0; q < loop.count(); ++q) limits.set_up_to(q, limit);
    limits.repeat_last();
    std::int64_t hits = 0;
    loop.run([&](std::int64_t g, const Hit* first, int hit_count) {
      hits += hit_count;
      std::int64_t more = 0;
      for (const Hit* hit = first; hit != first + hit_count; ++hit) {
        const std::uint32_t row = packed.ids[hit->slot];
        if (row == PackedBase::no_row || !job.allowed(row)) continue;
        const std::int64_t q = g * group_size + hit->query;
        const double key = integer_key(packed, queries, queries.heads[g], *hit, q);
        if (key > limit) continue;
        found[q].emplace_back(key, row), ++more;
      }
      sink.count(more);
    });
    sink.take(loop.task.query_begin, found);
    ScanStats local;
    loop.clock.report(local);
    local.hits = hits, local.scan_seconds = seconds_since(start);
    std::lock_guard lock(mutex);
    stats.add(local);
  };
  for_each_task(packed, job, all_queries(job), division, progress, work);
}

void range_certified(const PackedBase& packed, const ScanJob& job, double limit, RangeSink& sink,
                     ScanStats& stats, const Progress& progress) {
  const Division division = divide(packed, job.queries.rows(), job, stats);
  const int group_size = group_sizes[division.group];
  std::mutex mutex;
  for_each_task(
      packed, job, all_queries(job), division, progress, [&](std::int64_t, TileLoop& loop) {
        const auto start = std::chrono::steady_clock::now();
        PackedQueries& queries = loop.queries;
        const std::int64_t n = loop.count();
        ScanStats local;
        RangeLists found(n);
        ExactDistance distance(job.metric, job.base.type(), job.isa);
        const std::size_t scratch_bytes = job.base.scratch_bytes();
        std::vector<std::byte> scratch(ExactDistance::most_rows * scratch_bytes);
        // Rows that may be within the radius wait to be measured together.
        constexpr std::size_t most_waiting = 256;
        std::vector<std::vector<std::uint32_t>> waiting(n);
        std::vector<double> thresholds(n);
        const auto measure = [&](std::int64_t q) {
          distance.set_query(job.queries, loop.task.query_begin + q);
          const std::size_t before = found[q].size();
          for (std::size_t i = 0; i < waiting[q].size(); i += ExactDistance::most_rows) {
            const int some = static_cast<int>(
                std::min<std::size_t>(waiting[q].size() - i, ExactDistance::most_rows));
            const void* rows[ExactDistance::most_rows] = {};
            double keys[ExactDistance::most_rows];
            for (int j = 0; j < some; ++j)
              rows[j] = job.base.row(waiting[q][i + j],
                                     scratch.data() + static_cast<std::size_t>(j) * scratch_bytes);
            distance.keys(rows, some, keys);
            for (int j = 0; j < some; ++j) {
              const std::uint32_t row = waiting[q][i + j];
              if (keys[j] > limit) continue;
              if (job.allowed(row)) found[q].emplace_back(keys[j], row);
              if (!packed.duplicates.any()) continue;
              for (const std::uint32_t other : packed.duplicates.others(row))
                if (job.allowed(other)) found[q].emplace_back(keys[j], other);
            }
          }
          sink.count(static_cast<std::int64_t>(found[q].size() - before));
          local.survivors += static_cast<std::int64_t>(waiting[q].size());
          waiting[q].clear();
        };
        Thresholds published(packed, queries);
        for (std::int64_t q = 0; q < n; ++q) {
          thresholds[q] =
              KeyScale{job.metric, queries.squares[q], queries.constant[q]}.threshold_for(limit);
          published.set(q, thresholds[q]);
        }
        published.repeat_last();
        loop.run([&](std::int64_t g, const Hit* first, int hit_count) {
          local.hits += hit_count;
          for (const Hit* hit = first; hit != first + hit_count; ++hit) {
            const std::int64_t q = g * group_size + hit->query;
            const ScoreInterval x = interval_of(packed, queries.heads[g], *hit, queries.squares[q]);
            if (x.upper < thresholds[q] || x.row == PackedBase::no_row) continue;
            waiting[q].push_back(x.row);
            if (waiting[q].size() == most_waiting) measure(q);
          }
        });
        for (std::int64_t q = 0; q < n; ++q) measure(q);
        sink.take(loop.task.query_begin, found);
        loop.clock.report(local);
        local.scan_seconds = seconds_since(start);
        std::lock_guard lock(mutex);
        stats.add(local);
      });
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

void RangeSink::take(std::int64_t begin, RangeLists& found) {
  std::lock_guard lock(mutex_);
  for (std::size_t q = 0; q < found.size(); ++q) {
    auto& to = list_of(begin + static_cast<std::int64_t>(q));
    for (const auto& [key, row] : found[q]) to.emplace_back(key, ids_(row));
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
    const std::uint32_t query = pairs[static_cast<std::size_t>(task * count / tasks)].query;
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
  if (packed.is_integer)
    range_integer(packed, job, limit, sink, stats, progress);
  else
    range_certified(packed, job, limit, sink, stats, progress);
}

void scan_range_directly(const ScanJob& job, std::span<const std::uint32_t> subset, double limit,
                         RangeSink& sink, ScanStats& stats, const Progress& progress) {
  const std::int64_t count = job.queries.rows();
  const std::int64_t rows =
      subset.empty() ? job.base.rows() : static_cast<std::int64_t>(subset.size());
  // Blocks of rows are tasks too, so that few queries use all threads.
  constexpr std::int64_t block = 4096;
  const std::int64_t groups = (count + ExactGroup::size - 1) / ExactGroup::size;
  const std::int64_t blocks = (rows + block - 1) / block;
  Reporter reporter(progress, "search", groups * blocks);
  std::mutex mutex;
  parallel_for(job.threads, groups * blocks, [&](std::int64_t t) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t begin = t / blocks * ExactGroup::size, b = t % blocks * block;
    const int n = static_cast<int>(std::min<std::int64_t>(count - begin, ExactGroup::size));
    std::int64_t which[ExactGroup::size];
    std::iota(which, which + n, begin);
    ExactGroup group(job.metric, job.base.type(), job.isa);
    group.set_queries(job.queries, which, n);
    RangeLists found(n);
    std::vector<std::byte> scratch(job.base.scratch_bytes());
    std::int64_t more = 0;
    for (std::int64_t i = b; i < std::min(rows, b + block); ++i) {
      const std::int64_t r = subset.empty() ? i : std::int64_t{subset[i]};
      double keys[ExactGroup::size];
      group.keys(job.base.row(r, scratch.data()), keys);
      for (int q = 0; q < n; ++q)
        if (keys[q] <= limit) found[q].emplace_back(keys[q], r), ++more;
    }
    sink.count(more);
    sink.take(begin, found);
    reporter.add(1);
    std::lock_guard lock(mutex);
    stats.survivors += n * std::min(block, rows - b);
    stats.rescore_seconds += seconds_since(start);
  });
}

}  // namespace knear::detail
