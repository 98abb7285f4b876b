// The scan in two stages of a base against itself: each pair of rows is scored once, for both.
//
// Rows lie in the order of clusters. First every row is scored against those of its own block, a
// cluster or a few small ones, which gives each an upper bound; then each row, as a query, against
// the rows behind it. What passes for either of the two is scored on all coordinates and offered to
// both lists. The half of the first stage that is saved is the half that the others have done.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/cost/plan.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/prefix/second_stage.hpp"
#include "knear/scan/scan_driver.hpp"

namespace knear::detail {
namespace {

using Clock = std::chrono::steady_clock;

// Rows that wait to be measured for one row at most: there is a list for every row at once.
std::int64_t pending_of(std::int64_t k) { return k + 24; }

// Rows of a block at most, since all of its pairs are scored.
std::int64_t most_block_rows(std::int64_t k) { return std::max<std::int64_t>(2048, 6 * k); }

// Slots [begin[i], begin[i + 1]) are one block, of several times k rows: whole clusters, or parts
// of a large one.
std::vector<std::uint32_t> blocks_of(const PrefixBase& base, std::int64_t k) {
  std::vector<std::uint32_t> begin{0};
  const std::int64_t rows = base.panels.rows, most = most_block_rows(k);
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

// What all phases share: a state and a reach for every row, by slot.
class SelfJoin {
 public:
  SelfJoin(const PrefixBase& base, const ScanJob& given, const std::vector<std::int64_t>& which,
           ScanStats& stats, const Progress& progress)
      : base_(base),
        panels_(base.panels),
        rows_(base.codes),
        job_(with_pending(given, pending_of(given.k))),
        stats_(stats),
        progress_(progress),
        blocks_(blocks_of(base, given.k)),
        wanted_(static_cast<std::size_t>(given.base.rows()), false),
        states_(static_cast<std::size_t>(panels_.rows)),
        reach_(static_cast<std::size_t>(panels_.panels() * panel_rows), 0.0f),
        locks_(1024) {
    for (const std::int64_t row : which) wanted_[static_cast<std::size_t>(row)] = true;
  }

  // Scores the pairs of each block, so that every row has a bound.
  void score_blocks() {
    const ScanJob block_job = with_pending(job_, 2 * job_.k + 80);
    Reporter reporter(progress_, "score own clusters", std::ssize(blocks_) - 1);
    parallel_for(job_.threads, std::ssize(blocks_) - 1, [&](std::int64_t block) {
      reporter.add(1);
      const auto start = Clock::now();
      SecondStage stage(base_, block_job);
      ScanStats local;
      const auto b = static_cast<std::size_t>(block);
      SecondStage later(base_, job_);
      score_block(stage, later, blocks_[b], blocks_[b + 1], local);
      local.scan_seconds = local.seed_seconds = seconds_since(start);
      add(local);
    });
  }

  // Scores every row against the rows behind its block. False where second stages cost more than
  // scoring all pairs would, and than taking in the rows that pass in any scan.
  bool score_pairs() {
    Reporter reporter(progress_, "self-join", all_tiles());
    for (std::int64_t first = 0; first < panels_.rows && !useless_; first += self_join_block)
      score_rows(first, std::min(self_join_block, panels_.rows - first), reporter);
    return !useless_;
  }

  // Measures what is left and writes the answers.
  void finish(ExactNeighbors& out) {
    constexpr std::int64_t block = 256;
    const std::int64_t n = panels_.rows;
    parallel_for(job_.threads, (n + block - 1) / block, [&](std::int64_t task) {
      const auto start = Clock::now();
      SecondStage stage(base_, job_);
      ScanStats local;
      std::int64_t bytes = 0;
      for (std::int64_t slot = task * block; slot < std::min(n, task * block + block); ++slot)
        bytes += finish_row(stage, static_cast<std::uint32_t>(slot), out, local);
      local.rescore_seconds = seconds_since(start);
      add(local);
      pending_bytes_ += bytes;
    });
    stats_.buffer_bytes = std::max(
        stats_.buffer_bytes,
        pending_bytes_ + n * static_cast<std::int64_t>(sizeof(QueryState) + sizeof(float) + 48));
  }

 private:
  friend class SelfJoinTask;

  static ScanJob with_pending(ScanJob job, std::int64_t pending) {
    job.pending = pending;
    return job;
  }
  void add(const ScanStats& local) {
    std::lock_guard lock(mutex_);
    stats_.add(local);
  }
  std::int64_t tile_rows() const { return panels_.panels_per_tile * panel_rows; }
  std::mutex& lock_of(std::uint32_t slot) { return locks_[slot % 1024]; }

  // Half of the key that another row must not exceed to be of use to a row, for the kernel.
  float load_reach(std::size_t slot) {
    return std::atomic_ref(reach_[slot]).load(std::memory_order_relaxed);
  }
  void publish_reach(SecondStage& stage, std::uint32_t slot) {
    const double key = stage.bound(states_[slot]);
    const double squares = job_.metric == Metric::cosine ? 2 * key + 8 * slack_ : key;
    const double half = (squares + 2 * slack_ * std::fabs(squares)) / 2;
    const float reach =
        half < 1e38 ? float_above(std::max(0.0, half)) : std::numeric_limits<float>::infinity();
    std::atomic_ref(reach_[slot]).store(reach, std::memory_order_relaxed);
  }

  // A row that is a query: its number, its slot's codes, the products with some slots and what they
  // are worth (SecondStage::rate()).
  struct Scored {
    std::uint32_t row;
    const CodedQuery& coded;
    const std::uint32_t* slots;
    std::size_t count;
    const std::int32_t* products;
    const double* best;
  };
  // Offers a row to the lists of those that it was scored with. `alone`: no other thread has them.
  void offer(SecondStage& stage, const Scored& scored, bool alone, ScanStats& local) {
    const bool integer = rows_.is_integer, l2 = job_.metric == Metric::l2;
    const KeyScale own{job_.metric, scored.coded.squares, scored.coded.constant};
    for (std::size_t i = 0; i < scored.count; ++i) {
      const std::uint32_t slot = scored.slots[i];
      // Never more than publish_reach() makes of that key.
      const double least = integer ? scored.best[i] : own.key_at_least(scored.best[i]);
      if ((l2 ? least / 2 : least + 4 * slack_) > static_cast<double>(load_reach(slot))) continue;
      const std::uint32_t other = panels_.ids[slot];
      if (!wanted_[other]) continue;
      std::unique_lock<std::mutex> lock;
      if (!alone) lock = std::unique_lock(lock_of(slot));
      QueryState& state = states_[slot];
      if (integer)
        stage.take_key(state.best, least, scored.row);
      else
        stage.take_interval(
            state.candidates, other, state.scale,
            seen_from(state.scale, own,
                      interval_of(rows_, slot, other, scored.products[i], scored.coded), scored.row,
                      slack_),
            local);
      publish_reach(stage, slot);
    }
  }

  // later: the stage of what follows, for which fewer rows may wait.
  void score_block(SecondStage& stage, SecondStage& later, std::uint32_t first, std::uint32_t last,
                   ScanStats& local) {
    AlignedArray<std::int8_t> codes((last - first) * code_bytes_);
    const auto codes_of = [&](std::uint32_t slot) {
      return codes.data() + (slot - first) * code_bytes_;
    };
    std::vector<std::uint32_t> slots(longest_list);
    for (std::uint32_t slot = first; slot < last; ++slot) {
      states_[slot] = stage.begin(panels_.ids[slot], codes_of(slot));
      if (wanted_[panels_.ids[slot]]) reach_[slot] = std::numeric_limits<float>::infinity();
    }
    for (std::uint32_t slot = first; slot < last; ++slot) {
      const std::uint32_t row = panels_.ids[slot];
      QueryState& s = states_[slot];
      for (std::uint32_t from = slot; from < last; from += longest_list) {
        const std::size_t some = std::min<std::size_t>(longest_list, last - from);
        std::iota(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(some), from);
        const std::int32_t* products = stage.score(codes_of(slot), slots.data(), some);
        const double* best = stage.rate(s.coded, slots.data(), some);
        const std::size_t itself = from == slot;
        offer(
            stage,
            {row, s.coded, slots.data() + itself, some - itself, products + itself, best + itself},
            true, local);
        if (wanted_[row]) stage.take(s, row, codes_of(slot), slots.data(), some, local);
      }
    }
    for (std::uint32_t slot = first; slot < last; ++slot) {
      QueryState& s = states_[slot];
      if (!wanted_[panels_.ids[slot]]) continue;
      const double times = static_cast<double>(panels_.rows) / (last - first);
      stage.tighten(s, panels_.ids[slot], times, local);
      if (std::ssize(s.candidates.pending) > job_.most_pending())
        later.refiner().prune(s.candidates, panels_.ids[slot], s.scale, local);
      s.candidates.pending.shrink_to_fit();
      s.candidates.room = static_cast<std::size_t>(job_.most_pending()) + 1;
      publish_reach(stage, slot);
    }
  }

  // Queries of a task. There are many tasks, since those of the first rows are the longest.
  std::int64_t task_size(std::int64_t count) const {
    return std::clamp<std::int64_t>(count / (16 * job_.threads) / max_group * max_group, max_group,
                                    queries_in_block(job_.k) / 24 * max_group);
  }
  std::int64_t all_tiles() const {
    std::int64_t sum = 0;
    for (std::int64_t first = 0; first < panels_.rows; first += self_join_block) {
      const std::int64_t count = std::min(self_join_block, panels_.rows - first);
      for (std::int64_t q = 0; q < count; q += task_size(count))
        sum += panels_.tiles - (first + q) / tile_rows();
    }
    return sum;
  }

  // Rows [first, first + count) as queries against what lies behind them.
  void score_rows(std::int64_t first, std::int64_t count, Reporter& reporter);
  std::int64_t finish_row(SecondStage& stage, std::uint32_t slot, ExactNeighbors& out,
                          ScanStats& local) {
    const std::uint32_t row = panels_.ids[slot];
    if (!wanted_[row]) return 0;
    QueryState& s = states_[slot];
    const auto bytes = static_cast<std::int64_t>(
        s.candidates.pending.capacity() * sizeof(ScoreInterval) +
        (s.candidates.exact.items().capacity() + s.best.items().capacity()) * sizeof(TopK::Item));
    stage.finish(s, row, out.keys.row(row), out.ids.row(row), local);
    s.candidates.pending = {};
    if (panels_.duplicates.any())
      for (const std::uint32_t copy : panels_.duplicates.others(row)) {
        std::copy_n(out.keys.row(row), job_.k, out.keys.row(copy));
        std::copy_n(out.ids.row(row), job_.k, out.ids.row(copy));
      }
    return bytes;
  }

  const PrefixBase& base_;
  const PackedBase& panels_;
  const PerRowCodes& rows_;
  const ScanJob job_;
  ScanStats& stats_;
  const Progress& progress_;
  const std::int64_t code_bytes_ = SecondStage::code_bytes(rows_.dim);
  const double slack_ = (static_cast<double>(rows_.dim) + 32) * 0x1p-50;
  const std::vector<std::uint32_t> blocks_;
  std::vector<bool> wanted_;  // by row
  std::vector<QueryState> states_;
  std::vector<float> reach_;
  std::vector<std::mutex> locks_;
  std::mutex mutex_;
  std::atomic<bool> useless_ = false;
  std::atomic<std::int64_t> passed_ = 0, pairs_ = 0, pending_bytes_ = 0;
};

// The accumulator of a task: rows as queries, in groups of 12.
class SelfJoinTask {
 public:
  SelfJoinTask(SelfJoin& all, std::int64_t first_slot, TileLoop& loop, ScanStats& stats)
      : all_(all),
        loop_(loop),
        stats_(stats),
        begin_(first_slot),
        stage_(all.base_, all.job_),
        codes_(loop.count() * all.code_bytes_),
        coded_(static_cast<std::size_t>(loop.count())),
        block_end_(coded_.size()),
        tile_reach_(static_cast<std::size_t>(all.tile_rows())) {
    // What second stages may cost: twice all pairs of this base, and rows that pass in any scan.
    const MachinePeaks& peaks = *all.job_.peaks;
    const double k = static_cast<double>(all.job_.k), n = static_cast<double>(all.panels_.rows);
    second_cost_ = second_stage_seconds(all.rows_.dim, peaks);
    plain_cost_ = 0.5 * pair_seconds(ScanOp::int8, all.rows_.dim, peaks);
    usual_cost_ =
        2.5 * n * hit_seconds(all.job_.k, false, peaks) * k * (1 + std::log(std::max(1.0, n / k)));
  }

  void begin() {
    std::vector<double> scratch(static_cast<std::size_t>(all_.rows_.dim));
    const double panel_slack = all_.panels_.space.slack;
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      const auto place = static_cast<std::size_t>(q);
      coded_[place] = code_query(all_.rows_, all_.job_.queries, row(q), all_.job_.query_range,
                                 scratch.data(), codes(q));
      const double squares = loop_.queries.squares[place];
      loop_.queries.heads[static_cast<std::size_t>(q / max_group)].top[q % max_group] =
          least_squares(squares, all_.panels_.space) / 2 - 2 * panel_slack * squares;
      block_end_[place] = *std::upper_bound(all_.blocks_.begin(), all_.blocks_.end(), slot(q));
    }
    loop_.clock.charge(loop_.clock.queries);
  }

  // Before the kernel goes over a tile: the reach of its rows, and the queries' own.
  void enter(TileArgs& args, std::int64_t g) {
    if (args.panel != tile_panel_) {  // a new tile
      tile_panel_ = args.panel;
      for (std::size_t i = 0; i < tile_reach_.size(); ++i)
        tile_reach_[i] = all_.load_reach(static_cast<std::size_t>(tile_panel_ * panel_rows) + i);
      args.row_reach = tile_reach_.data(), args.reach_panel = tile_panel_;
    }
    GroupHead& head = loop_.queries.heads[static_cast<std::size_t>(g)];
    const std::int64_t first = g * max_group;
    for (int q = 0; q < max_group; ++q) {
      const int lane = std::min(q, head.count - 1);
      head.top[q] = head.top[lane];
      head.threshold[q] = head.top[lane] - static_cast<double>(all_.load_reach(slot(first + lane)));
    }
    args.panel = std::max(args.panel, std::int64_t{slot(first)} / panel_rows);
  }

  void take_list(std::int64_t g, int lane, std::uint32_t* slots, int count) {
    const std::int64_t q = g * max_group + lane;
    const std::uint32_t behind = block_end_[static_cast<std::size_t>(q)];
    std::uint32_t* const end = std::remove_if(slots, slots + count, [&](std::uint32_t other) {
      return other < behind || other >= all_.panels_.rows;
    });
    const auto some = static_cast<std::size_t>(end - slots);
    stats_.hits += static_cast<std::int64_t>(some);
    if (some == 0) return;
    const CodedQuery& coded = coded_[static_cast<std::size_t>(q)];
    const std::int32_t* products = stage_.score(codes(q), slots, some);
    const double* best = stage_.rate(coded, slots, some);
    all_.offer(stage_, {row(q), coded, slots, some, products, best}, false, stats_);
    if (!all_.wanted_[row(q)]) return;
    std::lock_guard lock(all_.lock_of(slot(q)));
    stage_.take(all_.states_[slot(q)], row(q), codes(q), slots, some, stats_);
    all_.publish_reach(stage_, slot(q));
  }

  bool tile_done(std::int64_t g, std::int64_t seen) {
    if (g + 1 < loop_.queries.groups) return !all_.useless_;
    const std::int64_t first_row =
        loop_.task.panel_begin * panel_rows + (seen - 1) * all_.tile_rows();
    all_.passed_ += stats_.hits - counted_, counted_ = stats_.hits;
    all_.pairs_ += loop_.count() * std::min(all_.tile_rows(), all_.panels_.rows - first_row);
    const double spent = static_cast<double>(all_.passed_) * second_cost_;
    const double plain = static_cast<double>(all_.pairs_) * plain_cost_;
    if (spent > 2 * plain + usual_cost_) all_.useless_ = true;
    return !all_.useless_;
  }
  std::int64_t finish(ScanStats&) const { return 0; }  // SelfJoin::finish counts the states
  void hand_over() {}

 private:
  std::uint32_t slot(std::int64_t q) const { return static_cast<std::uint32_t>(begin_ + q); }
  std::uint32_t row(std::int64_t q) const { return all_.panels_.ids[slot(q)]; }
  std::int8_t* codes(std::int64_t q) { return codes_.data() + q * all_.code_bytes_; }

  SelfJoin& all_;
  TileLoop& loop_;
  ScanStats& stats_;
  const std::int64_t begin_;  // the slot of the first query
  SecondStage stage_;
  AlignedArray<std::int8_t> codes_;
  std::vector<CodedQuery> coded_;
  std::vector<std::uint32_t> block_end_;  // where the rows behind a query's block begin
  std::vector<float> tile_reach_;
  std::int64_t tile_panel_ = -1, counted_ = 0;
  double second_cost_, plain_cost_, usual_cost_;
};

void SelfJoin::score_rows(std::int64_t first, std::int64_t count, Reporter& reporter) {
  Matrix<float> prefixes(count, base_.map.columns());
  constexpr std::int64_t block = 64;
  parallel_for(job_.threads, (count + block - 1) / block, [&](std::int64_t task) {
    PrefixMapper mapper(base_.map, 16);
    for (std::int64_t i = task * block; i < std::min(count, task * block + block); ++i)
      mapper.add(job_.queries, panels_.ids[static_cast<std::size_t>(first + i)], prefixes.row(i));
    mapper.finish();
  });
  ScanJob prefix_job = job_;
  prefix_job.queries = prefixes.view();
  WorkTable table;
  table.queries.resize(static_cast<std::size_t>(count));
  std::iota(table.queries.begin(), table.queries.end(), 0);
  const std::int64_t size = task_size(count);
  for (std::int64_t q = 0; q < count; q += size)
    table.add(std::min(count - q, size),
              {{(first + q) / tile_rows() * panels_.panels_per_tile, panels_.panels()}});
  run_tasks(panels_, prefix_job, table, stats_, reporter, [&](TileLoop& loop, ScanStats& local) {
    const QuerySet& set = table.sets[static_cast<std::size_t>(loop.task.set)];
    return SelfJoinTask(*this, first + set.begin, loop, local);
  });
}

}  // namespace

std::int64_t self_join_bytes(std::int64_t rows, std::int64_t dim, std::int64_t k, int threads) {
  // Beside the state: what waits, in a list with room for half as many and 24 more, the keys found
  // (a list may have twice the room that it needs), and what an allocation takes.
  const std::int64_t waiting = pending_of(k) + pending_of(k) / 2 + 24;
  return rows * (static_cast<std::int64_t>(sizeof(QueryState)) + 72 + 24 * waiting + 64 * k) +
         self_join_block * 4 * 128 + threads * most_block_rows(k) * SecondStage::code_bytes(dim);
}

bool self_join_with_prefix(const PrefixBase& base, const ScanJob& job,
                           const std::vector<std::int64_t>& which, ExactNeighbors& out,
                           ScanStats& stats, const Progress& progress) {
  SelfJoin self_join(base, job, which, stats, progress);
  self_join.score_blocks();
  if (!self_join.score_pairs()) return false;
  self_join.finish(out);
  return true;
}

}  // namespace knear::detail
