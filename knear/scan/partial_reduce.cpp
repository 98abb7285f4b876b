// Partial reduction over packed tiles: exact integers, and intervals that are measured tile by
// tile.
#include "knear/scan/partial_reduce.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>

#include "knear/distance/exact.hpp"
#include "knear/scan/pruner.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/select/nth_value.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

constexpr KeyedId none{infinity, std::numeric_limits<Id>::max()};

// What the queries of a task have found, and where it goes.
class Found {
 public:
  Found(const ScanJob& job, int kept, std::int64_t queries, bool all)
      : kept_(static_cast<std::size_t>(kept)),
        all_(all),
        best_(static_cast<std::size_t>(queries), TopK(job.k)),
        dropped_(static_cast<std::size_t>(queries), none) {}

  // The key that rows still have to reach, whatever bin they are in.
  const TopK& best(std::int64_t q) const { return best_[static_cast<std::size_t>(q)]; }
  KeyedId dropped(std::int64_t q) const { return dropped_[static_cast<std::size_t>(q)]; }
  void push(std::int64_t q, double key, Id row) {
    best_[static_cast<std::size_t>(q)].push(key, row);
  }
  void drop(std::int64_t q, const KeyedId& first) {
    KeyedId& least = dropped_[static_cast<std::size_t>(q)];
    least = std::min(least, first);
  }
  // Brings the key down after so many bins, now and then.
  void tighten(std::int64_t q, std::int64_t bins) {
    if (Hopes::look(bins)) best_[static_cast<std::size_t>(q)].cut();
  }
  std::vector<TopK>& lists() { return best_; }
  std::size_t kept() const { return kept_; }
  bool all() const { return all_; }

 private:
  std::size_t kept_;
  bool all_;  // candidates are wanted, whatever the k best are
  std::vector<TopK> best_;
  std::vector<KeyedId> dropped_;
};

void write_bin(const std::vector<KeyedId>& items, std::size_t kept, double* keys, Id* ids) {
  for (std::size_t i = 0; i < kept; ++i) {
    keys[i] = i < items.size() ? items[i].first : infinity;
    ids[i] = i < items.size() ? items[i].second : no_id;
  }
}

// Calls work(task number, its loop, what it found) for each task; then puts together what tasks for
// the same queries found.
template <class Work>
void each_task(const PackedBase& packed, const ScanJob& job, int kept,
               const std::vector<std::int64_t>& which, ExactLists& out,
               std::vector<KeyedId>& dropped, ExactLists* candidates, ScanStats& stats,
               const Progress& progress, Work work) {
  const Division division = divide(packed, std::ssize(which), job, stats);
  std::vector<std::vector<TopK>> found(division.tasks.size());
  std::mutex mutex;
  for_each_task(packed, job, which, division, progress, [&](std::int64_t t, TileLoop& loop) {
    const auto start = std::chrono::steady_clock::now();
    Found here(job, kept, loop.count(), candidates != nullptr);
    ScanStats local;
    const std::int64_t buffers = work(loop, here, local);
    loop.clock.report(local);
    local.scan_seconds = seconds_since(start);
    std::lock_guard lock(mutex);
    for (std::int64_t q = 0; q < loop.count(); ++q) {
      KeyedId& least = dropped[static_cast<std::size_t>(which[loop.task.query_begin + q])];
      least = std::min(least, here.dropped(q));
    }
    found[static_cast<std::size_t>(t)] = std::move(here.lists());
    stats.add(local);
    stats.buffer_bytes =
        std::max(stats.buffer_bytes,
                 buffers * std::min<std::int64_t>(job.threads, std::ssize(division.tasks)));
  });
  if (candidates) return;
  const auto parts = static_cast<std::size_t>(division.parts);
  for (std::size_t t = 0; t < found.size(); t += parts)
    for (std::size_t q = 0; q < found[t].size(); ++q) {
      TopK& best = found[t][q];
      for (std::size_t p = 1; p < parts; ++p)
        for (const TopK::Item& item : found[t + p][q].items()) best.push(item.first, item.second);
      best.finish();
      const std::int64_t query =
          which[division.tasks[t].query_begin + static_cast<std::int64_t>(q)];
      write_list(best, job.k, out.keys.row(query), out.ids.row(query));
    }
}

void reduce_integer(const PackedBase& packed, const ScanJob& job, int kept,
                    const std::vector<std::int64_t>& which, ExactLists& out,
                    std::vector<KeyedId>& dropped, ExactLists* candidates, ScanStats& stats,
                    const Progress& progress) {
  const bool l2 = job.metric == Metric::l2;
  const std::int64_t worst_key = worst_integer_key(packed, job);
  each_task(packed, job, kept, which, out, dropped, candidates, stats, progress,
            [&](TileLoop& loop, Found& found, ScanStats& local) {
              PackedQueries& queries = loop.queries;
              const std::int64_t n = loop.count();
              const int group_size = queries.group_size;
              // One more than is kept: the best that is dropped.
              std::vector<TopK> bins(static_cast<std::size_t>(n), TopK(kept + 1));
              // Keeps rows up to a key, and from row `bar_row` on less than it.
              const auto set_limit = [&](std::int64_t q, std::int64_t bar, std::int64_t bar_row) {
                GroupHead& head = queries.heads[q / group_size];
                const std::int64_t lane = q % group_size;
                const std::int64_t twice = static_cast<std::int64_t>(queries.squares[q]) - bar;
                head.limit[lane] = static_cast<std::int32_t>(l2 ? twice >> 1 : -bar);
                head.limit_bit[lane] = l2 ? twice & 1 : 0;
                head.bar_row[lane] = static_cast<std::uint32_t>(bar_row);
              };
              const auto tell = [&](std::int64_t q) {
                const TopK& bin = bins[static_cast<std::size_t>(q)];
                KeyedId bar{bin.bar(), bin.bar_id()};
                if (!found.all()) {
                  bar = std::min(bar, KeyedId{found.best(q).bar(), found.best(q).bar_id()});
                  if (job.bars) {
                    const double known = job.bars[which[loop.task.query_begin + q]];
                    if (known < bar.first) bar = {known, Id{PackedBase::no_row}};
                  }
                }
                if (bar.first >= static_cast<double>(worst_key))
                  set_limit(q, worst_key, PackedBase::no_row);
                else
                  set_limit(q,
                            static_cast<std::int64_t>(std::floor(std::max(
                                bar.first, l2 ? -1.0 : -static_cast<double>(worst_key) - 1))),
                            std::min<Id>(bar.second, Id{PackedBase::no_row}));
              };
              const auto repeat_last = [&](GroupHead& head) {
                for (int q = head.count; q < group_size; ++q) {
                  head.limit[q] = head.limit[head.count - 1];
                  head.limit_bit[q] = head.limit_bit[head.count - 1];
                  head.bar_row[q] = head.bar_row[head.count - 1];
                }
              };
              for (std::int64_t q = 0; q < n; ++q) tell(q);
              for (GroupHead& head : queries.heads) repeat_last(head);
              loop.run(
                  [&](std::int64_t g, const Hit* first, int count) {
                    GroupHead& head = queries.heads[g];
                    local.hits += count;
                    for (const Hit* hit = first; hit != first + count; ++hit) {
                      const std::uint32_t row = packed.ids[hit->slot];
                      if (row == PackedBase::no_row) continue;
                      const std::int64_t q = g * group_size + hit->query;
                      TopK& bin = bins[static_cast<std::size_t>(q)];
                      const double key = integer_key(packed, queries, head, *hit, q);
                      if (!bin.admits(key, row) || !job.allowed(row)) continue;
                      if (!found.all() && !found.best(q).admits(key, row)) continue;
                      bin.push(key, row);
                      tell(q);
                    }
                    repeat_last(head);
                  },
                  [&](std::int64_t g, std::int64_t tile) {
                    GroupHead& head = queries.heads[g];
                    for (std::int64_t q = g * group_size; q < g * group_size + head.count; ++q) {
                      TopK& bin = bins[static_cast<std::size_t>(q)];
                      bin.finish();
                      const std::vector<KeyedId>& items = bin.items();
                      if (items.size() > found.kept()) found.drop(q, items[found.kept()]);
                      if (candidates) {
                        const std::int64_t query = which[loop.task.query_begin + q];
                        write_bin(items, found.kept(), candidates->keys.row(query) + tile * kept,
                                  candidates->ids.row(query) + tile * kept);
                      } else {
                        for (std::size_t i = 0; i < std::min(items.size(), found.kept()); ++i)
                          found.push(q, items[i].first, items[i].second);
                        found.tighten(q, tile - loop.task.tile_begin + 1);
                      }
                      bin = TopK(kept + 1);
                      tell(q);
                    }
                    repeat_last(head);
                    return true;
                  });
              return static_cast<std::int64_t>(queries.codes.bytes()) +
                     n * (job.k + 2 * kept + 40) * static_cast<std::int64_t>(sizeof(KeyedId));
            });
}

void reduce_certified(const PackedBase& packed, const ScanJob& job, int kept,
                      const std::vector<std::int64_t>& which, ExactLists& out,
                      std::vector<KeyedId>& dropped, ExactLists* candidates, ScanStats& stats,
                      const Progress& progress) {
  const double query_slack = packed.space.metric == Metric::l2 ? 2 * packed.space.slack : 0;
  const bool filtered = !job.allowed.all();
  each_task(packed, job, kept, which, out, dropped, candidates, stats, progress,
            [&](TileLoop& loop, Found& found, ScanStats& local) {
              PackedQueries& queries = loop.queries;
              const std::int64_t n = loop.count();
              const int group_size = queries.group_size;
              // Of each query, for the tile at hand.
              struct Bin {
                std::vector<Candidate> pending;
                LargestK lowers;
                double threshold = -infinity;
              };
              std::vector<Bin> bins(static_cast<std::size_t>(n));
              std::size_t most_pending = 0;
              ExactDistance distance(job.metric, job.base.type(), job.isa);
              const std::size_t scratch_bytes = job.base.scratch_bytes();
              std::vector<std::byte> scratch(ExactDistance::most_rows * scratch_bytes);
              std::vector<KeyedId> items;
              std::vector<double> numbers;
              const auto scale_of = [&](std::int64_t q) {
                return KeyScale{job.metric, queries.squares[q], queries.constant[q]};
              };
              const auto begin_bin = [&](std::int64_t q) {
                Bin& bin = bins[static_cast<std::size_t>(q)];
                bin.pending.clear(), bin.threshold = -infinity;
                bin.lowers = LargestK(
                    kept + 1, (std::sqrt(queries.squares[q]) + packed.longest) * packed.longest);
                if (found.all()) return;
                double bar = found.best(q).bar();
                if (job.bars) bar = std::min(bar, job.bars[which[loop.task.query_begin + q]]);
                if (bar < infinity) bin.threshold = scale_of(q).threshold_for(bar);
              };
              const auto tell = [&](std::int64_t q) {
                GroupHead& head = queries.heads[q / group_size];
                head.threshold[q % group_size] =
                    bins[static_cast<std::size_t>(q)].threshold - query_slack * queries.squares[q];
              };
              const auto repeat_last = [&](GroupHead& head) {
                for (int q = head.count; q < group_size; ++q)
                  head.threshold[q] = head.threshold[head.count - 1];
              };
              // Raises the threshold of a bin for many to its (kept + 1)-th largest lower end.
              const auto tighten = [&](Bin& bin) {
                const std::size_t count = bin.pending.size(), rank = static_cast<std::size_t>(kept);
                if (count <= rank) return;
                numbers.resize(2 * count);
                for (std::size_t i = 0; i < count; ++i) numbers[i] = -bin.pending[i].lower;
                bin.threshold = std::max(
                    bin.threshold, -nth_value(numbers.data(), numbers.data() + count, count, rank));
                keep_reaching(bin.pending, bin.threshold);
              };
              const bool many = kept + 1 > LargestK::longest;
              const std::size_t room = 2 * static_cast<std::size_t>(kept) + 64;
              const auto finish_bin = [&](std::int64_t q, std::int64_t tile) {
                Bin& bin = bins[static_cast<std::size_t>(q)];
                const std::int64_t query = which[loop.task.query_begin + q];
                if (many)
                  tighten(bin);
                else
                  keep_reaching(bin.pending, bin.threshold);
                most_pending = std::max(most_pending, bin.pending.capacity());
                items.clear();
                if (!bin.pending.empty()) distance.set_query(job.queries, query);
                for (std::size_t i = 0; i < bin.pending.size(); i += ExactDistance::most_rows) {
                  const int some = static_cast<int>(
                      std::min<std::size_t>(bin.pending.size() - i, ExactDistance::most_rows));
                  const void* vectors[ExactDistance::most_rows] = {};
                  double keys[ExactDistance::most_rows];
                  for (int j = 0; j < some; ++j)
                    vectors[j] =
                        job.base.row(bin.pending[i + static_cast<std::size_t>(j)].row,
                                     scratch.data() + static_cast<std::size_t>(j) * scratch_bytes);
                  distance.keys(vectors, some, keys);
                  for (int j = 0; j < some; ++j)
                    items.emplace_back(keys[j], bin.pending[i + static_cast<std::size_t>(j)].row);
                }
                local.survivors += std::ssize(items);
                std::sort(items.begin(), items.end());
                if (items.size() > found.kept()) {
                  found.drop(q, items[found.kept()]);
                  items.resize(found.kept());
                }
                if (candidates) {
                  write_bin(items, found.kept(), candidates->keys.row(query) + tile * kept,
                            candidates->ids.row(query) + tile * kept);
                  return;
                }
                for (const KeyedId& item : items) found.push(q, item.first, item.second);
                found.tighten(q, tile - loop.task.tile_begin + 1);
              };
              for (std::int64_t q = 0; q < n; ++q) begin_bin(q), tell(q);
              for (GroupHead& head : queries.heads) repeat_last(head);
              loop.run(
                  [&](std::int64_t g, const Hit* first, int count) {
                    GroupHead& head = queries.heads[g];
                    local.hits += count;
                    for (const Hit* hit = first; hit != first + count; ++hit) {
                      const std::uint32_t row = packed.ids[hit->slot];
                      if (row == PackedBase::no_row || (filtered && !job.allowed(row))) continue;
                      const std::int64_t q = g * group_size + hit->query;
                      Bin& bin = bins[static_cast<std::size_t>(q)];
                      const Candidate x = interval_of(packed, head, *hit, queries.squares[q]);
                      if (x.upper < bin.threshold) continue;
                      bin.pending.push_back(x);
                      const double before = bin.threshold;
                      if (!many)
                        bin.threshold = std::max(bin.threshold, bin.lowers.push(x.lower));
                      else if (bin.pending.size() >= room)
                        tighten(bin);
                      if (bin.threshold != before) tell(q);
                    }
                    repeat_last(head);
                  },
                  [&](std::int64_t g, std::int64_t tile) {
                    GroupHead& head = queries.heads[g];
                    for (std::int64_t q = g * group_size; q < g * group_size + head.count; ++q)
                      finish_bin(q, tile), begin_bin(q), tell(q);
                    repeat_last(head);
                    return true;
                  });
              return static_cast<std::int64_t>(queries.codes.bytes() + static_cast<std::size_t>(n) *
                                                                           most_pending *
                                                                           sizeof(Candidate)) +
                     n * (job.k + 24) * static_cast<std::int64_t>(sizeof(KeyedId));
            });
}

}  // namespace

void scan_partial_reduce(const PackedBase& packed, const ScanJob& job, int kept,
                         const std::vector<std::int64_t>& which, ExactLists& out,
                         std::vector<KeyedId>& dropped, ExactLists* candidates, ScanStats& stats,
                         const Progress& progress) {
  if (which.empty()) return;
  if (packed.is_integer)
    reduce_integer(packed, job, kept, which, out, dropped, candidates, stats, progress);
  else
    reduce_certified(packed, job, kept, which, out, dropped, candidates, stats, progress);
}

}  // namespace knear::detail
