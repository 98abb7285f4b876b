// The scan in two stages: products of prefixes against the threshold, all coordinates of what is
// left while its rows are in cache, float64 for the last few.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/scan/prefix_base.hpp"
#include "knear/scan/pruner.hpp"
#include "knear/scan/tile_loop.hpp"

namespace knear::detail {
namespace {

constexpr int list_limit = 128;  // rows of a query that wait for the second stage
constexpr std::size_t longest_list = list_limit + panel_rows;

// One query of a task.
struct QueryState {
  CodedQuery coded;
  KeyScale scale;
  Candidates candidates;   // certified
  TopK best;               // integer
  double bar = infinity;   // a key known from elsewhere
  double squares_low = 0;  // of the prefix, at most what it really has
  std::vector<std::uint32_t> waiting;
};

// Ranges of slots that a query has been held against already.
struct Seeds {
  static constexpr int most = 8;
  int count = 0;
  std::uint32_t begin[most], end[most];
  bool has(std::uint32_t slot) const {
    for (int i = 0; i < count; ++i)
      if (slot >= begin[i] && slot < end[i]) return true;
    return false;
  }
};

// The tasks: queries in the order of their clusters, in groups of 12.
Division divide_queries(const PackedBase& panels, std::int64_t queries, std::int64_t k,
                        int threads) {
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
                                           const std::vector<std::int64_t>& which, ExactLists& out,
                                           ScanStats& stats, const Progress& progress) {
  const PackedBase& panels = base.panels;
  const RowCodes& rows = base.codes;
  const std::int64_t count = static_cast<std::int64_t>(which.size());
  const std::int64_t columns = base.map.columns();
  const std::int64_t clusters = base.centroids.rows();
  if (count == 0) return {};
  const auto begin_seconds = std::chrono::steady_clock::now();

  // Prefixes of the queries. One that is too large is for another path.
  Matrix<float> prefixes(count, columns);
  std::vector<char> given_up(static_cast<std::size_t>(count), 0);
  parallel_for(job.threads, (count + 63) / 64, [&](std::int64_t task) {
    std::vector<double> scratch(base.map.scratch_doubles());
    for (std::int64_t i = task * 64; i < std::min(count, task * 64 + 64); ++i) {
      float* prefix = prefixes.row(i);
      base.map.map(job.queries, which[i], scratch.data(), prefix);
      given_up[i] = !base.map.fits(prefix);
    }
  });

  // The nearest clusters, so many that they hold several times k rows.
  const double cluster_rows = static_cast<double>(panels.rows) / static_cast<double>(clusters);
  const std::int64_t seeds = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::ceil(3 * static_cast<double>(job.k) / cluster_rows)), 1,
      std::min<std::int64_t>(Seeds::most, clusters));
  ExactLists nearest{Matrix<double>(count, seeds), Matrix<Id>(count, seeds)};
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i)
    if (!given_up[i]) order.push_back(i);
  {
    const ScanJob centroid_job{
        prefixes.view(), base.centroids.view(), Metric::l2, seeds, job.threads, job.isa, {},
        false,           4 * seeds + 4096};
    ScanStats ignored;
    scan(base.centroid_panels, centroid_job, order, nearest, ignored, {});
  }
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(nearest.ids.row(a)[0], a) < std::pair(nearest.ids.row(b)[0], b);
  });
  stats.scan_seconds += seconds_since(begin_seconds) * job.threads;

  ScanJob prefix_job = job;
  prefix_job.queries = prefixes.view();
  const Division division = divide_queries(panels, std::ssize(order), job.k, job.threads);
  const bool integer = rows.is_integer;
  const double slack = (static_cast<double>(rows.dim) + 32) * 0x1p-50;
  const std::int64_t code_bytes = (rows.dim + 63) / 64 * 64;
  // What a pair costs in the second stage and without the first, in ns of one core.
  const double second_cost = 14 + 0.02 * static_cast<double>(rows.dim);
  const double plain_cost = 0.0022 * static_cast<double>(rows.dim);
  std::mutex mutex;

  for_each_task(panels, prefix_job, order, division, progress, [&](std::int64_t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    const Task& task = loop.task;
    PackedQueries& queries = loop.queries;
    const std::int64_t n = loop.count();
    Pruner pruner(panels.duplicates, job);
    ScanStats local;
    std::vector<QueryState> states(n);
    std::vector<Seeds> seeded(n);
    AlignedArray<std::int8_t> codes(n * code_bytes);
    std::vector<double> scratch(rows.dim);
    const auto query_of = [&](std::int64_t p) { return which[order[task.query_begin + p]]; };
    for (std::int64_t p = 0; p < n; ++p) {
      QueryState& s = states[p];
      const std::int64_t query = query_of(p);
      s.coded = code_query(rows, job.queries, query, job.query_survey, scratch.data(),
                           codes.data() + p * code_bytes);
      s.squares_low = least_squares(queries.squares[p], panels.space);
      if (job.bars) s.bar = job.bars[query];
      if (integer) {
        s.best = TopK(job.k);
      } else {
        s.scale = {job.metric, s.coded.squares, s.coded.constant};
        Candidates& c = s.candidates;
        c.lowers = LargestK(job.k, s.coded.norm * s.coded.norm);
        c.exact = TopK(job.k), c.room = pruner.first_room();
        if (job.bars) c.threshold = s.scale.threshold_for(s.bar);
      }
    }

    // Tells the kernel what is known of a query.
    const auto set_threshold = [&](std::int64_t p) {
      const QueryState& s = states[p];
      const double key = integer ? std::min(s.bar, s.best.bar())
                         : s.candidates.threshold > -infinity
                             ? s.scale.key_at_least(s.candidates.threshold)
                             : infinity;
      double threshold = -infinity;
      if (key < infinity) {
        threshold = threshold_of_prefix(job.metric, key, s.squares_low, slack) -
                    2 * panels.space.slack * queries.squares[p];
      }
      GroupHead& head = queries.heads[p / max_group];
      const int lane = static_cast<int>(p % max_group);
      head.threshold[lane] = threshold;
      if (lane == head.count - 1)
        for (int q = head.count; q < max_group; ++q) head.threshold[q] = threshold;
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

    std::vector<std::int32_t> products(longest_list);
    const auto second_stage = [&](std::int64_t p, const std::uint32_t* slots, std::size_t some) {
      QueryState& s = states[p];
      rows.space.kernels->row_products(rows.codes.data(), rows.stride, slots,
                                       static_cast<std::int64_t>(some),
                                       codes.data() + p * code_bytes, rows.dim, products.data());
      for (std::size_t i = 0; i < some; ++i) {
        const std::uint32_t row = panels.ids[slots[i]];
        if (integer) {
          const double key = integer_key(rows, slots[i], products[i], s.coded);
          if (job.allowed(row) && s.best.admits(key, row)) s.best.push(key, row);
          if (!panels.duplicates.any()) continue;
          for (const std::uint32_t other : panels.duplicates.others(row))
            if (job.allowed(other) && s.best.admits(key, other)) s.best.push(key, other);
          continue;
        }
        Candidates& c = s.candidates;
        const Candidate x = interval_of(rows, slots[i], row, products[i], s.coded);
        if (x.upper < c.threshold) continue;
        if (c.pending.size() == c.pending.capacity()) c.pending.reserve(c.room);
        c.pending.push_back(x);
        c.threshold = std::max(c.threshold, c.lowers.push(x.lower));
        if (c.pending.size() >= c.room) pruner.prune(c, query_of(p), s.scale, local);
      }
    };
    // The clusters nearest to a query first.
    for (std::int64_t p = 0; p < n; ++p) {
      QueryState& s = states[p];
      Seeds& own = seeded[p];
      s.waiting.reserve(longest_list);
      double first_rows = 0;
      for (std::int64_t j = 0; j < seeds; ++j) {
        const Id cluster = nearest.ids.row(order[task.query_begin + p])[j];
        const std::uint32_t begin = base.cluster_begin[cluster];
        const std::uint32_t end = base.cluster_begin[cluster + 1];
        own.begin[own.count] = begin, own.end[own.count] = end, ++own.count;
        first_rows += end - begin;
        for (std::uint32_t slot = begin; slot < end; ++slot) {
          if (filtered && !is_allowed(panels.ids[slot])) continue;
          s.waiting.push_back(slot);
          if (s.waiting.size() < longest_list) continue;
          second_stage(p, s.waiting.data(), s.waiting.size());
          s.waiting.clear();
        }
      }
      second_stage(p, s.waiting.data(), s.waiting.size());
      s.waiting.clear();
      if (!integer) {
        pruner.prune(s.candidates, query_of(p), s.scale, local);
        pruner.tighten(s.candidates, query_of(p), s.scale,
                       std::max(2.0, static_cast<double>(panels.rows) / first_rows), local);
      } else {
        s.best.cut();
      }
      set_threshold(p);
    }

    std::vector<double> second(queries.groups, 0);
    std::vector<char> gave_up(queries.groups, 0);
    const auto take = [&](std::int64_t g, int lane, std::uint32_t* slots, int found) {
      const std::int64_t p = g * max_group + lane;
      local.hits += found, second[g] += found;
      const std::uint32_t* end = std::remove_if(slots, slots + found, [&](std::uint32_t slot) {
        return slot >= panels.rows || seeded[p].has(slot) ||
               (filtered && !is_allowed(panels.ids[slot]));
      });
      if (end == slots) return;
      second_stage(p, slots, static_cast<std::size_t>(end - slots));
      set_threshold(p);
    };
    const auto tile_done = [&](std::int64_t g, std::int64_t tile) {
      // Whether what is still to come, at the rate so far, costs more than starting again without a
      // prefix; once enough was spent for the rate to be more than that of one cluster.
      const double done = static_cast<double>(tile + 1), left = panels.tiles - done;
      const double all = static_cast<double>(panels.rows) * queries.heads[g].count * plain_cost;
      const double spent = second[g] * second_cost;
      if (spent <= 0.5 * all || spent * left <= 1.5 * all * done) return true;
      gave_up[g] = 1;
      return false;
    };
    loop.collect(list_limit, take, tile_done);
    local.scan_seconds = seconds_since(start);
    const auto rescoring = std::chrono::steady_clock::now();
    std::int64_t buffers = static_cast<std::int64_t>(queries.codes.bytes() + codes.bytes());
    std::vector<std::int64_t> dropped;
    for (std::int64_t p = 0; p < n; ++p) {
      QueryState& s = states[p];
      const std::int64_t query = query_of(p);
      buffers += static_cast<std::int64_t>(s.candidates.pending.capacity() * sizeof(Candidate) +
                                           longest_list * 4);
      if (gave_up[p / max_group]) {
        dropped.push_back(order[task.query_begin + p]);
      } else if (integer) {
        s.best.finish();
        write_list(s.best, job.k, out.keys.row(query), out.ids.row(query));
      } else {
        pruner.finish(s.candidates, query, s.scale, out.keys.row(query), out.ids.row(query), local);
      }
      s.candidates.pending = {};
    }
    local.rescore_seconds = seconds_since(rescoring);
    std::lock_guard lock(mutex);
    for (const std::int64_t place : dropped) given_up[place] = 1;
    stats.hits += local.hits, stats.survivors += local.survivors;
    stats.scan_seconds += local.scan_seconds, stats.rescore_seconds += local.rescore_seconds;
    stats.buffer_bytes =
        std::max(stats.buffer_bytes,
                 buffers * std::min<std::int64_t>(
                               job.threads, static_cast<std::int64_t>(division.tasks.size())));
  });

  std::vector<std::int64_t> again;
  for (std::int64_t place = 0; place < count; ++place)
    if (given_up[place]) again.push_back(which[place]);
  return again;
}

}  // namespace knear::detail
