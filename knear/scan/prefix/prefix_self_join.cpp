// The scan in two stages of a base against itself: each pair of rows is scored once, for both.
//
// Rows lie in the order of clusters. First every row is held against those of its own block, a
// cluster or a few small ones, which gives each a bar; then each row, as a query, against the rows
// behind it. What passes for either of the two is scored on all coordinates and offered to both
// lists. The half of the first stage that is saved is the half that the others have done.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/prefix/second_stage.hpp"
#include "knear/scan/tile_loop.hpp"

namespace knear::detail {
namespace {

// Rows of a block at most, since all of its pairs are scored.
std::int64_t most_seeds(std::int64_t k) { return std::max<std::int64_t>(2048, 6 * k); }

// Slots [begin[i], begin[i + 1]) are one block, of several times k rows: whole clusters, or parts
// of a large one.
std::vector<std::uint32_t> seed_blocks(const PrefixBase& base, std::int64_t k) {
  std::vector<std::uint32_t> begin{0};
  const std::int64_t rows = base.panels.rows, most = most_seeds(k);
  for (const std::uint32_t end : base.cluster_begin) {
    while (end - begin.back() > most)
      begin.push_back(begin.back() + static_cast<std::uint32_t>(most / 2));
    if (end - begin.back() >= 3 * k && rows - end >= 3 * k) begin.push_back(end);
  }
  begin.push_back(static_cast<std::uint32_t>(rows));
  return begin;
}

// A hit as the other row of the pair sees it.
ScoreInterval seen_from(const KeyScale& other, const KeyScale& own, const ScoreInterval& x,
                        std::uint32_t own_row, double slack) {
  const double size =
      own.metric == Metric::l2
          ? own.squares + other.squares
          : 2 + own.squares + other.squares + std::fabs(own.constant) + std::fabs(other.constant);
  const double margin = 2 * slack * size;
  const double least = own.key_at_least(x.upper), most = own.key_at_least(x.lower);
  if (own.metric == Metric::l2)
    return {(other.squares - least) / 2 + margin, (other.squares - most) / 2 - margin, own_row};
  return {1 - least - other.constant + margin, 1 - most - other.constant - margin, own_row};
}

}  // namespace

std::int64_t self_join_bytes(std::int64_t rows, std::int64_t dim, std::int64_t k, int threads) {
  // Beside the state: what waits, the keys found (a list may have twice the room that it needs),
  // and what an allocation takes.
  return rows * (static_cast<std::int64_t>(sizeof(QueryState)) + 72 + 24 * (2 * k + 80) + 64 * k) +
         self_join_block * 4 * 128 + threads * most_seeds(k) * SecondStage::code_bytes(dim);
}

bool self_join_with_prefix(const PrefixBase& base, const ScanJob& given,
                           const std::vector<std::int64_t>& which, ExactNeighbors& out,
                           ScanStats& stats, const Progress& progress) {
  const PackedBase& panels = base.panels;
  const PerRowCodes& rows = base.codes;
  const std::int64_t n = panels.rows, columns = base.map.columns();
  const std::int64_t code_bytes = SecondStage::code_bytes(rows.dim);
  const double slack = (static_cast<double>(rows.dim) + 32) * 0x1p-50;
  ScanJob job = given, seed_job = given;
  job.pending = job.k + 24;  // there is a list for every row at once
  seed_job.pending = 2 * job.k + 80;
  const bool integer = rows.is_integer, l2 = job.metric == Metric::l2;

  std::vector<bool> wanted(static_cast<std::size_t>(job.base.rows()), false);
  for (const std::int64_t row : which) wanted[row] = true;
  std::vector<QueryState> states(static_cast<std::size_t>(n));
  // Half of the key that a row must not exceed to be of use to this one, for the kernel.
  std::vector<float> reach(static_cast<std::size_t>(panels.panels() * panel_rows), 0.0f);
  std::vector<std::mutex> locks(1024);
  const auto lock_of = [&](std::uint32_t slot) -> std::mutex& { return locks[slot % 1024]; };
  const auto reach_of = [&](double key) {
    const double squares = job.metric == Metric::cosine ? 2 * key + 8 * slack : key;
    const double half = (squares + 2 * slack * std::fabs(squares)) / 2;
    return half < 1e38 ? float_above(std::max(0.0, half)) : std::numeric_limits<float>::infinity();
  };
  const auto load_reach = [&](std::size_t slot) {
    return std::atomic_ref(reach[slot]).load(std::memory_order_relaxed);
  };
  const auto set_reach = [&](SecondStage& stage, std::uint32_t slot) {
    std::atomic_ref(reach[slot])
        .store(reach_of(stage.bound(states[slot])), std::memory_order_relaxed);
  };
  std::mutex mutex;
  const auto add = [&](const ScanStats& local) {
    std::lock_guard lock(mutex);
    stats.add(local);
  };

  const std::vector<std::uint32_t> blocks = seed_blocks(base, job.k);
  // Offers the row of a slot, coded as a query, to the lists of those that it was scored with.
  const auto offer = [&](SecondStage& stage, std::uint32_t row, const CodedQuery& coded,
                         const std::uint32_t* slots, std::size_t count,
                         const std::int32_t* products, bool alone, ScanStats& local) {
    const KeyScale own{job.metric, coded.squares, coded.constant};
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t slot = slots[i];
      const double key = integer ? integer_key(rows, slot, products[i], coded) : 0;
      const ScoreInterval x =
          integer ? ScoreInterval{} : interval_of(rows, slot, panels.ids[slot], products[i], coded);
      // Never more than reach_of() makes of that key.
      const double least = integer ? key : own.key_at_least(x.upper);
      if (!alone && (l2 ? least / 2 : least + 4 * slack) > static_cast<double>(load_reach(slot)))
        continue;
      const std::uint32_t other = panels.ids[slot];
      if (!wanted[other]) continue;
      std::unique_lock<std::mutex> lock;
      if (!alone) lock = std::unique_lock(lock_of(slot));
      QueryState& state = states[slot];
      if (integer)
        stage.take_key(state.best, key, row);
      else
        stage.take_interval(state.candidates, other, state.scale,
                            seen_from(state.scale, own, x, row, slack), local);
      if (!alone) set_reach(stage, slot);
    }
  };

  Reporter seeding(progress, "seed", std::ssize(blocks) - 1);
  parallel_for(job.threads, std::ssize(blocks) - 1, [&](std::int64_t block) {
    seeding.add(1);
    const auto start = std::chrono::steady_clock::now();
    SecondStage stage(base, seed_job);
    ScanStats local;
    const std::uint32_t first = blocks[block], last = blocks[block + 1];
    AlignedArray<std::int8_t> codes((last - first) * code_bytes);
    std::vector<std::uint32_t> slots(longest_list);
    for (std::uint32_t slot = first; slot < last; ++slot)
      states[slot] = stage.begin(panels.ids[slot], codes.data() + (slot - first) * code_bytes);
    for (std::uint32_t slot = first; slot < last; ++slot) {
      const std::uint32_t row = panels.ids[slot];
      QueryState& s = states[slot];
      for (std::uint32_t from = slot; from < last; from += longest_list) {
        const std::size_t some = std::min<std::size_t>(longest_list, last - from);
        for (std::size_t i = 0; i < some; ++i) slots[i] = from + static_cast<std::uint32_t>(i);
        const std::int32_t* products =
            stage.score(codes.data() + (slot - first) * code_bytes, slots.data(), some);
        const std::size_t itself = from == slot;
        offer(stage, row, s.coded, slots.data() + itself, some - itself, products + itself, true,
              local);
        if (wanted[row])
          stage.take(s, row, codes.data() + (slot - first) * code_bytes, slots.data(), some, local);
      }
    }
    for (std::uint32_t slot = first; slot < last; ++slot) {
      QueryState& s = states[slot];
      if (!wanted[panels.ids[slot]]) continue;
      stage.tighten(s, panels.ids[slot], static_cast<double>(n) / (last - first), local);
      s.candidates.pending.shrink_to_fit();
      s.candidates.room = static_cast<std::size_t>(job.most_pending()) + 1;
      set_reach(stage, slot);
    }
    local.scan_seconds = local.seed_seconds = seconds_since(start);
    add(local);
  });

  // Where second stages cost more than scoring all pairs would, and than taking in the rows that
  // pass in any scan, there is no use in going on.
  const MachinePeaks& peaks = *job.peaks;
  const double second_cost = second_stage_seconds(rows.dim, peaks);
  const double k = static_cast<double>(job.k), all = static_cast<double>(n);
  const double usual_cost =
      2.5 * all * hit_seconds(job.k, false, peaks) * k * (1 + std::log(std::max(1.0, all / k)));
  const double plain_cost = 0.5 * pair_seconds(ScanOp::int8, rows.dim, peaks);
  std::atomic<bool> useless = false;
  std::atomic<std::int64_t> seconds_done = 0, pairs_done = 0;
  // Many tasks, since those of the first rows are the longest.
  const auto task_size = [&](std::int64_t count) {
    return std::clamp<std::int64_t>(count / (16 * job.threads) / 12 * 12, 12,
                                    queries_in_block(job.k) / 24 * 12);
  };
  const std::int64_t tile_rows = panels.panels_per_tile * panel_rows;
  std::int64_t all_tiles = 0;
  for (std::int64_t first_slot = 0; first_slot < n; first_slot += self_join_block) {
    const std::int64_t count = std::min(self_join_block, n - first_slot), size = task_size(count);
    for (std::int64_t q = 0; q < count; q += size)
      all_tiles += panels.tiles - (first_slot + q) / tile_rows;
  }
  Reporter reporter(progress, "join", all_tiles);
  for (std::int64_t first_slot = 0; first_slot < n && !useless; first_slot += self_join_block) {
    const std::int64_t count = std::min(self_join_block, n - first_slot);
    Matrix<float> prefixes(count, columns);
    parallel_for(job.threads, (count + 63) / 64, [&](std::int64_t task) {
      PrefixMapper mapper(base.map);
      for (std::int64_t i = task * 64; i < std::min(count, task * 64 + 64); ++i)
        mapper.add(job.queries, panels.ids[first_slot + i], prefixes.row(i));
      mapper.finish();
    });
    ScanJob prefix_job = job;
    prefix_job.queries = prefixes.view();
    std::vector<std::int64_t> places(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) places[i] = i;
    Division division{group_12, 1, {}};
    const std::int64_t size = task_size(count);
    for (std::int64_t q = 0; q < count; q += size)
      division.tasks.push_back(
          {q, std::min(count, q + size), (first_slot + q) / tile_rows, panels.tiles});

    for_each_task(
        panels, prefix_job, places, division, reporter, [&](std::int64_t, TileLoop& loop) {
          const auto start = std::chrono::steady_clock::now();
          PackedQueries& queries = loop.queries;
          const std::int64_t own = loop.count();
          const std::int64_t begin = first_slot + loop.task.query_begin;
          SecondStage stage(base, job);
          ScanStats local;
          AlignedArray<std::int8_t> codes(own * code_bytes);
          std::vector<CodedQuery> coded(static_cast<std::size_t>(own));
          std::vector<double> scratch(static_cast<std::size_t>(rows.dim));
          std::vector<float> near(static_cast<std::size_t>(panels.panels_per_tile * panel_rows));
          for (std::int64_t p = 0; p < own; ++p) {
            coded[p] = code_query(rows, job.queries, panels.ids[begin + p], job.query_range,
                                  scratch.data(), codes.data() + p * code_bytes);
            queries.heads[p / max_group].top[p % max_group] =
                least_squares(queries.squares[p], panels.space) / 2 -
                2 * panels.space.slack * queries.squares[p];
          }
          std::vector<std::uint32_t> block_end(static_cast<std::size_t>(own));
          for (std::int64_t p = 0; p < own; ++p)
            block_end[p] = *std::upper_bound(blocks.begin(), blocks.end(),
                                             static_cast<std::uint32_t>(begin + p));
          std::int64_t tile_panel = -1;
          const auto enter = [&](TileArgs& args, std::int64_t g) {
            if (args.panel != tile_panel) {  // a new tile
              tile_panel = args.panel;
              for (std::size_t i = 0; i < near.size(); ++i)
                near[i] = load_reach(static_cast<std::size_t>(tile_panel * panel_rows) + i);
              args.row_reach = near.data(), args.reach_panel = tile_panel;
            }
            GroupHead& head = queries.heads[g];
            const std::int64_t first = begin + g * max_group;
            for (int q = 0; q < max_group; ++q) {
              const int lane = std::min(q, head.count - 1);
              head.top[q] = head.top[lane];
              head.threshold[q] =
                  head.top[lane] -
                  static_cast<double>(load_reach(static_cast<std::size_t>(first + lane)));
            }
            args.panel = std::max(args.panel, first / panel_rows);
          };
          const auto take = [&](std::int64_t g, int lane, std::uint32_t* slots, int passed) {
            const std::int64_t p = g * max_group + lane;
            const std::uint32_t slot = static_cast<std::uint32_t>(begin + p);
            const std::uint32_t behind = block_end[p];
            std::uint32_t* end = std::remove_if(slots, slots + passed, [&](std::uint32_t other) {
              return other < behind || other >= n;
            });
            const std::size_t some = static_cast<std::size_t>(end - slots);
            local.hits += static_cast<std::int64_t>(some);
            if (some == 0) return;
            const std::uint32_t row = panels.ids[slot];
            const std::int32_t* products = stage.score(codes.data() + p * code_bytes, slots, some);
            offer(stage, row, coded[p], slots, some, products, false, local);
            if (!wanted[row]) return;
            std::lock_guard lock(lock_of(slot));
            stage.take(states[slot], row, codes.data() + p * code_bytes, slots, some, local);
            set_reach(stage, slot);
          };
          std::int64_t before = 0;
          const auto tile_done = [&](std::int64_t g, std::int64_t tile) {
            if (g + 1 < queries.groups) return !useless;
            seconds_done += local.hits - before, before = local.hits;
            pairs_done += own * std::min(panels.panels_per_tile * panel_rows,
                                         n - tile * panels.panels_per_tile * panel_rows);
            const double spent = static_cast<double>(seconds_done) * second_cost;
            const double plain = static_cast<double>(pairs_done) * plain_cost;
            if (spent > 2 * plain + usual_cost) useless = true;
            return !useless;
          };
          loop.clock.charge(loop.clock.queries);
          loop.self_join(list_limit, enter, take, tile_done);
          loop.clock.report(local);
          local.scan_seconds = seconds_since(start);
          add(local);
        });
  }
  if (useless) return false;

  std::int64_t pending = 0;
  parallel_for(job.threads, (n + 255) / 256, [&](std::int64_t task) {
    const auto start = std::chrono::steady_clock::now();
    SecondStage stage(base, job);
    ScanStats local;
    std::int64_t bytes = 0;
    for (std::int64_t slot = task * 256; slot < std::min(n, task * 256 + 256); ++slot) {
      const std::uint32_t row = panels.ids[slot];
      if (!wanted[row]) continue;
      QueryState& s = states[slot];
      bytes += static_cast<std::int64_t>(
          s.candidates.pending.capacity() * sizeof(ScoreInterval) +
          (s.candidates.exact.items().capacity() + s.best.items().capacity()) * sizeof(TopK::Item));
      stage.finish(s, row, out.keys.row(row), out.ids.row(row), local);
      s.candidates.pending = {};
      if (!panels.duplicates.any()) continue;
      for (const std::uint32_t copy : panels.duplicates.others(row)) {
        std::copy_n(out.keys.row(row), job.k, out.keys.row(copy));
        std::copy_n(out.ids.row(row), job.k, out.ids.row(copy));
      }
    }
    local.rescore_seconds = seconds_since(start);
    add(local);
    std::lock_guard lock(mutex);
    pending += bytes;
  });
  stats.buffer_bytes =
      std::max(stats.buffer_bytes,
               pending + n * static_cast<std::int64_t>(sizeof(QueryState) + sizeof(float) + 48));
  return true;
}

}  // namespace knear::detail
