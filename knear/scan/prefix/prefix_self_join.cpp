// The scan in two stages of a base against itself: each pair of rows is scored once, for both.
//
// Rows lie in the order of clusters. First every row is scored against those of its own block, a
// cluster or a few small ones, which gives each an upper bound; then each row, as a query, against
// the rows behind it. What passes for either of the two is scored on all coordinates and offered to
// both lists. The half of the first stage that is saved is the half that the others have done.
//
// The largest products of a row are not those with its own cluster. For ip it is scored first, for
// its bound alone, against the clusters that a query like it would be, and then against itself and
// the rows behind it.
#include "knear/scan/prefix/prefix_self_join.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "knear/core/spin_lock.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/plan.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/prefix/prefix_scan.hpp"
#include "knear/scan/prefix/second_stage.hpp"
#include "knear/scan/scan_driver.hpp"

namespace knear::detail {
namespace {

using Clock = std::chrono::steady_clock;

// Rows that wait to be measured for one row at most: there is a list for every row at once.
std::int64_t pending_of(std::int64_t k) { return k + 24; }

// Rows that look for their nearest clusters at a time.
constexpr std::int64_t seeded_at_once = 16384;

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
  if (traits_of(own.metric).product) {
    // A shift, of which the additions alone are rounded, and that to a key again.
    const double shift = std::fabs(own.constant) + std::fabs(other.constant);
    return {x.upper + own.constant - other.constant + 0x1p-49 * (std::fabs(x.upper) + shift),
            x.lower + own.constant - other.constant - 0x1p-49 * (std::fabs(x.lower) + shift),
            own_row};
  }
  const double size =
      traits_of(own.metric).squared
          ? own.squares + other.squares
          : 2 + own.squares + other.squares + std::fabs(own.constant) + std::fabs(other.constant);
  const double margin = 2 * slack * size;
  const double least = own.key_at_least(x.upper), most = own.key_at_least(x.lower);
  if (traits_of(own.metric).squared)
    return {(other.squares - least) / 2 + margin, (other.squares - most) / 2 - margin, own_row};
  return {1 - least - other.constant + margin, 1 - most - other.constant - margin, own_row};
}

// What is known of a row, and who changes it.
struct LockedState {
  QueryState state;
  SpinLock lock;
};

// What all phases share: a state and a reach for every row, by slot.
class SelfJoin {
 public:
  SelfJoin(const PrefixBase& base, const ScanJob& given, const std::vector<std::int64_t>& which,
           ScanStats& stats, const Progress& progress, MatrixView<float> prefixes)
      : base_(base),
        panels_(base.panels),
        rows_(base.codes),
        job_(with_pending(given, pending_of(given.k))),
        stats_(stats),
        progress_(progress),
        prefixes_(prefixes),
        blocks_(blocks_of(base, given.k)),
        wanted_(given.base.rows(), false),
        states_(panels_.rows),
        reach_(panels_.panels() * panel_rows) {
    for (std::atomic<float>& reach : reach_) reach.store(no_reach, std::memory_order_relaxed);
    for (const std::int64_t row : which) wanted_[row] = true;
    if (traits_of(job_.metric).product)
      origin_ = dot(base.map.parts().mean.data(), base.map.parts().mean.data(), base.map.dim());
  }

  // Scores every row against some that are likely to be near, so that it has a bound.
  void find_bounds() {
    if (traits_of(job_.metric).product)
      score_clusters();
    else
      score_blocks();
  }

  // Scores the pairs of each block, and keeps them.
  void score_blocks() {
    const ScanJob block_job = with_pending(job_, 2 * job_.k + 80);
    Reporter reporter(progress_, "score own clusters", std::ssize(blocks_) - 1);
    parallel_for(job_.threads, std::ssize(blocks_) - 1, [&](std::int64_t block) {
      reporter.add(1);
      const auto start = Clock::now();
      SecondStage stage(base_, block_job);
      ScanStats local;
      const std::size_t b = block;
      SecondStage later(base_, job_);
      score_block(stage, later, blocks_[b], blocks_[b + 1], local);
      local.scan_seconds = local.seed_seconds = seconds_since(start);
      add(local);
    });
  }

  // Scores every row against its nearest clusters. They are scored again with all rows, so that
  // nothing but the bound is kept.
  void score_clusters() {
    const std::int64_t rows = panels_.rows;
    Reporter reporter(progress_, "score nearest clusters", rows);
    for (std::int64_t first = 0; first < rows; first += seeded_at_once)
      score_clusters(first, std::min(seeded_at_once, rows - first), reporter);
  }

  // Scores every row against the rows behind its block. No later row is scored against one that was
  // a query, so that rows are finished as they come. False where second stages cost more than
  // scoring all pairs would, and than taking in the rows that pass in any scan.
  bool score_pairs(ExactNeighbors& out, const FinishedRows& finished) {
    Reporter reporter(progress_, "self-join", all_tiles());
    for (std::int64_t first = 0; first < panels_.rows; first += self_join_block) {
      const std::int64_t count = std::min(self_join_block, panels_.rows - first);
      score_rows(first, count, reporter);
      if (useless_) return false;
      finish(first, count, out);
      if (finished) finished(rows_of(first, count));
    }
    return true;
  }

 private:
  friend class SelfJoinTask;

  // Measures what is left of some rows and writes their answers.
  void finish(std::int64_t first, std::int64_t count, ExactNeighbors& out) {
    constexpr std::int64_t block = 256;
    const std::int64_t end = first + count;
    parallel_for(job_.threads, (count + block - 1) / block, [&](std::int64_t task) {
      const auto start = Clock::now();
      SecondStage stage(base_, job_);
      ScanStats local;
      std::int64_t bytes = 0;
      const std::int64_t from = first + task * block;
      for (std::int64_t slot = from; slot < std::min(end, from + block); ++slot)
        bytes += finish_row(stage, static_cast<std::uint32_t>(slot), out, local);
      local.rescore_seconds = seconds_since(start);
      add(local);
      pending_bytes_ += bytes;
    });
    // At most, since what waited for rows that are finished is given back.
    stats_.buffer_bytes = std::max(
        stats_.buffer_bytes,
        pending_bytes_ + prefixes_.rows() * prefixes_.cols() * 4 +
            panels_.rows * static_cast<std::int64_t>(sizeof(LockedState) + sizeof(float) + 48));
  }
  // The rows of some slots that are wanted, and their copies.
  std::vector<Id> rows_of(std::int64_t first, std::int64_t count) const {
    std::vector<Id> rows;
    for (std::int64_t slot = first; slot < first + count; ++slot) {
      const std::uint32_t row = panels_.ids[slot];
      if (!wanted_[row]) continue;
      rows.push_back(row);
      if (panels_.duplicates.any())
        for (const std::uint32_t copy : panels_.duplicates.others(row)) rows.push_back(copy);
    }
    return rows;
  }

  static ScanJob with_pending(ScanJob job, std::int64_t pending) {
    job.pending = pending;
    return job;
  }
  void add(const ScanStats& local) {
    std::lock_guard lock(mutex_);
    stats_.add(local);
  }
  std::int64_t tile_rows() const { return panels_.panels_per_tile * panel_rows; }
  QueryState& state_of(std::uint32_t slot) { return states_[slot].state; }
  SpinLock& lock_of(std::uint32_t slot) { return states_[slot].lock; }

  // What the key that another row must not exceed to be of use to a row takes off G, for the
  // kernel. Rows that are not wanted have no use for any.
  static constexpr float no_reach = std::numeric_limits<float>::lowest();
  float load_reach(std::size_t slot) { return reach_[slot].load(std::memory_order_relaxed); }
  // Products are counted from that of the mean with itself, which may be larger by far than what
  // they differ by.
  double reach_of(double key) const {
    return PrefixKeyScale::reach_of(job_.metric, slack_, key + origin_) + 0x1p-49 * origin_;
  }
  void publish_reach(SecondStage& stage, std::uint32_t slot) {
    const double exact = reach_of(stage.bound(state_of(slot)));
    const float reach =
        exact < 1e38 ? any_float_above(exact) : std::numeric_limits<float>::infinity();
    reach_[slot].store(reach, std::memory_order_relaxed);
  }
  // The first row that a row is scored with when pairs are.
  std::uint32_t behind(std::uint32_t slot) const {
    return traits_of(job_.metric).product ? slot
                                          : *std::upper_bound(blocks_.begin(), blocks_.end(), slot);
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
    const bool integer = rows_.is_integer;
    const KeyScale own{job_.metric, scored.coded.squares, scored.coded.constant};
    for (std::size_t i = 0; i < scored.count; ++i) {
      const std::uint32_t slot = scored.slots[i];
      const double least = integer ? scored.best[i] : own.key_at_least(scored.best[i]);
      if (reach_of(least) > static_cast<double>(load_reach(slot))) continue;
      const std::uint32_t other = panels_.ids[slot];
      if (!wanted_[other] || other == scored.row) continue;
      std::unique_lock<SpinLock> lock;
      if (!alone) lock = std::unique_lock(lock_of(slot));
      QueryState& state = state_of(slot);
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
      state_of(slot) = stage.begin_row(panels_.ids[slot], slot, codes_of(slot));
      if (wanted_[panels_.ids[slot]]) reach_[slot] = std::numeric_limits<float>::infinity();
    }
    for (std::uint32_t slot = first; slot < last; ++slot) {
      const std::uint32_t row = panels_.ids[slot];
      QueryState& s = state_of(slot);
      for (std::uint32_t from = slot; from < last; from += longest_list) {
        const std::size_t some = std::min<std::size_t>(longest_list, last - from);
        std::iota(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(some), from);
        const std::int32_t* products = stage.score(codes_of(slot), slots.data(), some);
        const double* best = stage.rate(s.coded, slots.data(), some);
        offer(stage, {row, s.coded, slots.data(), some, products, best}, true, local);
        if (wanted_[row]) stage.take(s, row, codes_of(slot), slots.data(), some, local);
      }
    }
    for (std::uint32_t slot = first; slot < last; ++slot) {
      QueryState& s = state_of(slot);
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

  void score_clusters(std::int64_t first, std::int64_t count, Reporter& reporter);
  void seed(SecondStage& stage, std::uint32_t slot, std::int8_t* codes, const Id* clusters,
            std::int64_t probes, ScanStats& local);

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

  struct Mapped;
  Mapped map_rows(std::int64_t first, std::int64_t count) const;
  // Rows [first, first + count) as queries against what lies behind them.
  void score_rows(std::int64_t first, std::int64_t count, Reporter& reporter);
  std::int64_t finish_row(SecondStage& stage, std::uint32_t slot, ExactNeighbors& out,
                          ScanStats& local) {
    const std::uint32_t row = panels_.ids[slot];
    if (!wanted_[row]) return 0;
    QueryState& s = state_of(slot);
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
  const MatrixView<float> prefixes_;  // of rows, if they are at hand
  const std::int64_t code_bytes_ = SecondStage::code_bytes(rows_.dim);
  const double slack_ = (static_cast<double>(rows_.dim) + 32) * 0x1p-50;
  double origin_ = 0;  // ip: the product of the mean with itself
  const std::vector<std::uint32_t> blocks_;
  std::vector<bool> wanted_;  // by row
  std::vector<LockedState> states_;
  std::vector<std::atomic<float>> reach_;
  std::mutex mutex_;
  std::atomic<bool> useless_ = false;
  std::atomic<std::int64_t> passed_ = 0, pairs_ = 0, pending_bytes_ = 0;
};

// The accumulator of a task: rows as queries, in groups of 12.
class SelfJoinTask {
 public:
  // terms: those of the task's rows, for ip.
  SelfJoinTask(SelfJoin& all, std::int64_t first_slot, const double* terms, TileLoop& loop,
               ScanStats& stats)
      : all_(all),
        loop_(loop),
        stats_(stats),
        begin_(first_slot),
        terms_(terms),
        stage_(all.base_, all.job_),
        codes_(loop.count() * all.code_bytes_),
        coded_(loop.count()),
        behind_(coded_.size()),
        tile_reach_(all.tile_rows()) {
    // What second stages may cost: twice all pairs of this base, and rows that pass in any scan.
    const MachinePeaks& peaks = *all.job_.peaks;
    const double k = static_cast<double>(all.job_.k), n = static_cast<double>(all.panels_.rows);
    second_cost_ = second_stage_seconds(all.rows_.dim, peaks);
    plain_cost_ = 0.5 * pair_seconds(ScanOp::int8, all.rows_.dim, peaks);
    usual_cost_ =
        2.5 * n * hit_seconds(all.job_.k, false, peaks) * k * (1 + std::log(std::max(1.0, n / k)));
  }

  void begin() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      const std::size_t place = q;
      coded_[place] = stage_.code_row(row(q), slot(q), codes(q));
      // Neither scaled nor, but for the term, moved: the prefix is the row's own.
      loop_.queries.heads[q / max_group].top[q % max_group] =
          PrefixKeyScale(all_.job_.metric, all_.panels_.space, all_.slack_,
                         loop_.queries.squares[place], loop_.queries.constant[place],
                         {1, terms_[q]})
              .top();
      behind_[place] = all_.behind(slot(q));
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
    GroupHead& head = loop_.queries.heads[g];
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
    const std::uint32_t behind = behind_[q];
    std::uint32_t* const end = std::remove_if(slots, slots + count, [&](std::uint32_t other) {
      return other < behind || other >= all_.panels_.rows;
    });
    const std::size_t some = end - slots;
    stats_.hits += static_cast<std::int64_t>(some);
    if (some == 0) return;
    const CodedQuery& coded = coded_[q];
    const std::int32_t* products = stage_.score(codes(q), slots, some);
    const double* best = stage_.rate(coded, slots, some);
    all_.offer(stage_, {row(q), coded, slots, some, products, best}, false, stats_);
    if (!all_.wanted_[row(q)]) return;
    std::lock_guard lock(all_.lock_of(slot(q)));
    stage_.take(all_.state_of(slot(q)), row(q), codes(q), slots, some, stats_);
    all_.publish_reach(stage_, slot(q));
  }

  bool tile_done(std::int64_t g, std::int64_t seen) {
    if (g + 1 < loop_.queries.groups) return !all_.useless_;
    const std::int64_t first_row =
        loop_.task.panels.begin * panel_rows + (seen - 1) * all_.tile_rows();
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
  const double* const terms_;
  SecondStage stage_;
  AlignedArray<std::int8_t> codes_;
  std::vector<CodedQuery> coded_;
  std::vector<std::uint32_t> behind_;  // the first row that a query is scored with
  std::vector<float> tile_reach_;
  std::int64_t tile_panel_ = -1, counted_ = 0;
  double second_cost_, plain_cost_, usual_cost_;
};

// Prefixes and, for ip, terms of rows.
struct SelfJoin::Mapped {
  Matrix<float> prefixes;
  std::vector<double> terms;
};

SelfJoin::Mapped SelfJoin::map_rows(std::int64_t first, std::int64_t count) const {
  Mapped out{Matrix<float>::unset(count, base_.map.columns()), std::vector<double>(count)};
  constexpr std::int64_t block = 64;
  parallel_for(job_.threads, (count + block - 1) / block, [&](std::int64_t task) {
    const std::int64_t end = std::min(count, task * block + block);
    PrefixMapper mapper(base_.map, 16);
    for (std::int64_t i = task * block; i < end; ++i)
      out.terms[i] = mapper.add(job_.queries, panels_.ids[first + i], out.prefixes.row(i));
    mapper.finish();
  });
  return out;
}

void SelfJoin::score_clusters(std::int64_t first, std::int64_t count, Reporter& reporter) {
  const Mapped mapped = map_rows(first, count);
  const double cluster_rows =
      static_cast<double>(panels_.rows) / static_cast<double>(base_.clusters());
  // Two at least: where lengths vary the second lets half as many pairs pass.
  const auto probes = std::min(
      base_.clusters(),
      1 + static_cast<std::int64_t>(std::ceil(3 * static_cast<double>(job_.k) / cluster_rows)));
  ExactNeighbors nearest(count, probes);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i)
    if (wanted_[panels_.ids[first + i]]) order.push_back(i);
  nearest_clusters(base_, job_, mapped.prefixes, order, probes, nearest);
  // Rows with the same nearest cluster read the same.
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(nearest.ids.row(a)[0], a) < std::pair(nearest.ids.row(b)[0], b);
  });
  constexpr std::int64_t block = 64;
  const std::int64_t rows = std::ssize(order);
  parallel_for(job_.threads, (rows + block - 1) / block, [&](std::int64_t task) {
    const auto start = Clock::now();
    SecondStage stage(base_, job_);
    AlignedArray<std::int8_t> codes(code_bytes_);
    ScanStats local;
    const std::int64_t end = std::min(rows, task * block + block);
    for (std::int64_t i = task * block; i < end; ++i) {
      const std::int64_t place = order[i];
      seed(stage, static_cast<std::uint32_t>(first + place), codes.data(), nearest.ids.row(place),
           probes, local);
    }
    reporter.add(end - task * block);
    local.scan_seconds = local.seed_seconds = seconds_since(start);
    add(local);
  });
}

void SelfJoin::seed(SecondStage& stage, std::uint32_t slot, std::int8_t* codes, const Id* clusters,
                    std::int64_t probes, ScanStats& local) {
  const std::uint32_t row = panels_.ids[slot];
  QueryState& s = state_of(slot) = stage.begin_row(row, slot, codes);
  std::uint32_t slots[longest_list];
  double scored = 0;
  for (std::int64_t j = 0; j < probes; ++j) {
    const std::size_t cluster = clusters[j];
    const std::uint32_t last = base_.cluster_begin[cluster + 1];
    for (std::uint32_t from = base_.cluster_begin[cluster]; from < last; from += longest_list) {
      const std::size_t some = std::min<std::size_t>(longest_list, last - from);
      std::iota(slots, slots + some, from);
      stage.score(codes, slots, some);
      stage.rate(s.coded, slots, some);
      stage.take(s, row, codes, slots, some, local);
      scored += static_cast<double>(some);
    }
  }
  stage.tighten(s, row, static_cast<double>(panels_.rows) / scored, local);
  s.keep_bound_alone(stage.bound(s), job_.k);
  // What was counted would be counted again.
  s.candidates.lowers = LargestK(job_.k, s.coded.norm * s.coded.norm);
  s.candidates.pending.shrink_to_fit();
  s.candidates.room = static_cast<std::size_t>(job_.most_pending()) + 1;
  publish_reach(stage, slot);
}

void SelfJoin::score_rows(std::int64_t first, std::int64_t count, Reporter& reporter) {
  const bool known = prefixes_.rows() > 0;
  const Mapped mapped = known ? Mapped{{}, std::vector<double>(count)} : map_rows(first, count);
  ScanJob prefix_job = job_;
  WorkTable table;
  table.queries.resize(count);
  if (known) {
    prefix_job.queries = prefixes_;
    std::copy_n(panels_.ids.data() + first, count, table.queries.begin());
  } else {
    prefix_job.queries = mapped.prefixes.view();
    std::iota(table.queries.begin(), table.queries.end(), 0);
  }
  const std::int64_t size = task_size(count);
  for (std::int64_t q = 0; q < count; q += size)
    table.add(std::min(count - q, size),
              {{(first + q) / tile_rows() * panels_.panels_per_tile, panels_.panels()}});
  run_tasks(panels_, prefix_job, table, stats_, reporter, [&](TileLoop& loop, ScanStats& local) {
    const QuerySet& set = table.sets[loop.task.set];
    return SelfJoinTask(*this, first + set.begin, mapped.terms.data() + set.begin, loop, local);
  });
}

}  // namespace

std::int64_t self_join_bytes(std::int64_t rows, std::int64_t dim, std::int64_t k, int threads) {
  // Beside the state: what waits, in a list with room for half as many and 24 more, the keys found
  // (a list may have twice the room that it needs), and what an allocation takes; prefixes.
  const std::int64_t waiting = pending_of(k) + pending_of(k) / 2 + 24;
  return rows * (static_cast<std::int64_t>(sizeof(LockedState)) + 72 + 24 * waiting + 64 * k +
                 4 * std::min<std::int64_t>(dim, 128)) +
         self_join_block * 4 * 128 + threads * most_block_rows(k) * SecondStage::code_bytes(dim);
}

bool self_join_with_prefix(const PrefixBase& base, const ScanJob& job,
                           const std::vector<std::int64_t>& which, ExactNeighbors& out,
                           ScanStats& stats, const Progress& progress, const FinishedRows& finished,
                           MatrixView<float> prefixes) {
  SelfJoin self_join(base, job, which, stats, progress, prefixes);
  self_join.find_bounds();
  return self_join.score_pairs(out, finished);
}

}  // namespace knear::detail
