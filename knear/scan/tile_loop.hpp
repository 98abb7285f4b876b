// knear/scan/tile_loop.hpp -- the loop of every scan: the kernel goes over the panels of a task,
// tile by tile, and hands out what passes the thresholds of the task's queries.
//
//   TileLoop loop(packed, job, task, std::move(queries), clock, reporter);
//   loop.run([&](std::int64_t group, const Hit* first, int count) { ... },
//            [&](std::int64_t group, std::int64_t seen) { return true; });
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/core/seconds.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {

inline constexpr int hit_limit = 64;    // then thresholds are brought up to date
inline constexpr int list_limit = 128;  // rows of a query that wait for a second stage

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
    stats.seed_seconds += seconds * static_cast<double>(probing);
    stats.score_seconds += seconds * static_cast<double>(scores);
    stats.select_seconds += seconds * static_cast<double>(selection);
  }
  std::uint64_t queries = 0, probing = 0, scores = 0, selection = 0;

 private:
  static std::uint64_t now() { return tick_count(); }
  std::chrono::steady_clock::time_point start_;
  std::uint64_t begin_, last_ = begin_;
};

// A task under way: one range of its panels after another.
class TileLoop {
 public:
  // queries: those of the task's set, packed for this base; their thresholds are the task's own.
  TileLoop(const PackedBase& base, const ScanJob& job, const ScanTask& share,
           PackedQueries packed_queries, StageClock& stages, Reporter& reporter)
      : task(share),
        queries(std::move(packed_queries)),
        clock(stages),
        packed_(&base),
        allowed_slots_(job.allowed_slots),
        reporter_(reporter) {
    const ScanKernels& kernels = scan_kernels(job.isa);
    const auto of_size = [&](int size) {
      int group = 0;
      while (group_sizes[group] != size) ++group;
      return Kernels{
          base.is_integer ? kernels.integer[group] : kernels.certified[base.format][group],
          kernels.collect[group], kernels.scores[group]};
    };
    most_ = of_size(queries.group_size), last_ = of_size(queries.last_group_size);
    self_join_ = kernels.self_join;
  }

  ScanTask task;  // of which `panels` is the range at hand
  PackedQueries queries;
  StageClock& clock;
  // What the range at hand is of, and the number of its row 0 among those of all parts.
  const PackedBase& base() const { return *packed_; }
  std::uint32_t first_row() const { return first_row_; }
  // BasePart::first_lists of the range.
  const std::uint32_t* first_lists() const { return first_lists_; }
  // Goes to another range, of a base for which queries are coded alike.
  void enter(const PanelRange& range, const BasePart& part) {
    task.panels = range, packed_ = part.packed, first_row_ = part.first_row;
    first_lists_ = part.first_lists;
  }
  std::int64_t count() const { return std::ssize(queries.squares); }
  // Tiles of the range.
  std::int64_t tiles() const {
    return (task.panels.end - task.panels.begin + packed_->panels_per_tile - 1) /
           packed_->panels_per_tile;
  }
  int group_size() const { return queries.group_size; }

  // Goes over tiles [first, last) of the range, as often as wanted. `drain(group, hits, count)`
  // takes the hits of each kernel call; `tile_done(group, seen)` says whether to go on with that
  // group after `seen` tiles of the range.
  template <class Drain, class TileDone>
  void run(std::int64_t first, std::int64_t last, Drain drain, TileDone tile_done) {
    Hit hits[hit_limit + max_group * panel_rows];  // not set: a task may be short
    TileArgs args = arguments();
    args.hits = hits, args.hit_limit = hit_limit;
    each_tile(first, last, args, tile_done, [&](std::int64_t g) {
      while (args.panel < args.panel_end) {
        args.hit_count = 0;
        kernels_of(g).hits(&args);
        clock.charge(clock.scores);
        if (args.hit_count) drain(g, hits, args.hit_count);
        clock.charge(clock.selection);
      }
    });
  }
  template <class Drain, class TileDone>
  void run(Drain drain, TileDone tile_done) {
    run(0, tiles(), drain, tile_done);
  }

  // For int8 codes: `take(group, scores, stride)` gets the products of each group with all rows of
  // the task [group size x stride], slots from the first panel on.
  template <class Take>
  void score(Take take) {
    const std::int64_t stride = (task.panels.end - task.panels.begin) * panel_rows;
    std::vector<std::int32_t> scores(group_size() * stride);
    TileArgs args = arguments();
    args.scores = scores.data(), args.score_stride = stride;
    clock.restart();
    if (packed_->guard)
      packed_->guard->touch(
          packed_->codes.data() + task.panels.begin * packed_->steps * panel_step_bytes,
          (task.panels.end - task.panels.begin) * packed_->steps * panel_step_bytes);
    for (std::int64_t g = 0; g < queries.groups; ++g) {
      args.query_codes = queries.group_codes(g), args.group = &queries.heads[g];
      args.panel = task.panels.begin, args.panel_end = task.panels.end;
      kernels_of(g).scores(&args);
      clock.charge(clock.scores);
      take(g, scores.data(), stride);
      clock.charge(clock.selection);
    }
    reporter_.add(tiles());
  }

  // For int8 codes and a second stage: `take(group, lane, slots, count)` gets what passed of each
  // query of a group, `list_limit` and a panel at most, when a list is full and after each tile.
  template <class Take, class TileDone>
  void collect(Take take, TileDone tile_done) {
    collect_by([&](std::int64_t g) { return kernels_of(g).lists; }, [](TileArgs&, std::int64_t) {},
               take, tile_done);
  }

  // A self-join by lists: queries are rows, and each pair is scored from one side. `enter(args,
  // group)` sets the reach of the rows of a tile and from which panel on they are wanted. Requires
  // groups of twelve, the last one too.
  template <class Enter, class Take, class TileDone>
  void self_join(Enter enter, Take take, TileDone tile_done) {
    collect_by([&](std::int64_t) { return self_join_; }, enter, take, tile_done);
  }

 private:
  // Of groups of one size.
  struct Kernels {
    TileKernel hits, lists, scores;
  };
  const Kernels& kernels_of(std::int64_t g) const { return g + 1 < queries.groups ? most_ : last_; }

  // kernel_of(group) -> TileKernel.
  template <class KernelOf, class Enter, class Take, class TileDone>
  void collect_by(KernelOf kernel_of, Enter enter, Take take, TileDone tile_done) {
    const int room = list_limit + panel_rows;
    std::vector<std::uint32_t> lists(max_group * room);
    TileArgs args = arguments();
    args.hit_limit = 1, args.list_limit = list_limit;
    for (int q = 0; q < max_group; ++q) args.lists[q] = lists.data() + q * room;
    each_tile(0, tiles(), args, tile_done, [&](std::int64_t g) {
      const int count = queries.heads[g].count;
      enter(args, g);
      while (args.panel < args.panel_end) {
        args.hit_count = 0;
        kernel_of(g)(&args);
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
    args.codes = packed_->codes.data(), args.heads = packed_->heads.data();
    args.row_bias = packed_->row_bias.data(), args.ids = packed_->ids.data();
    args.row_squares = packed_->row_squares.data(), args.row_sums = packed_->row_sums.data();
    args.sum_shift_mask = queries.sum_shift_mask, args.steps = packed_->steps;
    args.allowed = allowed_slots_;
    return args;
  }

  // Calls f(group) with `args` set for each tile and group.
  template <class TileDone, class F>
  void each_tile(std::int64_t first, std::int64_t last, TileArgs& args, TileDone tile_done, F f) {
    std::vector<bool> active(queries.groups, true);
    const std::int64_t panel_bytes = packed_->steps * panel_step_bytes;
    clock.restart();
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t begin = task.panels.begin + tile * packed_->panels_per_tile;
      const std::int64_t end = std::min(task.panels.end, begin + packed_->panels_per_tile);
      if (packed_->guard)  // codes of a mapped file, in cache for the kernel then
        packed_->guard->touch(packed_->codes.data() + begin * panel_bytes,
                              (end - begin) * panel_bytes);
      for (std::int64_t g = 0; g < queries.groups; ++g) {
        if (!active[g]) continue;
        args.query_codes = queries.group_codes(g), args.group = &queries.heads[g];
        args.panel = begin, args.panel_end = end;
        f(g);
        active[g] = tile_done(g, tile + 1);
        clock.charge(clock.selection);
      }
      reporter_.add(1);
    }
  }

  const PackedBase* packed_;
  std::uint32_t first_row_ = 0;
  const std::uint32_t* first_lists_ = nullptr;
  const std::uint32_t* const allowed_slots_;
  Kernels most_, last_;  // of all groups but the last, and of that
  TileKernel self_join_;
  Reporter& reporter_;
};

}  // namespace knear::detail
