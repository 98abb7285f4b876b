// The tasks of a scan for the k nearest: an accumulator for certified codes and one for whole
// numbers, and what merges the tasks of one query.
#include "knear/scan/nearest_state.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/scan/row_rescoring.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/scan/scores.hpp"
#include "knear/scan/threshold_estimates.hpp"
#include "knear/scan/worthwhile.hpp"
#include "knear/select/sort/nth_value.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

// What the tasks of lists use one after another, so that what it has allocated is used again: they
// would spend a tenth of their time on memory. Tasks of a flat base are long, and have their own:
// what a report says of memory does not depend on which of them ends first.
template <class T>
class Reused {
 public:
  explicit Reused(bool again) : again_(again) {}
  template <class Make>
  std::unique_ptr<T> take(Make make) {
    if (again_) {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<T> out = std::move(free_.back());
        free_.pop_back();
        return out;
      }
      free_.reserve(++made_);
    }
    return make();
  }
  void give_back(std::unique_ptr<T> x) noexcept {
    if (!again_) return;
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(x));
  }

 private:
  const bool again_;
  std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<std::unique_ptr<T>> free_;  // has room for all that were made
};

// Of a task of certified codes.
struct CertifiedBuffers {
  CertifiedBuffers(const Duplicates& duplicates, const ScanJob& job) : refiner(duplicates, job) {}

  CandidateRefiner refiner;
  std::vector<QueryCandidates> states;  // at least as many as the task has queries
  // For a query and all slots of the task, where all scores are looked at.
  std::vector<ScoreUnits> units;
  std::vector<float> uppers;
  std::vector<std::uint32_t> places, padding;
};

// Of a task of whole numbers: at least as many as it has queries.
struct IntegerBuffers {
  std::vector<TopK> best;
};

// What the tasks of a scan share.
struct NearestScan {
  const PackedBase& packed;
  const ScanJob& job;
  const WorkTable& table;
  NearestState* state;  // where candidates stay; nullptr: each task finishes its own queries
  ExactNeighbors* out;  // for these, where their answers go
  // Whether a task starts from the thresholds in *state. Splits of one scan do not: they run at the
  // same time, and what a report counts would depend on which of them ends first.
  bool starts_from_state = false;
  // About the length of rows in coding space: that of the first part which has some, the largest.
  double longest = longest_of(packed, table);
  ValueRange range = range_of(packed, table);  // of whole numbers in all parts
  ThresholdEstimates estimates{packed, job};
  std::vector<char> given_up = std::vector<char>(table.queries.size(), 0);  // by place
  std::vector<std::int64_t> mispredicted = {};
  Reused<CertifiedBuffers> certified{starts_from_state};
  Reused<IntegerBuffers> integer{starts_from_state};

  void note_given_up() const {
    for (std::size_t place = 0; place < given_up.size(); ++place)
      if (given_up[place]) state->given_up[table.queries[place]] = 1;
  }
  static double longest_of(const PackedBase& packed, const WorkTable& table) {
    for (const BasePart& part : table.parts)
      if (part.packed->longest > 0) return part.packed->longest;
    return packed.longest;
  }
  static ValueRange range_of(const PackedBase& packed, const WorkTable& table) {
    ValueRange out = packed.range;
    for (const BasePart& part : table.parts) out = united(out, part.packed->range);
    return out;
  }
  // A key that k rows found elsewhere do not exceed.
  double upper_bound(std::int64_t query) const {
    return job.upper_bounds ? job.upper_bounds[query] : infinity;
  }
};

// Whether the threshold of a query that was answered had been estimated too high: rows of the
// answer may have been ruled out by it.
bool overestimated(const QueryCandidates& c, const KeyScale& scale, double kth, double bound) {
  double certain = bound < infinity ? scale.threshold_for(bound) : -infinity;
  if (kth < infinity) certain = std::max(certain, scale.threshold_for(kth));
  return c.estimated > certain;
}

// The place of a task's queries in the table, and what is common to both accumulators.
class NearestTask {
 public:
  NearestTask(NearestScan& scan, TileLoop& loop, ScanStats& stats)
      : scan_(scan),
        job_(scan.job),
        loop_(loop),
        stats_(stats),
        begin_(scan.table.sets[loop.task.set].begin),
        estimating_(scan.estimates.on()) {
    stats.estimated = estimating_;
  }

 protected:
  // Of the range at hand.
  const PackedBase& packed() const { return loop_.base(); }
  std::int64_t query(std::int64_t q) const { return scan_.table.queries[begin_ + q]; }
  // How many of the first tile's best rows are kept as they come.
  std::int64_t listed() const { return estimating_ ? scan_.estimates.rank(1) : job_.k; }
  bool estimate_due(std::int64_t seen) const {
    return estimating_ && ThresholdEstimates::due(seen);
  }
  // Calls f(q) for the queries of a group.
  template <class F>
  void each_of(std::int64_t group, F f) const {
    const std::int64_t first = group * loop_.group_size();
    const int count = loop_.queries.heads[group].count;
    for (std::int64_t q = first; q < first + count; ++q) f(q);
  }
  // Whether the queries have no other task in this scan, so that the rows that earlier ones have
  // left can be taken over.
  bool set_alone() const {
    return scan_.table.sets[loop_.task.set].alone() && scan_.table.group == group_1;
  }
  // Calls f(q, number) for those of the task's queries that are wanted(q), whose state no other
  // task touches meanwhile.
  template <class Wanted, class F>
  void each_alone(Wanted wanted, F f) {
    scan_.state->each_alone(
        loop_.count(), wanted, [&](std::int64_t q) { return query(q); }, f);
  }
  // What a query's rows have to reach by what tasks before have left.
  double limit(std::int64_t q) const {
    return scan_.state->limits[query(q)].load(std::memory_order_relaxed);
  }
  void set_limit(std::size_t number, double to) {
    scan_.state->limits[number].store(to, std::memory_order_relaxed);
  }
  void note_mispredicted() {
    if (estimating_) scan_.estimates.note(loop_.count(), std::ssize(mispredicted_));
  }
  void hand_over_mispredicted() {
    scan_.mispredicted.insert(scan_.mispredicted.end(), mispredicted_.begin(), mispredicted_.end());
  }

  NearestScan& scan_;
  const ScanJob& job_;
  TileLoop& loop_;
  ScanStats& stats_;
  const std::int64_t begin_;
  const bool estimating_;
  std::vector<std::int64_t> mispredicted_;
};

// Certified codes: intervals, of which those that reach the k-th best lower end wait to be
// measured.
class CertifiedNearest : NearestTask {
 public:
  CertifiedNearest(NearestScan& scan, TileLoop& loop, ScanStats& stats)
      : NearestTask(scan, loop, stats),
        buffers_(scan.certified.take(
            [&] { return std::make_unique<CertifiedBuffers>(scan.packed.duplicates, scan.job); })),
        scores_(loop.base(), scan.job, loop.queries),
        gave_up_(loop.queries.groups, 0),
        worthwhile_(worthwhile_survivors(packed().format, packed().dim, *job_.peaks)) {
    scores_.enter(loop.base(), loop.first_row());
    if (std::ssize(buffers_->states) < loop.count()) buffers_->states.resize(loop.count());
    states_ = std::span(buffers_->states).first(loop.count());
    padding_.clear();
  }
  ~CertifiedNearest() { scan_.certified.give_back(std::move(buffers_)); }
  CertifiedNearest(const CertifiedNearest&) = delete;
  CertifiedNearest& operator=(const CertifiedNearest&) = delete;

  void begin() {
    for (QueryCandidates& c : states_) c.restart(job_.k, refiner_.first_room());
    if (scan_.starts_from_state && (set_alone() || estimating_)) {
      each_alone([](std::int64_t) { return true; },
                 [&](std::int64_t q, std::size_t number) {
                   QueryCandidates& known = scan_.state->candidates[number];
                   state(q).threshold = known.threshold, state(q).estimated = known.estimated;
                   if (set_alone()) state(q).take_rows(known);
                 });
    } else if (scan_.starts_from_state) {
      for (std::int64_t q = 0; q < loop_.count(); ++q) state(q).threshold = limit(q);
    }
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      QueryCandidates& c = state(q);
      const double norm = std::sqrt(loop_.queries.squares[q]);
      c.lowers.restart(listed(), (norm + scan_.longest) * scan_.longest);
      for (const ScoreInterval& x : c.pending) c.lowers.push(x.lower);
      if (const double bound = scan_.upper_bound(query(q)); bound < infinity)
        c.threshold = std::max(c.threshold, scores_.scale(q).threshold_for(bound));
      scores_.publish_threshold(q, c.threshold);
      knows_some_ |= c.threshold != -infinity || c.has_rows();
    }
    scores_.publish_groups();
  }
  void next_range() {
    scores_.enter(packed(), loop_.first_row());
    if (padding_known_) {  // what take_scores() has kept has not been counted or published yet
      for (std::int64_t q = 0; q < loop_.count(); ++q) {
        QueryCandidates& c = state(q);
        for (const ScoreInterval& x : c.pending) c.lowers.push(x.lower);
        scores_.publish_threshold(q, c.threshold);
      }
      scores_.publish_groups();
    }
    knows_some_ = true, padding_known_ = false, padding_.clear();
  }

  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    if (filtered_ && !job_.allowed.any_of(row, packed().duplicates)) return;
    ++passed_;
    QueryCandidates& c = state(q);
    const ScoreInterval x = scores_.interval(q, head, hit);
    if (x.upper < c.threshold) return;
    const double before = c.threshold;
    c.add(x);
    if (c.full()) refiner_.prune(c, query(q), scores_.scale(q), stats_);
    if (c.threshold != before) scores_.publish_threshold(q, c.threshold);
  }
  void publish_group(GroupHead& head) const { scores_.publish_group(head); }

  bool tile_done(std::int64_t g, std::int64_t seen) {
    // When the first tile of a range, a sample of it, is done: later it gains less than the rows
    // cost that would not have been measured otherwise.
    const bool tightens = seen == 1 && loop_.tiles() > 1 && job_.k <= LargestK::longest;
    const bool estimates = estimate_due(seen);
    if (tightens || estimates) {
      each_of(g, [&](std::int64_t q) {
        QueryCandidates& c = state(q);
        if (tightens)
          refiner_.tighten(c, query(q), scores_.scale(q), static_cast<double>(loop_.tiles()),
                           stats_);
        if (estimates) {
          if (seen == 1) c.estimated = c.threshold, c.lowers = LargestK(job_.k);
          refiner_.estimate(c, scan_.estimates.rank(seen));
        }
        scores_.publish_threshold(q, c.threshold);
      });
      scores_.publish_group(loop_.queries.heads[g]);
    }
    return !gives_up(g, seen, std::exchange(passed_, 0));
  }

  // Whether all products with the rows of the task are looked at together: where they are few
  // beside k, so that a threshold which improves from row to row lets several times k of them
  // through.
  bool wants_scores() const {
    const std::int64_t rows = (loop_.task.panels.end - loop_.task.panels.begin) * panel_rows;
    return !(scan_.state && knows_some_) && packed().format == format_int8 && !filtered_ &&
           !job_.allowed_slots && !loop_.first_lists() &&
           looks_at_all_scores(rows, packed().dim, job_.k);
  }
  void take_scores(std::int64_t g, const std::int32_t* scores, std::int64_t stride) {
    constexpr float infinity_of_floats = std::numeric_limits<float>::infinity();
    const std::int64_t first = loop_.task.panels.begin * panel_rows, panels = stride / panel_rows;
    GroupHead& head = loop_.queries.heads[g];
    const ScanKernels& kernels = scan_kernels(job_.isa);
    units_.resize(panels);
    uppers_.resize(stride);
    places_.resize(static_cast<std::size_t>(stride) + 1);
    std::int64_t lane = 0;
    each_of(g, [&](std::int64_t q) {
      const std::int32_t* const products = scores + lane * stride;
      const float* const bias = packed().row_bias.data() + first;
      const double per_unit = set_units(q, head, lane, panels);
      const std::int32_t correction = head.correction[lane];
      QueryCandidates& c = state(q);
      const auto interval = [&](std::uint32_t place) {
        const Hit hit{products[place], static_cast<std::uint32_t>(first) + place,
                      static_cast<std::uint32_t>(lane)};
        return scores_.interval(q, head, hit);
      };
      float* const uppers = uppers_.data();
      std::int64_t count = 0;
      const auto collect = [&](float least) {
        count = kernels.places_at_least(uppers, stride, least, places_.data());
      };
      if (per_unit > 0) {
        kernels.upper_ends(products, correction, bias, units_.data(), panels, uppers);
        for (const std::uint32_t slot : padding()) uppers[slot] = -infinity_of_floats;
        collect(kernels.largest_value(uppers, stride, job_.k));
      }
      if (count >= std::min(job_.k, stride - std::ssize(padding()))) {
        // k rows or more: none of them is worse than the least of their lower ends.
        double least = infinity;
        for (std::int64_t i = 0; i < count; ++i)
          least = std::min(least, interval(places_[i]).lower);
        if (count >= job_.k) c.threshold = std::max(c.threshold, least);
        const double at_least = scores_.in_space(q, c.threshold) * per_unit;
        collect(at_least > -1e30
                    ? static_cast<float>(at_least - std::abs(at_least) * 0x1p-22 - 1e-30)
                    : -std::numeric_limits<float>::max());
      } else {  // numbers of which floats are none
        std::fill_n(uppers, stride, 0.0f);
        for (const std::uint32_t slot : padding()) uppers[slot] = -infinity_of_floats;
        collect(0);
      }
      stats_.hits += count;
      c.pending.clear(), c.pending.reserve(count);
      for (std::int64_t i = 0; i < count; ++i) {
        const ScoreInterval x = interval(places_[i]);
        if (!(x.upper < c.threshold)) c.pending.push_back(x);
      }
      if (c.full()) refiner_.prune(c, query(q), scores_.scale(q), stats_);
      ++lane;
    });
    if (job_.may_give_up && lets_too_much_through(g, stride)) give_up(g);
  }

  std::int64_t finish(ScanStats& stats) {
    std::int64_t bytes = 0;
    for (const QueryCandidates& c : states_)
      bytes += static_cast<std::int64_t>(c.pending.capacity() * sizeof(ScoreInterval));
    // What a slot takes while all scores of a group are looked at.
    bytes += static_cast<std::int64_t>(uppers_.size()) *
             (loop_.group_size() * static_cast<std::int64_t>(sizeof(std::int32_t)) +
              static_cast<std::int64_t>(sizeof(float) + sizeof(std::uint32_t)));
    if (!scan_.state) {
      const auto start = std::chrono::steady_clock::now();
      bytes += measure(stats), stats.rescore_seconds = seconds_since(start);
      return bytes;
    }
    each_alone([&](std::int64_t q) { return state(q).has_rows(); },
               [&](std::int64_t q, std::size_t number) {
                 QueryCandidates& all = scan_.state->candidates[number];
                 scan_.state->scales[number] = scores_.scale(q);
                 if (estimating_ || job_.k > LargestK::longest)
                   all.merge(std::move(state(q)));
                 else
                   all.merge_counting(std::move(state(q)));
                 set_limit(number, all.threshold);
               });
    return bytes;
  }

  void hand_over() {
    for (std::int64_t q = 0; q < loop_.count(); ++q)
      if (gave_up_[q / loop_.group_size()]) scan_.given_up[begin_ + q] = 1;
    hand_over_mispredicted();
  }

 private:
  QueryCandidates& state(std::int64_t q) { return states_[q]; }

  // Whether the bound lets too much of a group's rows through: in the last tile, and of all that
  // were seen.
  bool gives_up(std::int64_t g, std::int64_t seen, std::int64_t passed) {
    const std::int64_t rows = packed().panels_per_tile * panel_rows;
    if (!job_.may_give_up || seen < 2 || rows * seen < 20 * job_.k) return false;
    const std::int64_t in_group = loop_.queries.heads[g].count;
    const double most_hits = packed().format == format_fp32 ? 0.5 : 0.05;
    if (static_cast<double>(passed) <=
            most_hits * static_cast<double>(rows * in_group) + always_allowed(in_group) &&
        !lets_too_much_through(g, rows * seen))
      return false;
    give_up(g);
    return true;
  }
  // How many rows of a group may wait in any case.
  double always_allowed(std::int64_t in_group) const {
    return static_cast<double>(in_group) * (4.0 * static_cast<double>(job_.k) + 64);
  }
  // Whether too many of the rows that a group's queries have seen wait to be measured.
  bool lets_too_much_through(std::int64_t g, std::int64_t rows) {
    std::int64_t pending = 0, in_group = 0;
    each_of(g, [&](std::int64_t q) { pending += std::ssize(state(q).pending), ++in_group; });
    return static_cast<double>(pending) >
           worthwhile_ * static_cast<double>(rows * in_group) + always_allowed(in_group);
  }
  void give_up(std::int64_t g) {
    gave_up_[g] = 1;
    each_of(g, [&](std::int64_t q) { state(q).pending = {}; });
  }

  // Fills units_ for a query and the panels of the task, in units near the size of its products, so
  // that no scale of the data is beyond the range of floats. Returns how many of these are one of
  // g; 0: there is no such unit.
  double set_units(std::int64_t q, const GroupHead& head, std::int64_t lane, std::int64_t panels) {
    const double norm = head.norm[lane], error = head.error[lane];
    const double size = (norm + packed().longest) * packed().longest;
    if (!(size > 1e-200 && size < 1e200)) return 0;
    const double per_unit = std::ldexp(1.0, -std::ilogb(size));
    const double squares = loop_.queries.squares[q];
    const double slack =
        traits_of(packed().space.metric).squared ? 2 * packed().space.slack * squares : 0;
    const PanelHead* panel = packed().heads.data() + loop_.task.panels.begin;
    for (ScoreUnits& units : std::span(units_).first(panels)) {
      const double coding = norm * panel->error + error * panel->norm;
      const double most = panel->bias_max + coding + slack;
      // Of the products of codes, whose lengths are at most these.
      const double largest =
          (norm + error) * panel->norm + std::abs(panel->bias_max) + coding + slack;
      units.unit = static_cast<float>(head.scale * panel->scale * per_unit);
      units.bias_unit = static_cast<float>(panel->scale * panel->scale * per_unit * (1 - 0x1p-20));
      units.most = static_cast<float>((most + 0x1p-20 * largest) * per_unit + 1e-30);
      if (!std::isfinite(units.unit) || !std::isfinite(units.most) ||
          !(units.bias_unit >= std::numeric_limits<float>::min()) ||
          !std::isfinite(units.bias_unit))
        return 0;
      ++panel;
    }
    return per_unit;
  }
  // Slots of the task that have no row.
  const std::vector<std::uint32_t>& padding() {
    if (!padding_known_) {
      const std::int64_t begin = loop_.task.panels.begin * panel_rows,
                         end = loop_.task.panels.end * panel_rows;
      for (std::int64_t slot = begin; slot < end; ++slot)
        if (packed().ids[slot] == PackedBase::no_row)
          padding_.push_back(static_cast<std::uint32_t>(slot - begin));
      padding_known_ = true;
    }
    return padding_;
  }

  // Measures what the queries have left, by rows where many queries want the same ones; writes the
  // answers. Returns the bytes that it took.
  std::int64_t measure(ScanStats& stats) {
    RowRescoring together(packed().duplicates, job_, refiner_);
    std::vector<Unfinished> unfinished;
    std::int64_t waiting = 0;
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      if (gave_up_[q / loop_.group_size()]) continue;
      unfinished.push_back({&state(q), query(q), scores_.scale(q)});
      waiting += together.waiting(state(q));
    }
    const bool by_rows = together.pays(waiting);
    if (by_rows) together.finish(unfinished, *scan_.out, stats);
    for (const auto& [c, number, scale] : unfinished) {
      double* const keys = scan_.out->keys.row(number);
      if (!by_rows) refiner_.finish(*c, number, scale, keys, scan_.out->ids.row(number), stats);
      c->pending = {};
      if (estimating_ && overestimated(*c, scale, keys[job_.k - 1], scan_.upper_bound(number)))
        mispredicted_.push_back(number);
    }
    note_mispredicted();
    return together.bytes();
  }

  std::unique_ptr<CertifiedBuffers> buffers_;
  CertifiedScores scores_;
  CandidateRefiner& refiner_ = buffers_->refiner;
  std::span<QueryCandidates> states_;
  std::vector<char> gave_up_;  // [groups]
  const double worthwhile_;
  const bool filtered_ = !job_.allowed.all() && !job_.allowed_slots;
  std::int64_t passed_ = 0;  // of the group and tile at hand
  std::vector<ScoreUnits>& units_ = buffers_->units;
  std::vector<float>& uppers_ = buffers_->uppers;
  std::vector<std::uint32_t>&places_ = buffers_->places, &padding_ = buffers_->padding;
  bool padding_known_ = false;
  bool knows_some_ = false;  // whether a query has a threshold or rows
};

// Whole numbers: scores are keys, and the k best are kept as they come.
class IntegerNearest : NearestTask {
 public:
  IntegerNearest(NearestScan& scan, TileLoop& loop, ScanStats& stats)
      : NearestTask(scan, loop, stats),
        buffers_(scan.integer.take([] { return std::make_unique<IntegerBuffers>(); })),
        scores_(loop.base(), scan.range, scan.job, loop.queries),
        estimates_(loop.count(), infinity),
        first_tile_(estimating_ ? estimates_.size() : 0, TopK(estimating_ ? listed() : 1)) {
    if (buffers_->best.size() < estimates_.size()) buffers_->best.resize(estimates_.size());
    best_ = std::span(buffers_->best).first(estimates_.size());
  }
  ~IntegerNearest() { scan_.integer.give_back(std::move(buffers_)); }
  IntegerNearest(const IntegerNearest&) = delete;
  IntegerNearest& operator=(const IntegerNearest&) = delete;

  void begin() {
    for (TopK& best : best_) best.restart(job_.k);
    if (scan_.starts_from_state && set_alone())
      each_alone([](std::int64_t) { return true; },
                 [&](std::int64_t q, std::size_t number) {
                   std::swap(best_[q], scan_.state->best[number]);
                 });
    for (std::int64_t q = 0; q < loop_.count(); ++q)
      scores_.publish(
          q, std::min(scan_.starts_from_state ? limit(q) : infinity, scan_.upper_bound(query(q))));
    scores_.publish_groups();
  }

  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    const std::size_t place = q;
    const double key = scores_.key(q, head, hit);
    if (key > estimates_[place] || key > best_[place].bound()) return;
    const Id number = job_.base.number(row);
    if (!best_[place].admits(key, number) || !job_.allowed(row)) return;
    best_[place].push(key, number);
    if (!first_tile_.empty()) {
      first_tile_[place].push(key, number);
      estimates_[place] = first_tile_[place].bound();
    }
    publish(q);
  }
  void publish_group(GroupHead& head) const { scores_.publish_group(head); }
  void next_range() { scores_.enter(packed()); }

  bool tile_done(std::int64_t g, std::int64_t seen) {
    if (!estimate_due(seen)) return true;
    const std::size_t rank = scan_.estimates.rank(seen);
    each_of(g, [&](std::int64_t q) {
      const std::size_t place = q;
      const std::vector<TopK::Item>& items = best_[place].items();
      if (items.size() < rank) return;
      keys_.resize(2 * items.size());
      for (std::size_t i = 0; i < items.size(); ++i) keys_[i] = items[i].first;
      estimates_[place] =
          std::min(estimates_[place],
                   nth_value(keys_.data(), keys_.data() + items.size(), items.size(), rank - 1));
      publish(q);
    });
    scores_.publish_group(loop_.queries.heads[g]);
    if (seen == 1 && g + 1 == loop_.queries.groups) first_tile_.clear();
    return true;
  }

  std::int64_t finish(ScanStats&) {
    std::int64_t bytes = 0;
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      TopK& best = best_[q];
      bytes += static_cast<std::int64_t>(best.items().capacity() * sizeof(TopK::Item));
      if (scan_.state) continue;
      best.finish();
      const std::int64_t number = query(q);
      double* const keys = scan_.out->keys.row(number);
      write_list(best, job_.k, keys, scan_.out->ids.row(number));
      if (estimates_[q] < std::min(keys[job_.k - 1], scan_.upper_bound(number)))
        mispredicted_.push_back(number);
    }
    if (!scan_.state) {
      note_mispredicted();
      return bytes;
    }
    const auto found = [&](std::int64_t q) { return !best_[q].items().empty(); };
    each_alone(found, [&](std::int64_t q, std::size_t number) {
      const std::size_t place = q;
      TopK& all = scan_.state->best[number];
      if (all.items().empty())
        std::swap(all, best_[place]);
      else
        for (const TopK::Item& item : best_[place].items()) all.push(item.first, item.second);
      double& estimate = scan_.state->estimates[number];
      estimate = std::min(estimate, estimates_[place]);
      set_limit(number, all.bound());
    });
    return bytes;
  }

  void hand_over() { hand_over_mispredicted(); }

 private:
  void publish(std::int64_t q) {
    const std::size_t place = q;
    const TopK& best = best_[place];
    if (estimates_[place] < best.bound())
      scores_.publish_key(q, static_cast<std::int64_t>(estimates_[place]));
    else if (best.bound() != infinity)
      // What comes of an equal key is known by the number of a row, which in parts is no row of
      // one.
      scores_.publish_key(q, static_cast<std::int64_t>(best.bound()),
                          scan_.table.parts.empty() ? best.bound_id() : PackedBase::no_row);
  }

  std::unique_ptr<IntegerBuffers> buffers_;
  IntegerScores scores_;
  std::span<TopK> best_;
  std::vector<double> estimates_;  // a key that the k-th is estimated not to exceed
  std::vector<TopK> first_tile_;
  std::vector<double> keys_;
};

void run(NearestScan& scan, ScanStats& stats, const Progress& progress) {
  const auto run_with = [&]<class Accumulator>() {
    run_tasks(scan.packed, scan.job, scan.table, stats, progress,
              [&](TileLoop& loop, ScanStats& local) { return Accumulator(scan, loop, local); });
  };
  if (scan.packed.is_integer)
    run_with.template operator()<IntegerNearest>();
  else
    run_with.template operator()<CertifiedNearest>();
}

}  // namespace

NearestState::NearestState(std::int64_t queries, const PackedBase& packed, const ScanJob& job)
    : given_up(queries, 0), limits(given_up.size()) {
  const std::size_t count = given_up.size();
  for (std::atomic<double>& limit : limits) limit = packed.is_integer ? infinity : -infinity;
  if (packed.is_integer) {
    best.assign(count, TopK(job.k)), estimates.assign(count, infinity);
  } else {
    candidates.resize(count), scales.resize(count);
    for (QueryCandidates& c : candidates) c.exact = TopK(job.k);
  }
}

void scan_tasks(const PackedBase& packed, const ScanJob& job, const WorkTable& table,
                NearestState& state, ScanStats& stats, const Progress& progress) {
  NearestScan scan{packed, job, table, &state, nullptr, true};
  run(scan, stats, progress);
  scan.note_given_up();
}

std::vector<std::int64_t> finish_nearest(const PackedBase& packed, const ScanJob& job,
                                         const std::vector<std::int64_t>& which,
                                         NearestState& state, ExactNeighbors& out,
                                         ScanStats& stats) {
  // Some queries at a time, so that what a thread needs is made once for them.
  const std::int64_t count = std::ssize(which);
  const std::int64_t each = std::clamp<std::int64_t>(count / (4 * job.threads), 1, 64);
  std::mutex mutex;
  std::vector<std::int64_t> mispredicted;
  parallel_for(job.threads, (count + each - 1) / each, [&](std::int64_t task) {
    const auto start = std::chrono::steady_clock::now();
    ScanStats local;
    std::vector<std::int64_t> wrong;
    std::optional<CandidateRefiner> refiner;
    if (!packed.is_integer) refiner.emplace(packed.duplicates, job);
    for (std::int64_t i = task * each; i < std::min(count, (task + 1) * each); ++i) {
      const std::int64_t query = which[i];
      const std::size_t place = query;
      const double bound = job.upper_bounds ? job.upper_bounds[query] : infinity;
      double* const keys = out.keys.row(query);
      Id* const ids = out.ids.row(query);
      bool estimate_was_wrong;
      if (packed.is_integer) {
        state.best[place].finish();
        write_list(state.best[place], job.k, keys, ids);
        estimate_was_wrong = state.estimates[place] < std::min(keys[job.k - 1], bound);
      } else {
        QueryCandidates& c = state.candidates[place];
        if (bound < infinity && !c.pending.empty())
          c.threshold = std::max(c.threshold, state.scales[place].threshold_for(bound));
        refiner->finish(c, query, state.scales[place], keys, ids, local);
        estimate_was_wrong = overestimated(c, state.scales[place], keys[job.k - 1], bound);
        // Here, since giving back all of them in the end is the work of one thread.
        c.pending = {}, c.exact = TopK();
      }
      if (estimate_was_wrong) wrong.push_back(query);
    }
    if (!packed.is_integer) local.rescore_seconds = seconds_since(start);
    std::lock_guard lock(mutex);
    mispredicted.insert(mispredicted.end(), wrong.begin(), wrong.end());
    stats.add(local);
  });
  std::sort(mispredicted.begin(), mispredicted.end());
  return mispredicted;
}

LeftByScan scan_and_finish(const PackedBase& packed, const ScanJob& job, const WorkTable& table,
                           ExactNeighbors& out, ScanStats& stats, const Progress& progress) {
  LeftByScan left;
  const std::vector<std::int64_t>& which = table.queries;
  if (table.tasks.size() == table.sets.size()) {
    NearestScan scan{packed, job, table, nullptr, &out};
    run(scan, stats, progress);
    for (std::size_t place = 0; place < which.size(); ++place)
      if (scan.given_up[place]) left.given_up.push_back(which[place]);
    left.mispredicted = std::move(scan.mispredicted);
  } else {
    NearestState state(job.queries.rows(), packed, job);
    NearestScan scan{packed, job, table, &state, nullptr};
    run(scan, stats, progress);
    scan.note_given_up();
    std::vector<std::int64_t> answered;
    for (const std::int64_t query : which)
      (state.given_up[query] ? left.given_up : answered).push_back(query);
    left.mispredicted = finish_nearest(packed, job, answered, state, out, stats);
  }
  std::sort(left.mispredicted.begin(), left.mispredicted.end());
  return left;
}

}  // namespace knear::detail
