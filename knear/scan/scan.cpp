#include "knear/scan/scan.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/candidate_refiner.hpp"
#include "knear/scan/row_rescoring.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

std::vector<std::int64_t> scan_certified(const PackedBase& packed, const ScanJob& job,
                                         const std::vector<std::int64_t>& which,
                                         ExactNeighbors& out, ScanStats& stats,
                                         const Progress& progress,
                                         std::vector<std::int64_t>& mispredicted) {
  const std::int64_t count = static_cast<std::int64_t>(which.size());
  const Division division = divide(packed, count, job, stats);
  const int group_size = group_sizes[division.group];
  const std::int64_t parts = division.parts;
  const std::vector<Task>& tasks = division.tasks;
  std::mutex mutex;
  std::vector<char> given_up(count, 0);
  // With several parts per query: what each found, put together below.
  std::vector<std::vector<QueryCandidates>> found(parts > 1 ? tasks.size() : 0);
  std::vector<KeyScale> scales(parts > 1 ? count : 0);
  const ThresholdEstimates estimates(packed, job);
  // Where many hopes prove wrong later tasks do without.
  std::atomic<std::int64_t> estimated = 0, wrong = 0;
  const auto proves_wrong = [&](const QueryCandidates& c, const KeyScale& scale,
                                std::int64_t query) {
    const double key = out.keys.row(query)[job.k - 1];
    double certain = job.upper_bounds ? scale.threshold_for(job.upper_bounds[query]) : -infinity;
    if (key < infinity) certain = std::max(certain, scale.threshold_for(key));
    return c.estimated > certain;
  };

  const double worth = worthwhile_survivors(packed.format, packed.dim, *job.peaks);
  const double most_hits = packed.format == format_fp32 ? 0.5 : 0.05;

  for_each_task(packed, job, which, division, progress, [&](std::int64_t t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    const Task& task = loop.task;
    PackedQueries& queries = loop.queries;
    const std::int64_t n = loop.count();
    CandidateRefiner refiner(packed.duplicates, job);
    ScanStats local;
    std::vector<QueryCandidates> states(n);
    const bool estimating = estimates.on() && (wrong < 4 || 50 * wrong < estimated);
    local.estimated = estimating;
    // Of the first tile the best as they come.
    const std::int64_t listed = estimating ? static_cast<std::int64_t>(estimates.rank(1)) : job.k;
    for (std::int64_t q = 0; q < n; ++q) {
      const double norm = std::sqrt(queries.squares[q]);
      states[q].lowers = LargestK(listed, (norm + packed.longest) * packed.longest);
      states[q].exact = TopK(job.k), states[q].room = refiner.first_room();
    }
    const auto scale_of = [&](std::int64_t q) {
      return KeyScale{job.metric, queries.squares[q], queries.constant[q]};
    };
    Thresholds published(packed, queries);
    for (std::int64_t q = 0; q < n && job.upper_bounds; ++q) {
      states[q].threshold =
          scale_of(q).threshold_for(job.upper_bounds[which[task.query_begin + q]]);
      published.set(q, states[q].threshold);
    }
    if (job.upper_bounds) published.repeat_last();
    std::vector<std::int64_t> tile_hits(queries.groups, 0);
    std::vector<char> gave_up(queries.groups, 0);
    // Of rows that the filter forbids nothing may be concluded; one that stands for copies counts
    // if one of them is allowed.
    const bool filtered = !job.allowed.all();
    const auto is_allowed = [&](std::uint32_t row) {
      if (job.allowed(row)) return true;
      if (!packed.duplicates.any()) return false;
      const auto others = packed.duplicates.others(row);
      return std::any_of(others.begin(), others.end(), job.allowed);
    };
    const auto drain = [&](std::int64_t g, const Hit* first, int hit_count) {
      GroupHead& head = queries.heads[g];
      local.hits += hit_count, tile_hits[g] += hit_count;
      for (const Hit* hit = first; hit != first + hit_count; ++hit) {
        const std::int64_t q = g * group_size + hit->query;
        QueryCandidates& c = states[q];
        if (const std::uint32_t row = packed.ids[hit->slot];
            row == PackedBase::no_row || (filtered && !is_allowed(row))) {
          --tile_hits[g];
          continue;
        }
        const ScoreInterval x = interval_of(packed, head, *hit, queries.squares[q]);
        if (x.upper < c.threshold) continue;
        // Exactly what was counted on; growing by itself it would double.
        if (c.pending.size() == c.pending.capacity()) c.pending.reserve(c.room);
        c.pending.push_back(x);
        const double before = c.threshold;
        c.threshold = std::max(c.threshold, c.lowers.push(x.lower));
        if (c.pending.size() >= c.room)
          refiner.prune(c, which[task.query_begin + q], scale_of(q), local);
        if (c.threshold != before) published.set(q, c.threshold);
      }
      published.repeat_last(head);
    };
    const auto tile_done = [&](std::int64_t g, std::int64_t tile) {
      GroupHead& head = queries.heads[g];
      const std::int64_t rows = packed.panels_per_tile * panel_rows;
      const std::int64_t tile_index = tile - task.tile_begin;
      const std::int64_t passed = tile_hits[g];
      tile_hits[g] = 0;
      // Once, when the first tile, a sample of the base, is done: later it gains less than the rows
      // cost that would not have been measured otherwise.
      if (tile_index == 0 && job.k <= LargestK::longest) {
        const double times = static_cast<double>(task.tile_end - task.tile_begin);
        for (std::int64_t q = g * group_size; q < g * group_size + head.count; ++q) {
          refiner.tighten(states[q], which[task.query_begin + q], scale_of(q), times, local);
          published.set(q, states[q].threshold);
        }
        published.repeat_last(head);
      }
      if (estimating && ThresholdEstimates::look(tile_index + 1)) {
        for (std::int64_t q = g * group_size; q < g * group_size + head.count; ++q) {
          QueryCandidates& c = states[q];
          if (tile_index == 0) c.estimated = c.threshold, c.lowers = LargestK(job.k);
          refiner.estimate(c, estimates.rank(tile_index + 1));
          published.set(q, c.threshold);
        }
        published.repeat_last(head);
      }
      if (!job.may_give_up || tile_index < 1 || rows * (tile_index + 1) < 20 * job.k) return true;
      const int in_group = head.count;
      std::int64_t pending = 0;
      for (int q = 0; q < in_group; ++q)
        pending += static_cast<std::int64_t>(states[g * group_size + q].pending.size());
      const double pairs = static_cast<double>(rows) * in_group;
      const double allowed =
          static_cast<double>(in_group) * (4.0 * static_cast<double>(job.k) + 64);
      if (static_cast<double>(passed) <= most_hits * pairs + allowed &&
          static_cast<double>(pending) <=
              worth * pairs * static_cast<double>(tile_index + 1) + allowed)
        return true;
      gave_up[g] = 1;
      for (int q = 0; q < in_group; ++q) states[g * group_size + q].pending = {};
      return false;
    };
    loop.run(drain, tile_done);
    loop.clock.report(local);
    local.scan_seconds = seconds_since(start);
    const auto rescoring = std::chrono::steady_clock::now();
    std::int64_t buffers = static_cast<std::int64_t>(queries.codes.bytes());
    std::vector<std::int64_t> dropped, missed;
    RowRescoring together(packed.duplicates, job, refiner);
    std::vector<Unfinished> unfinished;
    std::int64_t waiting = 0;
    for (std::int64_t q = 0; q < n && parts == 1; ++q) {
      if (gave_up[q / group_size]) continue;
      unfinished.push_back({&states[q], which[task.query_begin + q], scale_of(q)});
      waiting += together.waiting(states[q]);
    }
    const bool by_rows = together.pays(waiting);
    if (by_rows) together.finish(unfinished, out, local);
    for (std::int64_t q = 0; q < n; ++q) {
      const std::int64_t place = task.query_begin + q, query = which[place];
      buffers += static_cast<std::int64_t>(states[q].pending.capacity() * sizeof(ScoreInterval));
      if (gave_up[q / group_size]) {
        dropped.push_back(place);
      } else if (parts == 1) {
        if (!by_rows)
          refiner.finish(states[q], query, scale_of(q), out.keys.row(query), out.ids.row(query),
                         local);
        states[q].pending = {};
        if (estimating && proves_wrong(states[q], scale_of(q), query)) missed.push_back(query);
      }
    }
    if (estimating) estimated += n, wrong += std::ssize(missed);
    buffers += together.bytes();
    local.rescore_seconds = seconds_since(rescoring);
    std::lock_guard lock(mutex);
    for (const std::int64_t place : dropped) given_up[place] = 1;
    mispredicted.insert(mispredicted.end(), missed.begin(), missed.end());
    for (std::int64_t q = 0; q < n && parts > 1; ++q) scales[task.query_begin + q] = scale_of(q);
    if (parts > 1) found[t] = std::move(states);
    stats.add(local);
    stats.buffer_bytes =
        std::max(stats.buffer_bytes, buffers * std::min<std::int64_t>(job.threads, tasks.size()));
  });

  std::vector<std::int64_t> again;
  for (std::int64_t place = 0; place < count; ++place)
    if (given_up[place]) again.push_back(which[place]);
  if (parts == 1) return again;

  parallel_for(job.threads, count, [&](std::int64_t place) {
    if (given_up[place]) return;
    const auto start = std::chrono::steady_clock::now();
    CandidateRefiner refiner(packed.duplicates, job);
    ScanStats local;
    QueryCandidates all;
    all.exact = TopK(job.k);
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      if (place < tasks[t].query_begin || place >= tasks[t].query_end) continue;
      QueryCandidates& part = found[t][place - tasks[t].query_begin];
      all.threshold = std::max(all.threshold, part.threshold);
      all.estimated = std::max(all.estimated, part.estimated);
      all.pending.insert(all.pending.end(), part.pending.begin(), part.pending.end());
      for (const TopK::Item& item : part.exact.items()) all.exact.push(item.first, item.second);
    }
    const std::int64_t query = which[place];
    refiner.finish(all, query, scales[place], out.keys.row(query), out.ids.row(query), local);
    std::lock_guard lock(mutex);
    if (proves_wrong(all, scales[place], query)) mispredicted.push_back(query);
    stats.refined += local.refined, stats.survivors += local.survivors;
    stats.rescore_seconds += seconds_since(start);
  });
  return again;
}

void scan_integer(const PackedBase& packed, const ScanJob& job,
                  const std::vector<std::int64_t>& which, ExactNeighbors& out, ScanStats& stats,
                  const Progress& progress, std::vector<std::int64_t>& mispredicted) {
  const Division division = divide(packed, static_cast<std::int64_t>(which.size()), job, stats);
  const int group_size = group_sizes[division.group];
  const std::int64_t parts = division.parts;
  const std::vector<Task>& tasks = division.tasks;
  std::mutex mutex;
  std::vector<std::vector<TopK>> found(parts > 1 ? tasks.size() : 0);
  std::vector<std::vector<double>> found_estimates(parts > 1 ? tasks.size() : 0);
  const ThresholdEstimates estimates(packed, job);
  // Where many hopes prove wrong later tasks do without.
  std::atomic<std::int64_t> estimated = 0, wrong = 0;
  // Returns whether the key that the k-th was hoped not to exceed was too small.
  const auto write = [&](const TopK& best, std::int64_t place, double estimate) {
    const std::int64_t query = which[place];
    write_list(best, job.k, out.keys.row(query), out.ids.row(query));
    return estimate < std::min(out.keys.row(query)[job.k - 1],
                               job.upper_bounds ? job.upper_bounds[query] : infinity);
  };

  for_each_task(packed, job, which, division, progress, [&](std::int64_t t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    const Task& task = loop.task;
    PackedQueries& queries = loop.queries;
    const std::int64_t n = loop.count();
    ScanStats local;
    std::vector<TopK> best(n, TopK(job.k));
    const bool estimating = estimates.on() && (wrong < 4 || 50 * wrong < estimated);
    local.estimated = estimating;
    // Hoped not to be exceeded by the k-th key; of the first tile the best as they come.
    std::vector<double> estimate(n, infinity);
    std::vector<TopK> first_tile(
        estimating ? n : 0, TopK(estimating ? static_cast<std::int64_t>(estimates.rank(1)) : 1));
    // Until k rows are known the limit is that of the worst key possible.
    IntegerLimits limits(packed, job, queries);
    for (std::int64_t q = 0; q < n; ++q)
      limits.set_up_to(q,
                       job.upper_bounds ? job.upper_bounds[which[task.query_begin + q]] : infinity);
    limits.repeat_last();
    const auto publish = [&](std::int64_t q) {
      if (estimate[q] < best[q].bound())
        limits.set(q, static_cast<std::int64_t>(estimate[q]));
      else if (best[q].bound() != infinity)
        limits.set(q, static_cast<std::int64_t>(best[q].bound()), best[q].bound_id());
    };
    const auto drain = [&](std::int64_t g, const Hit* first, int hit_count) {
      GroupHead& head = queries.heads[g];
      local.hits += hit_count;
      for (const Hit* hit = first; hit != first + hit_count; ++hit) {
        const std::uint32_t row = packed.ids[hit->slot];
        if (row == PackedBase::no_row) continue;
        const std::int64_t q = g * group_size + hit->query;
        const double key = integer_key(packed, queries, head, *hit, q);
        if (key > estimate[q] || !best[q].admits(key, row) || !job.allowed(row)) continue;
        best[q].push(key, row);
        if (!first_tile.empty()) {
          first_tile[q].push(key, row);
          estimate[q] = first_tile[q].bound();
        }
        publish(q);
      }
      limits.repeat_last(head);
    };
    std::vector<double> keys;
    const auto tile_done = [&](std::int64_t g, std::int64_t tile) {
      const std::int64_t seen = tile - task.tile_begin + 1;
      if (!estimating || !ThresholdEstimates::look(seen)) return true;
      GroupHead& head = queries.heads[g];
      const std::size_t rank = estimates.rank(seen);
      for (std::int64_t q = g * group_size; q < g * group_size + head.count; ++q) {
        if (best[q].items().size() < rank) continue;
        const std::size_t count = best[q].items().size();
        keys.resize(2 * count);
        for (std::size_t i = 0; i < count; ++i) keys[i] = best[q].items()[i].first;
        estimate[q] =
            std::min(estimate[q], nth_value(keys.data(), keys.data() + count, count, rank - 1));
        publish(q);
      }
      limits.repeat_last(head);
      if (seen == 1 && g + 1 == queries.groups) first_tile.clear();
      return true;
    };
    loop.run(drain, tile_done);
    std::int64_t buffers = static_cast<std::int64_t>(queries.codes.bytes());
    for (TopK& b : best) {
      buffers += static_cast<std::int64_t>(b.items().capacity() * sizeof(TopK::Item));
      b.finish();
    }
    loop.clock.charge(loop.clock.selection);
    loop.clock.report(local);
    local.scan_seconds = seconds_since(start);
    std::vector<std::int64_t> missed;
    for (std::int64_t q = 0; q < n && parts == 1; ++q)
      if (write(best[q], task.query_begin + q, estimate[q]) && estimating)
        missed.push_back(which[task.query_begin + q]);
    if (estimating) estimated += n, wrong += std::ssize(missed);
    std::lock_guard lock(mutex);
    if (parts > 1) found[t] = std::move(best), found_estimates[t] = std::move(estimate);
    mispredicted.insert(mispredicted.end(), missed.begin(), missed.end());
    stats.add(local);
    stats.buffer_bytes =
        std::max(stats.buffer_bytes, buffers * std::min<std::int64_t>(job.threads, tasks.size()));
  });

  if (parts == 1) return;
  // What the parts found, put together.
  parallel_for(job.threads, std::ssize(which), [&](std::int64_t place) {
    TopK merged(job.k);
    double estimate = infinity;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      if (place < tasks[t].query_begin || place >= tasks[t].query_end) continue;
      const std::int64_t q = place - tasks[t].query_begin;
      for (const TopK::Item& item : found[t][q].items()) merged.push(item.first, item.second);
      estimate = std::min(estimate, found_estimates[t][q]);
    }
    merged.finish();
    if (!write(merged, place, estimate)) return;
    std::lock_guard lock(mutex);
    mispredicted.push_back(which[place]);
  });
}

}  // namespace

double worthwhile_survivors(Format format, std::int64_t dim, const MachinePeaks& peaks) {
  const double measuring = measured_row_seconds(dim, peaks);
  if (format == format_fp32) return std::min(direct_row_seconds(dim, peaks) / measuring, 0.25);
  // The next pass takes as long as one in fp32 does at most, and has to be packed.
  return std::clamp(3 * pair_seconds(ScanOp::fp32, dim, peaks) / measuring, 0.002, 0.04);
}

std::vector<std::int64_t> scan(const PackedBase& packed, const ScanJob& job,
                               const std::vector<std::int64_t>& which, ExactNeighbors& out,
                               ScanStats& stats, const Progress& progress) {
  if (which.empty()) return {};
  std::vector<std::int64_t> given_up, mispredicted;
  const auto run = [&](const ScanJob& how, const std::vector<std::int64_t>& queries,
                       const Progress& shown) {
    mispredicted.clear();
    if (packed.is_integer) {
      scan_integer(packed, how, queries, out, stats, shown, mispredicted);
      return;
    }
    const auto more = scan_certified(packed, how, queries, out, stats, shown, mispredicted);
    given_up.insert(given_up.end(), more.begin(), more.end());
  };
  run(job, which, progress);
  if (!mispredicted.empty()) {
    ScanJob without_estimates = job;
    without_estimates.may_estimate = false;
    std::vector<std::int64_t> again = mispredicted;
    std::sort(again.begin(), again.end());
    stats.repeated += std::ssize(again);
    run(without_estimates, again, progress);
    std::sort(given_up.begin(), given_up.end());
  }
  return given_up;
}

void scan_directly(const ScanJob& job, std::span<const std::uint32_t> subset,
                   const std::vector<std::int64_t>& which, ExactNeighbors& out, ScanStats& stats,
                   const Progress& progress) {
  const std::int64_t count = static_cast<std::int64_t>(which.size());
  const std::int64_t rows =
      subset.empty() ? job.base.rows() : static_cast<std::int64_t>(subset.size());
  if (count == 0) return;
  // Blocks of rows small enough for the second-level cache are measured from all queries of a task.
  const std::int64_t per_block =
      std::clamp<std::int64_t>((256 << 10) / job.base.row_bytes(), 1, 4096);
  // Up to 16 queries a task; where that makes fewer tasks than threads, the base is split too.
  constexpr std::int64_t size = ExactGroup::size;
  const std::int64_t blocks = (count + 15) / 16;
  const std::int64_t queries_per_task = ((count + blocks - 1) / blocks + size - 1) / size * size;
  const std::int64_t groups = (count + queries_per_task - 1) / queries_per_task;
  const std::int64_t parts =
      std::clamp<std::int64_t>(rows / (4 * per_block), 1, (job.threads + groups - 1) / groups);
  std::vector<std::vector<TopK>> found(groups * parts);
  Reporter reporter(progress, "search", groups * parts);
  std::mutex mutex;
  parallel_for(job.threads, groups * parts, [&](std::int64_t t) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t first = t / parts * queries_per_task;
    const std::int64_t n = std::min(count, first + queries_per_task) - first;
    const std::int64_t row_begin = rows * (t % parts) / parts;
    const std::int64_t row_end = rows * (t % parts + 1) / parts;
    const ExactGroup group(job.metric, job.base.type(), job.isa);
    std::vector<ExactGroup> measure((n + ExactGroup::size - 1) / ExactGroup::size, group);
    std::vector<TopK> best(n, TopK(job.k));
    std::vector<std::byte> scratch(job.base.scratch_bytes());
    for (std::int64_t q = 0; q < n; q += ExactGroup::size)
      measure[q / ExactGroup::size].set_queries(
          job.queries, which.data() + first + q,
          static_cast<int>(std::min<std::int64_t>(n - q, ExactGroup::size)));
    for (std::int64_t b = row_begin; b < row_end; b += per_block)
      for (std::size_t g = 0; g < measure.size(); ++g)
        for (std::int64_t i = b; i < std::min(row_end, b + per_block); ++i) {
          const std::int64_t r = subset.empty() ? i : std::int64_t{subset[i]};
          double keys[ExactGroup::size];
          measure[g].keys(job.base.row(r, scratch.data()), keys);
          for (int j = 0; j < measure[g].count(); ++j) {
            TopK& list = best[g * ExactGroup::size + j];
            if (list.admits(keys[j], r)) list.push(keys[j], r);
          }
        }
    for (TopK& b : best) b.finish();
    reporter.add(1);
    std::lock_guard lock(mutex);
    found[t] = std::move(best);
    stats.survivors += n * (row_end - row_begin);
    stats.rescore_seconds += seconds_since(start);
  });
  for (std::int64_t place = 0; place < count; ++place) {
    const std::int64_t g = place / queries_per_task;
    TopK merged(job.k);
    for (std::int64_t p = 0; p < parts; ++p)
      for (const TopK::Item& item : found[g * parts + p][place % queries_per_task].items())
        merged.push(item.first, item.second);
    merged.finish();
    write_list(merged, job.k, out.keys.row(which[place]), out.ids.row(which[place]));
  }
}

}  // namespace knear::detail
