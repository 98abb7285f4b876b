// knear/scan/scan_driver.hpp -- the one driver of all scans. What a kind of scan does with the
// pairs that pass is an accumulator; the driver does the rest: it packs the queries of a set once,
// runs tasks on the threads of the job, and adds up what they counted.
//
//   class CountWithin {                                    // one object a task
//     void begin();                                        // publishes the first thresholds
//     void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row);
//     void publish_group(GroupHead& head);                 // after the hits of a kernel call
//     bool tile_done(std::int64_t group, std::int64_t seen);   // false: no more of that group
//     std::int64_t finish(ScanStats& stats);               // returns the bytes of its buffers
//     void hand_over();                                    // one task at a time
//   };
//   run_tasks(packed, job, table, stats, progress,
//             [&](TileLoop& loop, ScanStats& stats) { return CountWithin(..., loop); });
//
// An accumulator of tasks with several ranges of panels may have next_range(), which is called
// before each but the first. Where ranges are of several parts (work_table.hpp), loop.base() is the
// part at hand, a hit's slot is one of that part, and rows are numbered through all. Hits in the
// second list of a row are dropped where the query probes its first (BasePart::first_lists).
//
// take() gets pairs of rows that exist; a filter is the accumulator's (AllowedRows). One that has
// wants_scores() and take_scores() may get all products of a group at once. An accumulator of a
// scan in two stages has take_list instead of take and publish_group, and one of a self-join
// `enter` besides (tile_loop.hpp). examples/count_within.cpp is a whole accumulator.
//
// measure_pairs() drives the accumulators of scans that measure every pair in float64.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/bit_rows.hpp"
#include "knear/scan/packing/kept_queries.hpp"
#include "knear/scan/probed_lists.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {

// Tells which hits are found in another list of the query as well, and count there.
struct RepeatedHits {
  const ProbedLists* probed = nullptr;
  std::span<const std::int64_t> queries = {};  // of the task, by place

  bool contains(std::int64_t place, std::uint32_t first_list) const {
    return probed->contains(queries[place], first_list);
  }
};

// Goes over tiles [first, last) of a task and gives what passes to the accumulator; all of them,
// where it takes lists.
template <class Accumulator>
void run_task(TileLoop& loop, std::int64_t first, std::int64_t last, Accumulator& accumulator,
              ScanStats& stats, const RepeatedHits& repeated = {}) {
  const auto tile_done = [&](std::int64_t g, std::int64_t seen) {
    return accumulator.tile_done(g, seen);
  };
  if constexpr (requires { &Accumulator::take_list; }) {
    const auto take = [&](std::int64_t g, int lane, std::uint32_t* slots, int count) {
      accumulator.take_list(g, lane, slots, count);
    };
    if constexpr (requires { &Accumulator::enter; })
      loop.self_join([&](TileArgs& args, std::int64_t g) { accumulator.enter(args, g); }, take,
                     tile_done);
    else
      loop.collect(take, tile_done);
  } else {
    if constexpr (requires { &Accumulator::take_scores; })
      if (accumulator.wants_scores())
        return loop.score([&](std::int64_t g, const std::int32_t* scores, std::int64_t stride) {
          accumulator.take_scores(g, scores, stride);
        });
    const std::int64_t group_size = loop.group_size();
    const PackedBase& packed = loop.base();
    const std::uint32_t first_row = loop.first_row();
    const std::uint32_t* const first_lists = loop.first_lists();
    const auto drain = [&](std::int64_t g, const Hit* hits, int count) {
      GroupHead& head = loop.queries.heads[g];
      stats.hits += count;
      for (const Hit* hit = hits; hit != hits + count; ++hit)
        if (const std::uint32_t row = packed.ids[hit->slot]; row != PackedBase::no_row) {
          const std::int64_t place = g * group_size + hit->query;
          if (first_lists && repeated.contains(place, first_lists[row])) continue;
          accumulator.take(place, head, *hit, first_row + row);
        }
      accumulator.publish_group(head);
    };
    loop.run(first, last, drain, tile_done);
  }
}

// Runs the tasks of a table. make(loop, stats) returns the accumulator of a task; both arguments
// live as long as it does. `reporter` counts tiles.
template <class Make>
void run_tasks(const PackedBase& packed, const ScanJob& job, const WorkTable& table,
               ScanStats& stats, Reporter& reporter, Make make) {
  using Accumulator = decltype(make(std::declval<TileLoop&>(), stats));
  constexpr bool is_self_join = requires { &Accumulator::enter; };
  if (job.kept) job.kept->begin_scan(packed.format, group_sizes[table.group], table.sets.size());
  const auto pack = [&](std::size_t s) {
    const auto anew = [&] {
      const QuerySet& set = table.sets[s];
      const auto pack_for = [&](const Coding& coding) {
        return pack_queries(coding, job.queries, table.queries.data() + set.begin, set.count(),
                            group_sizes[table.group], job.query_range, job.coded, !is_self_join);
      };
      return set.list < 0 ? pack_for(packed) : pack_for(packed.of_list(set.list));
    };
    return job.kept ? job.kept->get(s, anew) : anew();
  };
  // What several tasks share is packed before; a set of one task is packed by its thread.
  std::vector<std::optional<PackedQueries>> shared(table.sets.size());
  if (table.tasks.size() != table.sets.size())
    parallel_for(job.threads, std::ssize(table.sets), [&](std::int64_t s) {
      const std::size_t at = s;
      if (!table.sets[at].alone()) shared[at] = pack(at);
    });
  const std::int64_t at_once = std::min<std::int64_t>(job.threads, std::ssize(table.tasks));
  std::mutex mutex;
  parallel_for(job.threads, std::ssize(table.tasks), [&](std::int64_t t) {
    const auto start = std::chrono::steady_clock::now();
    const ScanTask& task = table.tasks[t];
    const std::size_t set = task.set;
    ScanStats local;
    StageClock clock;
    TileLoop loop(packed, job, task, shared[set] ? *shared[set] : pack(set), clock, reporter);
    loop.enter(task.panels, table.part_of(task.panels, packed));
    clock.charge(clock.queries);
    auto accumulator = make(loop, local);
    accumulator.begin();
    const RepeatedHits repeated{job.probed, table.queries_of(task.set)};
    run_task(loop, 0, loop.tiles(), accumulator, local, repeated);
    for (const PanelRange& range : table.more_of(task)) {
      loop.enter(range, table.part_of(range, packed));
      if constexpr (requires { accumulator.next_range(); }) accumulator.next_range();
      run_task(loop, 0, loop.tiles(), accumulator, local, repeated);
    }
    std::int64_t bytes = accumulator.finish(local);
    bytes += static_cast<std::int64_t>(loop.queries.codes->bytes());
    if (local.rescore_seconds == 0) clock.charge(clock.selection);
    clock.report(local);
    local.scan_seconds = seconds_since(start) - local.rescore_seconds;
    std::lock_guard lock(mutex);
    accumulator.hand_over();
    stats.add(local, bytes, at_once);
  });
}
template <class Make>
void run_tasks(const PackedBase& packed, const ScanJob& job, const WorkTable& table,
               ScanStats& stats, const Progress& progress, Make make) {
  Reporter reporter(progress, "search", table.tiles(packed.panels_per_tile));
  run_tasks(packed, job, table, stats, reporter, make);
}

// Some queries and rows of a scan that measures every pair: queries [begin, begin + count) of
// `which`.
struct MeasuredTask {
  std::int64_t begin, count;
  std::int64_t split;  // of the rows for these queries
};

// Up to 16 queries a task, or 128 of bits, as many in each.
inline std::int64_t queries_measured_together(const ScanJob& job, std::int64_t count) {
  constexpr std::int64_t size = ExactGroup::size;
  const std::int64_t most = traits_of(job.metric).bits ? 128 : 16;
  const std::int64_t sets = std::max<std::int64_t>(1, (count + most - 1) / most);
  return ((count + sets - 1) / sets + size - 1) / size * size;
}

// The queries of a task, by which rows are measured in float64.
class MeasuredGroups {
 public:
  MeasuredGroups(const ScanJob& job, std::span<const std::int64_t> which)
      : base_(job.base), scratch_(job.base.scratch_bytes()) {
    constexpr std::size_t size = ExactGroup::size;
    for (std::size_t q = 0; q < which.size(); q += size)
      groups_.emplace_back(job.metric, job.base.type(), job.isa)
          .set_queries(job.queries, which.data() + q,
                       static_cast<int>(std::min(which.size() - q, size)));
  }

  // Rows row_of(0), ..., row_of(count - 1) of the base.
  template <class RowOf, class Accumulator>
  void measure(std::int64_t count, RowOf row_of, Accumulator& accumulator) {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = row_of(i);
        double keys[ExactGroup::size];
        groups_[g].keys(base_.row(row, scratch_.data()), keys);
        for (int j = 0; j < groups_[g].count(); ++j)
          accumulator.take(static_cast<std::int64_t>(g) * ExactGroup::size + j, keys[j],
                           static_cast<std::uint32_t>(row));
      }
  }

 private:
  const BaseRows& base_;
  std::vector<ExactGroup> groups_;
  std::vector<std::byte> scratch_;
};

// Measures every pair of `which` and the rows of job.base, or of a `subset` of them (ascending) if
// that is not empty, on the threads of the job. make(task) returns the accumulator of a task, which
// has take(q, key, row), limit(q), the largest key that it wants, block_done() after each few rows,
// and finish() and hand_over() as above. A task has `each` queries; with may_split several tasks
// share them where threads would be idle otherwise.
template <class Make>
void measure_pairs(const ScanJob& job, std::span<const std::uint32_t> subset,
                   std::span<const std::int64_t> which, std::int64_t each, bool may_split,
                   ScanStats& stats, const Progress& progress, Make make) {
  const std::int64_t count = std::ssize(which);
  const std::int64_t rows = subset.empty() ? job.base.rows() : std::ssize(subset);
  if (count == 0) return;
  // Blocks of rows small enough for the second-level cache are measured from all queries of a task.
  const bool bits = traits_of(job.metric).bits;
  const std::int64_t per_block =
      bits ? BitRows::rows_at_once(job.base.row_bytes())
           : std::clamp<std::int64_t>((256 << 10) / job.base.row_bytes(), 1, 4096);
  const std::int64_t groups = (count + each - 1) / each;
  const std::int64_t splits =
      may_split
          ? std::clamp<std::int64_t>(rows / (4 * per_block), 1, (job.threads + groups - 1) / groups)
          : 1;
  Reporter reporter(progress, "search", groups * rows);
  std::mutex mutex;
  parallel_for(job.threads, groups * splits, [&](std::int64_t t) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t begin = t / splits * each, n = std::min(count - begin, each);
    const std::int64_t row_begin = rows * (t % splits) / splits;
    const std::int64_t row_end = rows * (t % splits + 1) / splits;
    ScanStats local;
    auto accumulator = make(MeasuredTask{begin, n, t % splits});
    const std::span<const std::int64_t> queries = which.subspan(begin, n);
    std::optional<BitRows> bit_rows;
    std::optional<MeasuredGroups> measured;
    if (bits)
      bit_rows.emplace(job, queries);
    else
      measured.emplace(job, queries);
    for (std::int64_t b = row_begin; b < row_end; b += per_block) {
      const std::int64_t some = std::min(row_end - b, per_block);
      const auto row_of = [&](std::int64_t i) {
        return subset.empty() ? b + i : std::int64_t{subset[b + i]};
      };
      if (measured) {
        measured->measure(some, row_of, accumulator);
      } else {
        if (subset.empty())
          bit_rows->load(b, some);
        else
          bit_rows->load(subset.subspan(b, some));
        for (std::int64_t q = 0; q < n; ++q)
          bit_rows->each_near(
              q, [&] { return accumulator.limit(q); },
              [&](double key, std::int64_t i) {
                accumulator.take(q, key, static_cast<std::uint32_t>(row_of(i)));
              });
      }
      accumulator.block_done();
      reporter.add(some);
    }
    const std::int64_t bytes = accumulator.finish(local);
    local.survivors += n * (row_end - row_begin);
    local.rescore_seconds += seconds_since(start);
    std::lock_guard lock(mutex);
    accumulator.hand_over();
    stats.add(local, bytes, std::min<std::int64_t>(job.threads, groups * splits));
  });
}

}  // namespace knear::detail
