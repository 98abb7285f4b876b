// knear/scan/tile_loop.hpp -- what every kind of scan does the same way: the work is divided,
// queries are packed, the kernel goes over tiles, and hits are read.
//
//   const Division division = divide(packed, queries, job, stats);
//   for_each_task(packed, job, which, division, progress, [&](std::int64_t t, TileLoop& loop) {
//     loop.queries.heads[g].threshold[lane] = ...;
//     loop.run([&](std::int64_t g, const Hit* first, int count) { ... });
//   });
#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/scan/key_scale.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A base row that may be among the k of a query: its g is certainly in [lower, upper].
struct ScoreInterval {
  double upper, lower;
  std::uint32_t row;
};

// The interval of a hit (docs/bounds.md, 3).
inline ScoreInterval interval_of(const PackedBase& packed, const GroupHead& group, const Hit& hit,
                                 double squares) {
  const PanelHead& panel = packed.heads[hit.slot / panel_rows];
  const double units = group.scale * panel.scale;
  const double dot =
      packed.format == format_fp32
          ? static_cast<double>(std::bit_cast<float>(hit.score))
          : static_cast<double>(static_cast<std::int64_t>(hit.score) - group.correction[hit.query]);
  const double bias = panel.scale * panel.scale * packed.row_bias[hit.slot];
  const double error = group.norm[hit.query] * panel.error + group.error[hit.query] * panel.norm;
  const double slack = packed.space.metric == Metric::l2 ? 2 * packed.space.slack * squares : 0;
  ScoreInterval out;
  out.upper = dot * units + bias + panel.bias_max + error + slack;
  out.lower = out.upper - 2 * (error + slack + panel.slack) + 0x1p-21 * bias;
  out.row = packed.ids[hit.slot];
  return out;
}

// The key of a hit of exact integers; q: the query's place in `queries`.
inline double integer_key(const PackedBase& packed, const PackedQueries& queries,
                          const GroupHead& head, const Hit& hit, std::int64_t q) {
  std::int64_t product = std::int64_t{hit.score} - head.correction[hit.query];
  if (queries.sum_shift_mask) product += std::int64_t{128} * packed.row_sums[hit.slot];
  if (packed.space.metric != Metric::l2) return static_cast<double>(-product);
  return static_cast<double>(static_cast<std::int64_t>(queries.squares[q]) +
                             packed.row_squares[hit.slot] - 2 * product);
}

// No key of exact integers is larger.
std::int64_t worst_integer_key(const PackedBase& packed, const ScanJob& job);

// What the kernel keeps of exact integers, for the queries of a task.
class IntegerLimits {
 public:
  IntegerLimits(const PackedBase& packed, const ScanJob& job, PackedQueries& queries)
      : queries_(queries), l2_(job.metric == Metric::l2), worst_(worst_integer_key(packed, job)) {}

  // Rows whose key is at most `bar`, one that a row may have, and from row `bound_row` on less.
  void set(std::int64_t q, std::int64_t bound, std::int64_t bound_row = PackedBase::no_row) {
    GroupHead& head = queries_.heads[q / queries_.group_size];
    const std::int64_t lane = q % queries_.group_size;
    const std::int64_t twice = static_cast<std::int64_t>(queries_.squares[q]) - bound;
    head.limit[lane] = static_cast<std::int32_t>(l2_ ? twice >> 1 : -bound);
    head.limit_bit[lane] = l2_ ? twice & 1 : 0;
    head.bound_row[lane] = static_cast<std::uint32_t>(bound_row);
  }
  // The same for any number; a row that has it is named only where it is a key.
  void set_up_to(std::int64_t q, double bound, std::int64_t bound_row = PackedBase::no_row) {
    const auto worst = static_cast<double>(worst_);
    const double least = l2_ ? -1.0 : -worst - 1;  // no row has it
    set(q, static_cast<std::int64_t>(std::floor(std::clamp(bound, least, worst))), bound_row);
  }
  // Lanes beyond the queries of a group do as the last one.
  void repeat_last(GroupHead& head) const {
    for (int q = head.count; q < queries_.group_size; ++q) {
      head.limit[q] = head.limit[head.count - 1];
      head.limit_bit[q] = head.limit_bit[head.count - 1];
      head.bound_row[q] = head.bound_row[head.count - 1];
    }
  }
  void repeat_last() {
    for (GroupHead& head : queries_.heads) repeat_last(head);
  }

 private:
  PackedQueries& queries_;
  bool l2_;
  std::int64_t worst_;
};

// The same for intervals: rows whose upper end is not below a threshold.
class Thresholds {
 public:
  Thresholds(const PackedBase& packed, PackedQueries& queries)
      : queries_(queries), slack_(packed.space.metric == Metric::l2 ? 2 * packed.space.slack : 0) {}

  void set(std::int64_t q, double threshold) {
    queries_.heads[q / queries_.group_size].threshold[q % queries_.group_size] =
        threshold - slack_ * queries_.squares[q];
  }
  void repeat_last(GroupHead& head) const {
    for (int q = head.count; q < queries_.group_size; ++q)
      head.threshold[q] = head.threshold[head.count - 1];
  }
  void repeat_last() {
    for (GroupHead& head : queries_.heads) repeat_last(head);
  }

 private:
  PackedQueries& queries_;
  double slack_;
};

// A share of the work: some queries against some tiles.
struct Task {
  std::int64_t query_begin, query_end;  // places in `which`
  std::int64_t tile_begin, tile_end;
};

// The work in tasks; parts: how many tasks share the same queries, next to one another.
struct Division {
  GroupSize group;
  std::int64_t parts;
  std::vector<Task> tasks;
};
Division divide(const PackedBase& packed, std::int64_t queries, const ScanJob& job,
                ScanStats& stats);

// How many of the k best may lie in the first `seen` of the tiles, but for one query in many
// thousands: their number is k seen / tiles on average, and hardly varies more than this.
class ThresholdEstimates {
 public:
  ThresholdEstimates(const PackedBase& packed, const ScanJob& job)
      : k_(static_cast<double>(job.k)),
        tiles_(static_cast<double>(packed.tiles)),
        on_(job.may_estimate && job.k > 32 && packed.tiles >= 16 && 4 * job.k <= packed.rows) {}
  bool on() const { return on_; }
  std::size_t rank(std::int64_t seen) const {
    const double share = static_cast<double>(seen) / tiles_, mean = k_ * share;
    return static_cast<std::size_t>(
        std::min(k_, std::ceil(mean + 4 * std::sqrt(mean * (1 - share)) + 2)));
  }
  // Whether so many tiles, one more than last time, are enough for another look.
  static bool look(std::int64_t seen) {
    return seen <= 4 || std::floor(2 * std::log2(static_cast<double>(seen))) !=
                            std::floor(2 * std::log2(static_cast<double>(seen - 1)));
  }

 private:
  double k_, tiles_;
  bool on_;
};

inline constexpr int hit_limit = 64;  // then thresholds are brought up to date

// Where the time of a task goes, in ticks of the processor's counter: reading a clock around each
// call of a kernel would take longer.
class StageClock {
 public:
  StageClock() : start_(std::chrono::steady_clock::now()), begin_(now()) {}
  // Adds what has passed since the last call to `stage`.
  void charge(std::uint64_t& stage) {
    const std::uint64_t time = now();
    stage += time - last_, last_ = time;
  }
  void restart() { last_ = now(); }
  // Seconds of each stage so far, of those that have passed.
  void report(ScanStats& stats) const {
    const double ticks = static_cast<double>(now() - begin_);
    const double seconds = ticks > 0 ? seconds_since(start_) / ticks : 0;
    stats.query_seconds += seconds * static_cast<double>(queries);
    stats.seed_seconds += seconds * static_cast<double>(probed_clusters);
    stats.score_seconds += seconds * static_cast<double>(scores);
    stats.select_seconds += seconds * static_cast<double>(selection);
  }
  std::uint64_t queries = 0, probed_clusters = 0, scores = 0, selection = 0;

 private:
  static std::uint64_t now() {
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }
  std::chrono::steady_clock::time_point start_;
  std::uint64_t begin_, last_ = begin_;
};

// A task under way.
class TileLoop {
 public:
  TileLoop(const PackedBase& base, const ScanJob& job, const std::int64_t* which, const Task& share,
           GroupSize group, Reporter& reporter)
      : task(share),
        queries(pack_queries(base, job.queries, which + share.query_begin,
                             share.query_end - share.query_begin, group_sizes[group],
                             job.query_range)),
        packed_(base),
        reporter_(reporter) {
    const ScanKernels& kernels = scan_kernels(job.isa);
    kernel_ = base.is_integer ? kernels.integer[group] : kernels.certified[base.format][group];
    collect_ = kernels.collect[group], join_ = kernels.self_join;
    clock.charge(clock.queries);
  }

  StageClock clock;
  const Task task;
  PackedQueries queries;
  std::int64_t count() const { return task.query_end - task.query_begin; }

  // Goes over the tiles; `drain(group, hits, count)` takes the hits of each kernel call, and
  // `tile_done(group, tile)` says whether to go on with that group.
  template <class Drain, class TileDone>
  void run(Drain drain, TileDone tile_done) {
    std::vector<Hit> hits(hit_limit + max_group * panel_rows);
    TileArgs args = arguments();
    args.hits = hits.data(), args.hit_limit = hit_limit;
    clock.restart();
    each_tile(task.tile_begin, task.tile_end, args, tile_done, hits_of(args, drain));
  }
  // The same for some of the tiles, as often as wanted.
  template <class Drain>
  void run_between(std::int64_t tile_begin, std::int64_t tile_end, Drain drain) {
    if (hits_.empty()) hits_.resize(hit_limit + max_group * panel_rows);
    TileArgs args = arguments();
    args.hits = hits_.data(), args.hit_limit = hit_limit;
    clock.restart();
    each_tile(
        tile_begin, tile_end, args, [](std::int64_t, std::int64_t) { return true; },
        hits_of(args, drain));
  }
  template <class Drain>
  void run(Drain drain) {
    run(drain, [](std::int64_t, std::int64_t) { return true; });
  }

  // For int8 codes and a second stage: `take(group, lane, slots, count)` gets what passed of each
  // query of a group, `list_limit` and a panel at most, when a list is full and after each tile.
  template <class Take, class TileDone>
  void collect(int list_limit, Take take, TileDone tile_done) {
    collect_by(
        collect_, list_limit, [](TileArgs&, std::int64_t) {}, take, tile_done);
  }

  // The same where queries are rows, each pair being scored from one side: `enter(args, group)`
  // sets the reach of the rows of a tile and from which panel on they are wanted.
  template <class Enter, class Take, class TileDone>
  void self_join(int list_limit, Enter enter, Take take, TileDone tile_done) {
    collect_by(join_, list_limit, enter, take, tile_done);
  }

 private:
  template <class Enter, class Take, class TileDone>
  void collect_by(TileKernel kernel, int list_limit, Enter enter, Take take, TileDone tile_done) {
    const int room = list_limit + panel_rows;
    std::vector<std::uint32_t> lists(static_cast<std::size_t>(max_group * room));
    TileArgs args = arguments();
    args.hit_limit = 1, args.list_limit = list_limit;
    for (int q = 0; q < max_group; ++q) args.lists[q] = lists.data() + q * room;
    clock.restart();
    each_tile(task.tile_begin, task.tile_end, args, tile_done, [&](std::int64_t g) {
      const int count = queries.heads[g].count;
      enter(args, g);
      while (args.panel < args.panel_end) {
        args.hit_count = 0;
        kernel(&args);
        clock.charge(clock.scores);
        const bool last = args.panel == args.panel_end;
        for (int q = 0; q < count; ++q) {
          if (args.list_count[q] == 0 || (!last && args.list_count[q] < list_limit)) continue;
          take(g, q, args.lists[q], args.list_count[q]);
          args.list_count[q] = 0;
        }
        clock.charge(clock.selection);
      }
    });
  }

  TileArgs arguments() const {
    TileArgs args{};
    args.codes = packed_.codes.data(), args.heads = packed_.heads.data();
    args.row_bias = packed_.row_bias.data(), args.ids = packed_.ids.data();
    args.row_squares = packed_.row_squares.data(), args.row_sums = packed_.row_sums.data();
    args.sum_shift_mask = queries.sum_shift_mask, args.steps = packed_.steps;
    return args;
  }

  template <class Drain>
  auto hits_of(TileArgs& args, Drain& drain) {
    return [this, &args, &drain](std::int64_t g) {
      while (args.panel < args.panel_end) {
        args.hit_count = 0;
        kernel_(&args);
        clock.charge(clock.scores);
        if (args.hit_count) drain(g, args.hits, args.hit_count);
        clock.charge(clock.selection);
      }
    };
  }

  // Calls f(group) with `args` set for each tile and group.
  template <class TileDone, class F>
  void each_tile(std::int64_t tile_begin, std::int64_t tile_end, TileArgs& args, TileDone tile_done,
                 F f) {
    std::vector<bool> active(queries.groups, true);
    const std::int64_t tile_bytes = packed_.panels_per_tile * packed_.steps * panel_step_bytes;
    for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
      if (packed_.guard)  // codes of a mapped file, in cache for the kernel then
        packed_.guard->touch(packed_.codes.data() + tile * tile_bytes,
                             static_cast<std::size_t>(tile_bytes));
      for (std::int64_t g = 0; g < queries.groups; ++g) {
        if (!active[g]) continue;
        args.query_codes = queries.group_codes(g), args.group = &queries.heads[g];
        args.panel = tile * packed_.panels_per_tile;
        args.panel_end = args.panel + packed_.panels_per_tile;
        f(g);
        active[g] = tile_done(g, tile);
        clock.charge(clock.selection);
      }
      reporter_.add(1);
    }
  }

  const PackedBase& packed_;
  TileKernel kernel_, collect_, join_;
  Reporter& reporter_;
  std::vector<Hit> hits_;  // of run_between
};

// Calls f(number of the task, loop) for each task, on the threads of the job.
template <class F>
void for_each_task(const PackedBase& packed, const ScanJob& job,
                   const std::vector<std::int64_t>& which, const Division& division,
                   Reporter& reporter, F f) {
  parallel_for(job.threads, std::ssize(division.tasks), [&](std::int64_t t) {
    TileLoop loop(packed, job, which.data(), division.tasks[t], division.group, reporter);
    f(t, loop);
  });
}
template <class F>
void for_each_task(const PackedBase& packed, const ScanJob& job,
                   const std::vector<std::int64_t>& which, const Division& division,
                   const Progress& progress, F f) {
  Reporter reporter(progress, "search", std::ssize(division.tasks) * packed.tiles / division.parts);
  for_each_task(packed, job, which, division, reporter, f);
}

}  // namespace knear::detail
