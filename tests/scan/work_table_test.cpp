// Work tables: divide() gives every query every panel once; and a table made by hand serves
// inverted lists, whose queries probe a few panel ranges each, in one call or in several.
#include "knear/scan/work_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "knear/scan/nearest_state.hpp"
#include "tests/scan/scan_cases.hpp"

namespace knear::detail {
namespace {

TEST(WorkTable, DivideGivesEveryQueryEveryPanelOnce) {
  const ScanCase c(vectors(Codes::int8, 1500, 24, 1), vectors(Codes::int8, 1, 24, 2), Metric::l2);
  for (const std::int64_t tile_bytes : {1 << 20, 4096, 1500}) {
    const PackedBase packed = c.packed(Codes::int8, active_isa(), tile_bytes);
    for (const std::int64_t count : {0, 1, 4, 5, 12, 13, 95, 96, 97, 1500})
      for (const int threads : {1, 2, 5, 64})
        for (const int splits : {0, 1, 2, 7, 1000})
          for (const int group : {0, 1, 4, 12})
            for (const std::int64_t k : {1, 10000}) {
              ScanJob job = c.job(k, active_isa(), threads);
              job.splits = splits, job.group = group;
              std::vector<std::int64_t> queries;  // any numbers in any order
              for (std::int64_t i = 0; i < count; ++i) queries.push_back(3 * (count - i));
              ScanStats stats;
              const WorkTable table = divide(packed, queries, job, stats);
              SCOPED_TRACE(std::to_string(count) + " queries, threads " + std::to_string(threads) +
                           ", splits " + std::to_string(splits));
              ASSERT_EQ(table.queries, queries);
              if (group != 0) {
                ASSERT_EQ(group_sizes[table.group], group);
              }
              ASSERT_EQ(stats.group, group_sizes[table.group]);
              // Sets follow one another, and so do their tasks.
              std::int64_t query = 0, task = 0, tiles = 0;
              for (std::size_t s = 0; s < table.sets.size(); ++s) {
                const QuerySet& set = table.sets[s];
                ASSERT_EQ(set.begin, query);
                ASSERT_GT(set.count(), 0);
                ASSERT_LE(set.count(), queries_in_block(k) + group_sizes[table.group]);
                ASSERT_EQ(set.first_task, task);
                ASSERT_EQ(set.last_task - set.first_task, stats.splits);
                ASSERT_EQ(set.alone(), stats.splits == 1);
                std::int64_t panel = 0;
                for (; task < set.last_task; ++task) {
                  const ScanTask& of = table.tasks[static_cast<std::size_t>(task)];
                  ASSERT_EQ(of.set, std::int64_t(s));
                  ASSERT_EQ(of.panels.begin, panel);
                  ASSERT_EQ(of.panels.begin % packed.panels_per_tile, 0);
                  ASSERT_GT(of.panels.end, of.panels.begin);
                  tiles += (of.panels.end - of.panels.begin) / packed.panels_per_tile;
                  panel = of.panels.end;
                }
                ASSERT_EQ(panel, packed.panels());
                query = set.end;
              }
              ASSERT_EQ(query, count);
              ASSERT_EQ(task, std::ssize(table.tasks));
              ASSERT_EQ(table.tiles(packed.panels_per_tile), tiles);
              if (splits > 0 && count > 0) {
                ASSERT_EQ(stats.splits, std::min<std::int64_t>(splits, packed.tiles));
              }
              // Every thread has a task where there are that many.
              if (splits == 0 && count > 0) {
                ASSERT_GE(std::ssize(table.tasks), std::min<std::int64_t>(threads, packed.tiles));
              }
            }
  }
}

TEST(WorkTable, GroupsSuitTheNumberOfQueries) {
  const ScanCase c(vectors(Codes::int8, 1, 4, 1), vectors(Codes::int8, 1, 4, 2), Metric::l2);
  const ScanJob job = c.job(1);
  EXPECT_EQ(group_for(1, job), group_1);
  for (const std::int64_t count : {2, 4}) EXPECT_EQ(group_for(count, job), group_4);
  for (const std::int64_t count : {5, 12, 1000}) EXPECT_EQ(group_for(count, job), group_12);
}

TEST(WorkTable, CountsTilesOfShortTasksToo) {
  WorkTable table;
  table.add(3, {{0, 5}, {9, 10}, {4, 4}});
  table.add(2, {{7, 15}});
  EXPECT_EQ(table.tiles(4), 2 + 1 + 0 + 2);
  EXPECT_EQ(table.sets[0].last_task, 3);
  EXPECT_FALSE(table.sets[0].alone());
  EXPECT_EQ(table.sets[1].begin, 3);
  EXPECT_EQ(table.sets[1].end, 5);
  EXPECT_TRUE(table.sets[1].alone());
}

TEST(WorkTable, CountsTilesOfPartsByWhatTheseSay) {
  const ScanCase c(vectors(Codes::int8, 900, 24, 1), vectors(Codes::int8, 1, 24, 2), Metric::l2);
  const PackedBase small = c.packed(Codes::int8, active_isa(), 4096),
                   large = c.packed(Codes::int8, active_isa(), 16384);
  ASSERT_GT(large.panels_per_tile, small.panels_per_tile);
  WorkTable table;
  table.parts = {{&small, 0}, {&large, 900}};
  table.add(3, {{0, 12, 0}, {0, 12, 1}}, 1);
  const auto tiles = [](const PackedBase& base) {
    return (12 + base.panels_per_tile - 1) / base.panels_per_tile;
  };
  EXPECT_EQ(table.tiles(1), tiles(small) + tiles(large));
  EXPECT_EQ(table.part_of(table.tasks[0].panels, small).packed, &small);
  EXPECT_EQ(table.part_of(table.more_of(table.tasks[0])[0], small).packed, &large);
  EXPECT_EQ(table.part_of(table.more_of(table.tasks[0])[0], small).first_row, 900u);
}

TEST(WorkTable, TasksMayHaveSeveralRanges) {
  WorkTable table;
  table.add(1, {{0, 5}, {9, 10}, {20, 24}, {30, 31}, {40, 42}}, 2);
  table.add(4, {{7, 15}}, 1);
  ASSERT_EQ(table.tasks.size(), 3u);
  EXPECT_FALSE(table.sets[0].alone());
  EXPECT_TRUE(table.sets[1].alone());
  EXPECT_EQ(table.tiles(4), 2 + 1 + 1 + 1 + 1 + 2);
  std::vector<std::int64_t> seen;
  for (const ScanTask& task : table.tasks) {
    seen.insert(seen.end(), {-task.set, task.panels.begin, task.panels.end});
    for (const PanelRange& range : table.more_of(task))
      seen.insert(seen.end(), {range.begin, range.end});
  }
  EXPECT_EQ(seen,
            (std::vector<std::int64_t>{0, 0, 5, 9, 10, 0, 20, 24, 30, 31, 40, 42, -1, 7, 15}));
}

// ---- inverted lists -----------------------------------------------------------------------------

// A packed base of which ranges of panels are lists, and which lists each query probes.
struct Lists {
  const PackedBase& packed;
  std::vector<std::pair<std::int64_t, std::int64_t>> panels;  // [lists]
  std::vector<std::vector<std::int64_t>> probing;             // [lists]: queries

  // Lists of 0, 1, 2, ... panels that share the base, each query probing about a third of them.
  Lists(const PackedBase& base, std::int64_t queries, std::uint64_t seed) : packed(base) {
    Random random(seed);
    for (std::int64_t begin = 0, size = 0; begin < packed.panels(); begin += size++)
      panels.emplace_back(begin, std::min(packed.panels(), begin + size));
    probing.resize(panels.size());
    for (std::int64_t q = 0; q < queries; ++q)
      for (std::size_t l = 0; l < panels.size(); ++l)
        if (q != 2 && random.below(3) == 0) probing[l].push_back(q);  // query 2 probes none
  }

  // The lists from `begin` to `end`, each a set of its queries and one task; long lists are two
  // tasks if `halves`.
  WorkTable table(std::size_t begin, std::size_t end, bool halves) const {
    WorkTable out;
    for (std::size_t l = begin; l < end; ++l) {
      if (probing[l].empty()) continue;
      out.queries.insert(out.queries.end(), probing[l].begin(), probing[l].end());
      const auto [from, to] = panels[l];
      if (halves && to - from > 2)
        out.add(std::ssize(probing[l]), {{from, from + 1}, {from + 1, to}});
      else
        out.add(std::ssize(probing[l]), {{from, to}});
    }
    return out;
  }

  // The reference's answer to a query: of all pairs, nearest first, those of rows that it probes.
  // A row that stands for copies brings them along.
  std::vector<KeyedId> expected(const ScanCase& c, std::int64_t query,
                                const AllowedRows& allowed) const {
    std::set<Id> probed;
    for (std::size_t l = 0; l < panels.size(); ++l)
      if (std::find(probing[l].begin(), probing[l].end(), query) != probing[l].end())
        for (auto slot = panels[l].first * panel_rows; slot < panels[l].second * panel_rows; ++slot)
          if (const std::uint32_t row = packed.ids[static_cast<std::size_t>(slot)];
              row != PackedBase::no_row) {
            probed.insert(row);
            if (packed.duplicates.any())
              for (const std::uint32_t copy : packed.duplicates.others(row)) probed.insert(copy);
          }
    std::vector<KeyedId> out = c.found(query, allowed);
    std::erase_if(out, [&](const KeyedId& x) { return !probed.contains(x.second); });
    return out;
  }
};

class InvertedLists : public testing::TestWithParam<std::tuple<Codes, Metric>> {
 protected:
  static constexpr std::int64_t rows = 2500, queries = 31;
  const Codes codes = std::get<0>(GetParam());
  const Metric metric = std::get<1>(GetParam());

  ScanCase make_case() const {
    AnyMatrix base = vectors(codes, rows, 24, 1);
    for (std::int64_t i = 0; i < rows; i += 7) copy_row(base, i / 2, i);
    return ScanCase(std::move(base), vectors(codes, queries, 24, 2), metric);
  }
  // Tiles of a few panels; lists begin anywhere in them.
  PackedBase pack(const ScanCase& c) const { return c.packed(codes, active_isa(), 2400); }
};

TEST_P(InvertedLists, GiveTheKNearestOfTheListsThatWereProbed) {
  const ScanCase c = make_case();
  const PackedBase packed = pack(c);
  ASSERT_GE(packed.tiles, 16);
  const Lists lists(packed, queries, 3);
  const std::size_t all = lists.panels.size();
  ASSERT_GT(all, 8u);
  // Calls that go over the lists: all at once, one after another, from the last to the first, ...
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> orders(4);
  orders[0] = {{0, all}};
  for (std::size_t l = 0; l < all; ++l) orders[1].push_back({l, l + 1});
  orders[2].assign(orders[1].rbegin(), orders[1].rend());
  orders[3] = {{all / 2, all}, {0, 3}, {3, all / 2}};
  RowSet live(rows);
  for (std::int64_t i = 0; i < rows; i += 3) live.remove(i);
  for (const std::int64_t k : {1, 10, 40, 200})
    for (const bool some_live : {false, true}) {
      ScanJob job = c.job(k, active_isa(), 3);
      job.may_estimate = false;
      if (some_live) job.allowed.live = &live;
      std::vector<std::vector<KeyedId>> expected;
      for (std::int64_t q = 0; q < queries; ++q)
        expected.push_back(lists.expected(c, q, job.allowed));
      for (std::size_t order = 0; order < orders.size(); ++order)
        for (const bool halves : {false, true}) {
          NearestState state(queries, packed, job);
          ScanStats stats;
          for (const auto& [from, to] : orders[order])
            scan_tasks(packed, job, lists.table(from, to, halves), state, stats, {});
          ExactNeighbors out(queries, k);
          ASSERT_TRUE(finish_nearest(packed, job, all_of(queries), state, out, stats).empty());
          for (std::int64_t q = 0; q < queries; ++q)
            ASSERT_TRUE(
                is_list(expected[static_cast<std::size_t>(q)], out.keys.row(q), out.ids.row(q), k))
                << "query " << q << " k " << k << " order " << order;
        }
    }
}

// The tiles of a few lists are no sample of what they hold, so estimates may be wrong; but then the
// query is named.
TEST_P(InvertedLists, NameTheQueriesWhoseEstimatesWereWrong) {
  const ScanCase c = make_case();
  const PackedBase packed = pack(c);
  const Lists lists(packed, queries, 4);
  std::size_t right = 0, named = 0;
  for (const std::int64_t k : {33, 100}) {
    const ScanJob job = c.job(k, active_isa(), 1);
    NearestState state(queries, packed, job);
    ScanStats stats;
    for (std::size_t l = lists.panels.size(); l-- > 0;)
      scan_tasks(packed, job, lists.table(l, l + 1, false), state, stats, {});
    EXPECT_TRUE(stats.estimated);
    ExactNeighbors out(queries, k);
    const auto wrong = finish_nearest(packed, job, all_of(queries), state, out, stats);
    ASSERT_TRUE(std::is_sorted(wrong.begin(), wrong.end()));
    named += wrong.size();
    for (std::int64_t q = 0; q < queries; ++q)
      if (!std::binary_search(wrong.begin(), wrong.end(), q)) {
        ++right;
        ASSERT_TRUE(is_list(lists.expected(c, q, {}), out.keys.row(q), out.ids.row(q), k))
            << "query " << q << " k " << k;
      }
  }
  EXPECT_GT(right, 0u);
  EXPECT_GT(named, 0u);
}

// Rows of another base may have given k keys before: only what is at least as near is wanted.
TEST_P(InvertedLists, StartFromUpperBounds) {
  const ScanCase c = make_case();
  const PackedBase packed = pack(c);
  const Lists lists(packed, queries, 5);
  for (const std::int64_t k : {10, 40}) {
    std::vector<double> bounds;
    for (const auto& list : c.order) bounds.push_back(list[20].first);
    ScanJob job = c.job(k);
    job.may_estimate = false, job.upper_bounds = bounds.data();
    NearestState state(queries, packed, job);
    ScanStats stats;
    scan_tasks(packed, job, lists.table(0, lists.panels.size(), true), state, stats, {});
    ExactNeighbors out(queries, k);
    ASSERT_TRUE(finish_nearest(packed, job, all_of(queries), state, out, stats).empty());
    for (std::int64_t q = 0; q < queries; ++q)
      ASSERT_TRUE(is_list(lists.expected(c, q, {}), out.keys.row(q), out.ids.row(q), k,
                          bounds[static_cast<std::size_t>(q)]))
          << "query " << q << " k " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codes, InvertedLists,
    testing::Values(std::tuple(Codes::int8, Metric::l2), std::tuple(Codes::int8, Metric::cosine),
                    std::tuple(Codes::int16, Metric::ip), std::tuple(Codes::fp32, Metric::l2),
                    std::tuple(Codes::integer, Metric::l2), std::tuple(Codes::integer, Metric::ip)),
    [](const auto& p) {
      return name_of(std::get<0>(p.param)) + "_" + std::string(name_of(std::get<1>(p.param)));
    });

}  // namespace
}  // namespace knear::detail
