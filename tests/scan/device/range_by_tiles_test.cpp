// Range searches of one base on the emulated device: tiles whose pairs were measured there against
// every pair measured here, whole scans against the reference, and the sink of the pairs.
#include "knear/scan/device/range_by_tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/scan/device/device_problem.hpp"

namespace knear::detail {
namespace {

std::uint64_t bits(double x) { return std::bit_cast<std::uint64_t>(x); }

// The rows of a query within the limit, in order, with ids from `first` on.
std::vector<std::pair<double, std::int64_t>> within(const Problem& problem, std::int64_t query,
                                                    double limit, Id first = 0,
                                                    const RowFilter* filter = nullptr) {
  std::vector<std::pair<double, std::int64_t>> out;
  for (Id row = 0; row < problem.base.rows(); ++row)
    if (const double key = problem.keys.row(query)[row];
        key <= limit && (!filter || filter->allows(row)))
      out.emplace_back(key, first + row);
  std::sort(out.begin(), out.end());
  return out;
}

// A limit within which some queries have no row, and that is the very key of some row for another.
double limit_of(const Problem& problem, std::int64_t rank) {
  const std::int64_t rows = problem.base.rows();
  std::vector<double> row(problem.keys.row(0), problem.keys.row(0) + rows);
  std::sort(row.begin(), row.end());
  return row[static_cast<std::size_t>(std::min(rank, rows - 1))];
}

// Scans and compares with all keys, the queries in the order of `which`; returns the queries left
// over.
std::vector<std::int64_t> expect_exact(Problem& problem, double limit, DeviceTileSizes sizes,
                                       const std::string& what,
                                       const std::vector<std::int64_t>& which,
                                       const RowFilter* filter = nullptr,
                                       const Progress& progress = {}) {
  problem.upper_bounds.assign(static_cast<std::size_t>(problem.queries.rows()), limit);
  ScanJob job = problem.job(1);
  job.allowed.filter = filter;
  RangeLists lists(static_cast<std::size_t>(problem.queries.rows()));
  RangeSink sink(lists, {7, nullptr}, 1 << 30);
  ScanStats stats;
  const auto left = scan_range_on(problem.queue, problem.scan, job, limit, sizes, which, {}, sink,
                                  stats, progress);
  std::int64_t found = 0;
  for (std::int64_t q = 0; q < problem.queries.rows(); ++q) {
    auto& list = lists[static_cast<std::size_t>(q)];
    std::sort(list.begin(), list.end());
    found += std::ssize(list);
    const auto asked = [&](const std::vector<std::int64_t>& some) {
      return std::find(some.begin(), some.end(), q) != some.end();
    };
    auto truth = within(problem, q, limit, 7, filter);
    if (!asked(which) || asked(left)) truth.clear();
    EXPECT_EQ(list.size(), truth.size()) << what << ", query " << q;
    for (std::size_t i = 0; i < std::min(list.size(), truth.size()); ++i) {
      EXPECT_EQ(list[i].second, truth[i].second) << what << ", query " << q << ", place " << i;
      EXPECT_EQ(bits(list[i].first + 0.0), bits(truth[i].first + 0.0))
          << what << ", query " << q << ", place " << i;
    }
    if (testing::Test::HasFailure()) return left;
  }
  EXPECT_GE(stats.hits, found) << what;
  EXPECT_EQ(stats.survivors, problem.packed.is_integer ? 0 : stats.hits) << what;
  return left;
}

TEST(RangeByTiles, FindsWhatTheReferenceFinds) {
  std::uint64_t seed = 200;
  const auto check = [&](auto base_type, auto query_type, std::int64_t count, int different) {
    using B = decltype(base_type);
    using Q = decltype(query_type);
    const auto base = vectors<B>(170, 13, ++seed, different),
               queries = vectors<Q>(count, 13, ++seed, different);
    for (Metric metric : metrics)
      for (std::int64_t rank : {0, 40}) {
        Problem problem(base.view(), queries.view(), metric, ++seed);
        const std::string what = std::string(name_of(metric)) + ", rank " + std::to_string(rank) +
                                 ", seed " + std::to_string(seed);
        const double limit = limit_of(problem, rank);
        // Groups of one block, two of them coded together; and all at once.
        EXPECT_TRUE(expect_exact(problem, limit, {256, 128, 96, 500}, what, all_of(count)).empty());
        EXPECT_TRUE(
            expect_exact(problem, limit, {512, 512, 4096, 1 << 20}, what, all_of(count)).empty());
        if (testing::Test::HasFailure()) return;
      }
  };
  check(float{}, float{}, 135, 1000);
  check(float{}, float{}, 5, 2);  // most rows and distances are equal
  check(std::uint8_t{}, std::uint8_t{}, 129, 3);
  check(std::int8_t{}, std::int8_t{}, 5, 1000);
  check(f16{}, f16{}, 5, 1000);
  check(bf16{}, float{}, 5, 1000);
}

// Each pair comes once, however many of a tile are copied at once: one, a few, or about all.
TEST(RangeByTiles, NoPairIsLostWhereThereIsNoRoom) {
  const auto base = vectors<float>(100, 9, 5), queries = vectors<float>(7, 9, 6);
  const auto whole = vectors<std::uint8_t>(100, 9, 7), asked = vectors<std::uint8_t>(7, 9, 8);
  Problem floats(base.view(), queries.view(), Metric::cosine, 7),
      integers(whole.view(), asked.view(), Metric::l2, 8);
  for (std::int64_t room : {11, 32, 33, 223, 224, 225, 699, 700, 701, 5000})
    for (Problem* problem : {&floats, &integers})
      expect_exact(*problem, 1e9, {7, 7, 1 << 20, room}, "room " + std::to_string(room), all_of(7));
  expect_exact(floats, limit_of(floats, 9), {7, 7, 64, 1}, "one by one", all_of(7));
  expect_exact(integers, limit_of(integers, 9), {7, 7, 64, 1}, "one by one", all_of(7));
}

// The promise of tiles: both ends are the key itself; rows that the codes cannot separate from
// those within the limit may come too, except for whole numbers.
TEST(RangeByTiles, PairsAreMeasuredOnTheDevice) {
  const auto base = vectors<float>(170, 20, 11), queries = vectors<float>(9, 20, 12);
  const auto whole = vectors<std::uint8_t>(170, 20, 13), asked = vectors<std::uint8_t>(9, 20, 14);
  Problem floats(base.view(), queries.view(), Metric::l2, 15),
      integers(whole.view(), asked.view(), Metric::l2, 16);
  for (Problem* problem : {&floats, &integers}) {
    const bool integer = problem == &integers;
    const double limit = limit_of(*problem, 60);
    problem->upper_bounds.assign(9, limit);
    DeviceTiles<HostQueue> tiles(problem->queue, problem->scan, problem->job(1), Keys::exact,
                                 {9, 9, 64, 50}, all_of(9));
    EXPECT_EQ(tiles.measured(), !integer);
    std::int64_t above = 0, count = 0;
    for (std::int64_t tile = 0; tile < tiles.tiles(); ++tile) {
      EXPECT_EQ(tiles.queries_of(tile), 9);
      tiles.start(tile, 0);
      for (const PrunedPair& pair : tiles.wait(0)) {
        const double key = problem->keys.row(tiles.queries()[pair.query])[pair.row];
        ASSERT_EQ(bits(pair.low), bits(key));
        ASSERT_EQ(bits(pair.high), bits(key));
        above += key > limit, ++count;
      }
    }
    EXPECT_GT(count, 60);
    if (integer) {
      EXPECT_EQ(above, 0);
    }
    EXPECT_LT(above, count / 2);
  }
}

TEST(RangeByTiles, SomeOfTheQueriesAndRows) {
  const auto base = vectors<float>(500, 8, 21), queries = vectors<float>(150, 8, 22);
  const auto whole = vectors<std::uint8_t>(500, 8, 23), asked = vectors<std::uint8_t>(150, 8, 24);
  std::vector<Id> ids;
  for (Id id = 3; id < 500; id += 7) ids.push_back(id);
  const RowFilter filter = RowFilter::of_ids(ids, 500);
  Problem floats(base.view(), queries.view(), Metric::ip, 25);
  Problem integers(whole.view(), asked.view(), Metric::l2, 26);
  std::vector<std::int64_t> some;
  for (std::int64_t q = 1; q < 150; q += 3) some.push_back(q);
  for (Problem* problem : {&floats, &integers}) {
    const double limit = limit_of(*problem, 200);
    expect_exact(*problem, limit, {128, 128, 64, 1000}, "filter", all_of(150), &filter);
    expect_exact(*problem, limit, {128, 128, 64, 1000}, "some queries", some);
    expect_exact(*problem, limit, {128, 128, 64, 1000}, "nobody", {});
  }
}

// With less and less memory there are fewer queries at a time, and in the end none, but never a
// wrong answer.
TEST(RangeByTiles, WithoutMemoryQueriesAreLeft) {
  const auto base = vectors<float>(700, 16, 41), queries = vectors<float>(400, 16, 42);
  std::int64_t fewest = 400, most = 0;
  for (std::size_t kilobytes : {150, 250, 400, 700, 1200}) {
    Problem problem(base.view(), queries.view(), Metric::l2, 43, kilobytes << 10);
    const std::int64_t left =
        std::ssize(expect_exact(problem, limit_of(problem, 30), {512, 512, 256, 4096},
                                std::to_string(kilobytes) + " KB", all_of(400)));
    if (HasFailure()) return;
    fewest = std::min(fewest, left), most = std::max(most, left);
  }
  EXPECT_EQ(fewest, 0);
  EXPECT_EQ(most, 400);
}

TEST(RangeByTiles, StopsOnRequest) {
  const auto base = vectors<float>(700, 6, 51), queries = vectors<float>(300, 6, 52);
  Problem problem(base.view(), queries.view(), Metric::l2, 53);
  std::vector<double> fractions;
  std::int64_t last = 1000;
  const auto run = [&] {
    expect_exact(problem, limit_of(problem, 5), {128, 128, 64, 1000}, "stops", all_of(300), nullptr,
                 [&](std::string_view stage, double fraction) {
                   EXPECT_EQ(stage, "search");
                   fractions.push_back(fraction);
                   return std::ssize(fractions) < last;
                 });
  };
  run();
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1);
  fractions.clear(), last = 2;
  EXPECT_THROW(run(), Cancelled);
  EXPECT_EQ(fractions.size(), 2u);
}

// Pairs from a device go to the list of their query under the id of their row, on any number of
// threads, and no more of them than allowed.
TEST(RangeSink, TakesMeasuredPairs) {
  constexpr std::int64_t queries = 40;
  Random random(61);
  std::vector<PrunedPair> pairs;
  std::vector<std::int64_t> order, lists_of;
  for (std::int64_t q = 0; q < queries; ++q) {
    order.push_back(queries - 1 - q), lists_of.push_back((3 * q + 5) % queries);
    // One query has more than half of them; some have none.
    const std::uint64_t count = q == 11 ? 30000 : q % 4 == 0 ? 0 : random.below(1200);
    for (std::uint64_t i = 0; i < count; ++i) {
      const double key = static_cast<double>(random.below(100));
      pairs.push_back(
          {key, key, static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(random.below(500))});
    }
  }
  std::vector<std::uint32_t> rows(500);
  std::vector<Id> ids(5000);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint32_t>(10 * i + 3);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>(7 * i + 1);
  const auto expected = [&](const std::vector<std::int64_t>& which, double limit, bool renumbered) {
    RangeLists out(queries);
    for (const PrunedPair& pair : pairs) {
      if (pair.low > limit) continue;
      const std::int64_t query = order[pair.query];
      const std::int64_t list = which.empty() ? query : which[static_cast<std::size_t>(query)];
      out[static_cast<std::size_t>(list)].emplace_back(pair.low,
                                                       ids[renumbered ? rows[pair.row] : pair.row]);
    }
    return out;
  };
  for (int threads : {1, 2, 5})
    for (const double limit : {-1.0, 0.0, 50.0, 99.0}) {
      RangeLists plain(queries), chosen(queries);
      RangeSink all(plain, {0, ids.data()}, 1 << 30), some(chosen, {0, ids.data()}, 1 << 30);
      all.take(pairs, order, {}, limit, threads);
      EXPECT_EQ(plain, expected({}, limit, false));
      RangeSink theirs(some, lists_of);
      theirs.take(pairs, order, rows, limit, threads);
      EXPECT_EQ(chosen, expected(lists_of, limit, true));
    }
  // Pairs that are already there count; those above the limit do not.
  RangeLists lists(queries);
  lists[3].resize(10);
  std::int64_t within = 0;
  for (const PrunedPair& pair : pairs) within += pair.low <= 20;
  RangeSink enough(lists, {}, within + 10);
  EXPECT_NO_THROW(enough.take(pairs, order, {}, 20, 2));
  lists.assign(queries, {}), lists[3].resize(10);
  RangeSink few(lists, {}, within + 9);
  EXPECT_THROW(few.take(pairs, order, {}, 20, 2), MemoryBudgetError);
}

}  // namespace
}  // namespace knear::detail
