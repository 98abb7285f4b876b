// The scan in two stages: products of prefixes against the threshold, all coordinates of what is
// left while its rows are in cache, float64 for the last few.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/scan/prefix/second_stage.hpp"
#include "knear/scan/tile_loop.hpp"

namespace knear::detail {
namespace {

// Ranges of slots that a query has been held against already.
struct ProbedClusters {
  static constexpr int most = 8;
  int count = 0;
  std::uint32_t begin[most], end[most];
  bool has(std::uint32_t slot) const {
    for (int i = 0; i < count; ++i)
      if (slot >= begin[i] && slot < end[i]) return true;
    return false;
  }
};

// The tasks: queries in the order of their clusters, in groups of 12. Where there are too few for
// that the base is split.
Division divide_queries(const PackedBase& panels, std::int64_t queries, const ScanJob& job,
                        ScanStats& stats) {
  const std::int64_t k = job.k;
  const int threads = job.threads;
  if (queries < std::int64_t{24} * threads || job.group > 0 || job.splits > 0)
    return divide(panels, queries, job, stats);
  stats.group = 12, stats.splits = 1;
  constexpr std::int64_t group = 12;
  const std::int64_t groups = (queries + group - 1) / group;
  const std::int64_t most = std::max<std::int64_t>(1, queries_in_block(k) / 2 / group);
  std::int64_t blocks = (groups + most - 1) / most;
  blocks = std::max(blocks, std::min<std::int64_t>(4 * threads, groups / 8));
  blocks = std::min((std::max<std::int64_t>(1, blocks) + threads - 1) / threads * threads, groups);
  std::vector<Task> tasks;
  for (std::int64_t b = 0; b < blocks; ++b)
    tasks.push_back({groups * b / blocks * group,
                     std::min(queries, groups * (b + 1) / blocks * group), 0, panels.tiles});
  return {group_12, 1, std::move(tasks)};
}

}  // namespace

std::vector<std::int64_t> scan_with_prefix(const PrefixBase& base, const ScanJob& job,
                                           const std::vector<std::int64_t>& which,
                                           ExactNeighbors& out, ScanStats& stats,
                                           const Progress& progress) {
  const PackedBase& panels = base.panels;
  const PerRowCodes& rows = base.codes;
  const std::int64_t count = static_cast<std::int64_t>(which.size());
  const std::int64_t columns = base.map.columns();
  const std::int64_t clusters = base.centroids.rows();
  if (count == 0) return {};
  const auto begin_seconds = std::chrono::steady_clock::now();

  // Prefixes of the queries. One that is too large is for another path.
  Matrix<float> prefixes(count, columns);
  std::vector<char> given_up(static_cast<std::size_t>(count), 0);
  parallel_for(job.threads, (count + 63) / 64, [&](std::int64_t task) {
    PrefixMapper mapper(base.map);
    const std::int64_t end = std::min(count, task * 64 + 64);
    for (std::int64_t i = task * 64; i < end; ++i)
      mapper.add(job.queries, which[i], prefixes.row(i));
    mapper.finish();
    for (std::int64_t i = task * 64; i < end; ++i) given_up[i] = !base.map.fits(prefixes.row(i));
  });

  // The nearest clusters, so many that they hold several times k rows.
  const double cluster_rows = static_cast<double>(panels.rows) / static_cast<double>(clusters);
  const std::int64_t probed_clusters = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::ceil(3 * static_cast<double>(job.k) / cluster_rows)), 1,
      std::min<std::int64_t>(ProbedClusters::most, clusters));
  ExactNeighbors nearest(count, probed_clusters);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i)
    if (!given_up[i]) order.push_back(i);
  {
    const ScanJob centroid_job{.queries = prefixes.view(),
                               .base = base.centroids.view(),
                               .metric = Metric::l2,
                               .k = probed_clusters,
                               .threads = job.threads,
                               .isa = job.isa,
                               .peaks = job.peaks};
    ScanStats ignored;
    scan(base.centroid_panels, centroid_job, order, nearest, ignored, {});
  }
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(nearest.ids.row(a)[0], a) < std::pair(nearest.ids.row(b)[0], b);
  });
  if (order.empty()) return which;
  stats.scan_seconds += seconds_since(begin_seconds) * job.threads;
  stats.query_seconds += seconds_since(begin_seconds) * job.threads;

  ScanJob prefix_job = job;
  prefix_job.queries = prefixes.view();
  const Division division = divide_queries(panels, std::ssize(order), job, stats);
  const std::int64_t group_size = group_sizes[division.group], parts = division.parts;
  const std::vector<Task>& tasks = division.tasks;
  const double slack = (static_cast<double>(rows.dim) + 32) * 0x1p-50;
  const std::int64_t code_bytes = SecondStage::code_bytes(rows.dim);
  // What a pair costs in the second stage and without the first, in seconds of one core.
  const MachinePeaks& peaks = *job.peaks;
  const double second_cost = second_stage_seconds(rows.dim, peaks);
  const double plain_cost = pair_seconds(ScanOp::int8, rows.dim, peaks);
  // Of few queries that without it wait for memory, together.
  const bool few = count < std::int64_t{24} * job.threads;
  const double reading_cost =
      static_cast<double>(panels.rows * rows.dim * job.threads) / peaks.memory_bytes_per_second;
  std::mutex mutex;
  std::vector<std::vector<QueryState>> found(parts > 1 ? tasks.size() : 0);

  for_each_task(panels, prefix_job, order, division, progress, [&](std::int64_t t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    const Task& task = loop.task;
    PackedQueries& queries = loop.queries;
    const std::int64_t n = loop.count();
    SecondStage stage(base, job);
    ScanStats local;
    std::vector<QueryState> states(n);
    std::vector<ProbedClusters> probed(n);
    AlignedArray<std::int8_t> codes(n * code_bytes);
    const auto query_of = [&](std::int64_t p) { return which[order[task.query_begin + p]]; };

    // Tells the kernel what is known of a query.
    const auto set_threshold = [&](std::int64_t p) {
      const QueryState& s = states[p];
      const double key = stage.bound(s);
      double threshold = -infinity;
      if (key < infinity) {
        threshold = threshold_of_prefix(job.metric, key, s.squares_low, slack) -
                    2 * panels.space.slack * queries.squares[p];
      }
      GroupHead& head = queries.heads[p / group_size];
      const int lane = static_cast<int>(p % group_size);
      head.threshold[lane] = threshold;
      if (lane == head.count - 1)
        for (int q = head.count; q < group_size; ++q) head.threshold[q] = threshold;
    };

    // Of rows that are forbidden nothing may be concluded; one that stands for copies counts if one
    // of them is allowed.
    const bool filtered = !job.allowed.all();
    const auto is_allowed = [&](std::uint32_t row) {
      if (job.allowed(row)) return true;
      if (!panels.duplicates.any()) return false;
      const auto others = panels.duplicates.others(row);
      return std::any_of(others.begin(), others.end(), job.allowed);
    };

    const auto second_stage = [&](std::int64_t p, std::uint32_t* slots, std::size_t some) {
      stage.score(codes.data() + p * code_bytes, slots, some);
      stage.take(states[p], query_of(p), codes.data() + p * code_bytes, slots, some, local);
    };
    // The clusters nearest to a query first. Where tasks share a query the first of them keeps what
    // is found there, the others its threshold.
    const bool keeps_seeds = t % parts == 0;
    std::vector<std::uint32_t> waiting;
    waiting.reserve(longest_list);
    for (std::int64_t p = 0; p < n; ++p) {
      QueryState& s = states[p] = stage.begin(query_of(p), codes.data() + p * code_bytes);
      s.squares_low = least_squares(queries.squares[p], panels.space);
      ProbedClusters& own = probed[p];
      double first_rows = 0;
      for (std::int64_t j = 0; j < probed_clusters; ++j) {
        const Id cluster = nearest.ids.row(order[task.query_begin + p])[j];
        const std::uint32_t begin = base.cluster_begin[cluster];
        const std::uint32_t end = base.cluster_begin[cluster + 1];
        own.begin[own.count] = begin, own.end[own.count] = end, ++own.count;
        first_rows += end - begin;
        for (std::uint32_t slot = begin; slot < end; ++slot) {
          if (filtered && !is_allowed(panels.ids[slot])) continue;
          waiting.push_back(slot);
          if (waiting.size() < longest_list) continue;
          second_stage(p, waiting.data(), waiting.size());
          waiting.clear();
        }
      }
      second_stage(p, waiting.data(), waiting.size());
      waiting.clear();
      stage.tighten(s, query_of(p), static_cast<double>(panels.rows) / first_rows, local);
      if (!keeps_seeds) {
        s.bound = stage.bound(s);
        s.best = TopK(job.k), s.candidates.exact = TopK(job.k);
        s.candidates.pending.clear();
      }
      set_threshold(p);
    }

    loop.clock.charge(loop.clock.probed_clusters);

    std::vector<double> second(queries.groups, 0);
    std::vector<char> gave_up(queries.groups, 0);
    const auto take = [&](std::int64_t g, int lane, std::uint32_t* slots, int passed) {
      const std::int64_t p = g * group_size + lane;
      local.hits += passed, second[g] += passed;
      const std::uint32_t* end = std::remove_if(slots, slots + passed, [&](std::uint32_t slot) {
        return slot >= panels.rows || probed[p].has(slot) ||
               (filtered && !is_allowed(panels.ids[slot]));
      });
      if (end == slots) return;
      second_stage(p, slots, static_cast<std::size_t>(end - slots));
      set_threshold(p);
    };
    const auto tile_done = [&](std::int64_t g, std::int64_t tile) {
      // Whether what is still to come, at the rate so far, costs more than starting again without a
      // prefix; once enough was spent for the rate to be more than that of one cluster.
      const double done = static_cast<double>(tile + 1 - task.tile_begin);
      const double tiles = static_cast<double>(task.tile_end - task.tile_begin),
                   left = tiles - done;
      const double share = tiles / static_cast<double>(panels.tiles);
      double all = static_cast<double>(panels.rows) * share * queries.heads[g].count * plain_cost;
      if (few) all = std::max(all, reading_cost * share);
      const double spent = second[g] * second_cost;
      if (spent <= 0.5 * all || spent * left <= 1.5 * all * done) return true;
      gave_up[g] = 1;
      return false;
    };
    loop.collect(list_limit, take, tile_done);
    loop.clock.report(local);
    local.scan_seconds = seconds_since(start);
    const auto rescoring = std::chrono::steady_clock::now();
    std::int64_t buffers = static_cast<std::int64_t>(queries.codes.bytes() + codes.bytes());
    std::vector<std::int64_t> dropped;
    for (std::int64_t p = 0; p < n; ++p) {
      QueryState& s = states[p];
      const std::int64_t query = query_of(p);
      buffers += static_cast<std::int64_t>(s.candidates.pending.capacity() * sizeof(ScoreInterval) +
                                           sizeof(QueryState));
      if (gave_up[p / group_size]) {
        dropped.push_back(order[task.query_begin + p]);
      } else if (parts == 1) {
        stage.finish(s, query, out.keys.row(query), out.ids.row(query), local);
        s.candidates.pending = {};
      }
    }
    local.rescore_seconds = seconds_since(rescoring);
    std::lock_guard lock(mutex);
    for (const std::int64_t place : dropped) given_up[place] = 1;
    if (parts > 1) found[t] = std::move(states);
    stats.add(local);
    stats.buffer_bytes = std::max(stats.buffer_bytes,
                                  buffers * std::min<std::int64_t>(job.threads, std::ssize(tasks)));
  });

  if (parts > 1) {
    const auto start = std::chrono::steady_clock::now();
    SecondStage stage(base, job);
    for (std::int64_t first = 0; first < std::ssize(tasks); first += parts)
      for (std::int64_t place = tasks[first].query_begin; place < tasks[first].query_end; ++place) {
        const std::int64_t query = which[order[place]];
        if (given_up[order[place]]) continue;
        const std::int64_t p = place - tasks[first].query_begin;
        QueryState& all = found[first][p];
        for (std::int64_t part = first + 1; part < first + parts; ++part) {
          const QueryState& more = found[part][p];
          QueryCandidates& c = all.candidates;
          for (const TopK::Item& item : more.best.items()) all.best.push(item.first, item.second);
          for (const TopK::Item& item : more.candidates.exact.items())
            c.exact.push(item.first, item.second);
          c.threshold = std::max(c.threshold, more.candidates.threshold);
          c.pending.insert(c.pending.end(), more.candidates.pending.begin(),
                           more.candidates.pending.end());
        }
        stage.finish(all, query, out.keys.row(query), out.ids.row(query), stats);
      }
    stats.rescore_seconds += seconds_since(start);
  }

  std::vector<std::int64_t> again;
  for (std::int64_t place = 0; place < count; ++place)
    if (given_up[place]) again.push_back(which[place]);
  return again;
}

}  // namespace knear::detail
