// The TH-heap across the emulated device and the processor: the pairs of tiles against every pair
// measured, and whole scans against the reference, to the bit.
#include "knear/scan/device/threshold_heap_by_tiles.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/scan/device/device_problem.hpp"

namespace knear::detail {
namespace {

bool same(std::span<const PrunedPair> a, const std::vector<PrunedPair>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const PrunedPair& x, const PrunedPair& y) {
           return x.low == y.low && x.high == y.high && x.query == y.query && x.row == y.row;
         });
}

// Checks that every row that a threshold does not exclude comes once, its key within the ends; that
// rows whose interval begins above it do not, but for rounding; that pairs are ordered by query;
// and that a buffer keeps its tile while the next one arrives.
void expect_sound(Problem& problem, const DeviceTileSizes& sizes, const std::string& what) {
  const std::int64_t count = problem.queries.rows();
  const ScanJob job = problem.job(1);
  DeviceTiles<HostQueue> tiles(problem.queue, problem.scan, job, Keys::ends, sizes, all_of(count));
  const std::vector<std::int64_t>& numbers = tiles.queries();
  std::vector<std::vector<int>> seen(
      static_cast<std::size_t>(count),
      std::vector<int>(static_cast<std::size_t>(problem.base.rows())));
  std::vector<PrunedPair> last;
  std::span<const PrunedPair> last_span;
  tiles.start(0, 0);
  for (std::int64_t tile = 0; tile < tiles.tiles(); ++tile) {
    const auto pairs = tiles.wait(tile % 2);
    ASSERT_TRUE(same(last_span, last)) << what << ", tile " << tile - 1 << " was written over";
    if (tile + 1 < tiles.tiles()) tiles.start(tile + 1, (tile + 1) % 2);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const PrunedPair& pair = pairs[i];
      ASSERT_LT(pair.query, count) << what;
      ASSERT_LT(pair.row, problem.base.rows()) << what;
      ASSERT_GE(pair.query, pairs[i > 0 ? i - 1 : 0].query) << what;
      const std::int64_t query = numbers[pair.query];
      const double key = problem.keys.row(query)[pair.row];
      ASSERT_LE(pair.low, key) << what << ", query " << query << ", row " << pair.row;
      ASSERT_GE(pair.high, key) << what << ", query " << query << ", row " << pair.row;
      const double bound = problem.upper_bounds[static_cast<std::size_t>(query)];
      ASSERT_LE(pair.low, bound + 1e-12 * (1 + std::fabs(bound))) << what;
      ASSERT_TRUE(!problem.packed.is_integer || pair.low == pair.high) << what;
      ++seen[static_cast<std::size_t>(query)][pair.row];
    }
    last.assign(pairs.begin(), pairs.end()), last_span = pairs;
  }
  for (std::int64_t q = 0; q < count; ++q)
    for (std::int64_t i = 0; i < problem.base.rows(); ++i) {
      const int times = seen[static_cast<std::size_t>(q)][static_cast<std::size_t>(i)];
      ASSERT_LE(times, 1) << what << ", query " << q << ", row " << i;
      if (problem.keys.row(q)[i] <= problem.upper_bounds[static_cast<std::size_t>(q)]) {
        ASSERT_EQ(times, 1) << what << ", query " << q << ", row " << i;
      }
    }
}

TEST(ThresholdHeapByTiles, TilesHoldWhatThresholdsLeave) {
  std::uint64_t seed = 1;
  const auto check = [&](auto base_type, auto query_type, std::int64_t rows, std::int64_t count) {
    using B = decltype(base_type);
    using Q = decltype(query_type);
    const auto base = vectors<B>(rows, 21, ++seed), queries = vectors<Q>(count, 21, ++seed);
    for (Metric metric : metrics)
      for (std::int64_t rank : {std::int64_t{0}, rows / 9, rows}) {
        Problem problem(base.view(), queries.view(), metric, ++seed);
        problem.set_upper_bounds(rank);
        const std::string what = std::string(name_of(metric)) + ", rank " + std::to_string(rank) +
                                 ", seed " + std::to_string(seed);
        // Tiles of one panel, of some, of all; pairs that fit at once and one by one.
        expect_sound(problem, {256, 128, 32, rank == rows ? 997 : 64}, what + ", panels");
        expect_sound(problem, {256, 256, 96, 1 << 20}, what + ", some");
        expect_sound(problem, {256, 128, 1 << 20, 4096}, what + ", all");
        if (testing::Test::HasFatalFailure()) return;
      }
  };
  check(float{}, float{}, 170, 140);
  check(std::uint8_t{}, std::uint8_t{}, 170, 140);
  check(std::int8_t{}, std::int8_t{}, 130, 5);
  check(f16{}, float{}, 130, 5);
  check(bf16{}, bf16{}, 130, 5);
}

// Pairs that are fetched one at a time are the same as those fetched together.
TEST(ThresholdHeapByTiles, NoPairIsLostWhereThereIsNoRoom) {
  const auto base = vectors<float>(100, 9, 5), queries = vectors<float>(7, 9, 6);
  Problem problem(base.view(), queries.view(), Metric::l2, 7);
  problem.set_upper_bounds(100);
  for (std::int64_t room : {1, 2, 31, 32, 33, 223, 224, 225, 699, 700, 701, 5000})
    expect_sound(problem, {7, 7, 1 << 20, room}, "room " + std::to_string(room));
}

// Searches with thresholds of some rank and compares with all keys; returns the number of queries
// left over.
std::int64_t expect_exact(Problem& problem, std::int64_t k, std::int64_t rank,
                          DeviceTileSizes sizes, std::int64_t batch, int threads,
                          const std::string& what, ThresholdHeapStats* heap_stats = nullptr,
                          const RowFilter* filter = nullptr) {
  const std::int64_t count = problem.queries.rows();
  problem.set_upper_bounds(std::max(rank, k - 1));
  ExactNeighbors out(count, k);
  ScanJob job = problem.job(k, threads);
  job.allowed.filter = filter;
  ScanStats stats;
  ThresholdHeapStats heap;
  const auto left = scan_threshold_heap_on(problem.queue, problem.scan, job, sizes, batch,
                                           all_of(count), out, stats, heap, {});
  if (heap_stats) *heap_stats = heap;
  for (std::int64_t q = 0; q < count; ++q) {
    if (std::find(left.begin(), left.end(), q) != left.end()) continue;
    std::vector<std::pair<double, Id>> all;
    for (Id i = 0; i < problem.base.rows(); ++i)
      if (!filter || filter->allows(i)) all.emplace_back(problem.keys.row(q)[i], i);
    std::sort(all.begin(), all.end());
    for (std::int64_t j = 0; j < k; ++j) {
      const bool has = j < std::ssize(all);
      const auto wanted = has ? all[static_cast<std::size_t>(j)]
                              : std::pair(std::numeric_limits<double>::infinity(), no_id);
      EXPECT_EQ(out.ids.row(q)[j], wanted.second) << what << ", query " << q << ", place " << j;
      EXPECT_EQ(std::bit_cast<std::uint64_t>(out.keys.row(q)[j] + 0.0),
                std::bit_cast<std::uint64_t>(wanted.first + 0.0))
          << what << ", query " << q << ", place " << j;
      if (testing::Test::HasFailure()) return -1;
    }
  }
  return std::ssize(left);
}

TEST(ThresholdHeapByTiles, FindsWhatTheReferenceFinds) {
  std::uint64_t seed = 100;
  const auto check = [&](auto base_type, auto query_type, std::int64_t count, int different) {
    using B = decltype(base_type);
    using Q = decltype(query_type);
    const auto base = vectors<B>(400, 13, ++seed, different),
               queries = vectors<Q>(count, 13, ++seed, different);
    for (Metric metric : metrics)
      for (std::int64_t k : {1, 10, 100}) {
        Problem problem(base.view(), queries.view(), metric, ++seed);
        const std::string what = std::string(name_of(metric)) + ", k " + std::to_string(k) +
                                 ", seed " + std::to_string(seed);
        // Groups of one block, two of them coded together; and all at once.
        EXPECT_EQ(expect_exact(problem, k, 2 * k, {256, 128, 96, 3000}, 50, 2, what), 0);
        EXPECT_EQ(expect_exact(problem, k, k - 1, {512, 512, 4096, 1 << 20}, 7, 1, what), 0);
        if (testing::Test::HasFailure()) return;
      }
  };
  check(float{}, float{}, 300, 1000);
  check(float{}, float{}, 5, 2);  // most rows and distances are equal
  check(std::uint8_t{}, std::uint8_t{}, 130, 3);
  check(std::int8_t{}, std::int8_t{}, 20, 1000);
  check(f16{}, f16{}, 20, 1000);
}

TEST(ThresholdHeapByTiles, RowsThatAFilterForbidsAreDropped) {
  const auto base = vectors<float>(500, 8, 21), queries = vectors<float>(9, 8, 22);
  const auto whole = vectors<std::uint8_t>(500, 8, 23),
             whole_queries = vectors<std::uint8_t>(9, 8, 24);
  std::vector<Id> ids;
  for (Id id = 3; id < 500; id += 7) ids.push_back(id);
  const RowFilter filter = RowFilter::of_ids(ids, 500);
  Problem floats(base.view(), queries.view(), Metric::l2, 25);
  EXPECT_EQ(expect_exact(floats, 10, 400, {128, 128, 64, 100}, 4, 2, "floats", nullptr, &filter),
            0);
  Problem integers(whole.view(), whole_queries.view(), Metric::ip, 26);
  EXPECT_EQ(expect_exact(integers, 10, 400, {128, 128, 64, 100}, 4, 2, "whole", nullptr, &filter),
            0);
}

// The shares of Eq. 4 are those of the processor where both use exact integers.
TEST(ThresholdHeapByTiles, CountsAsTheProcessorDoes) {
  const auto base = vectors<std::uint8_t>(600, 10, 31), queries = vectors<std::uint8_t>(50, 10, 32);
  Problem problem(base.view(), queries.view(), Metric::l2, 33);
  ThresholdHeapStats across;
  EXPECT_EQ(expect_exact(problem, 5, 60, {128, 128, 96, 200}, 16, 2, "counts", &across), 0);
  ExactNeighbors out(50, 5);
  ScanStats stats;
  ThresholdHeapStats alone;
  const ScanJob job = problem.job(5);
  const PackedBase packed =
      PackedBase::integer(problem.base, {}, Metric::l2, active_isa(),
                          find_value_range(problem.base, Metric::l2, "base", 1), 1, {});
  scan_threshold_heap(packed, job, 16, all_of(50), out, stats, alone, {});
  EXPECT_EQ(across.kept, alone.kept);
  EXPECT_EQ(across.batches, alone.batches);
  EXPECT_EQ(across.compress_sum, alone.compress_sum);
  EXPECT_EQ(across.measured, 0);
}

// With less and less memory there are fewer queries at a time, and in the end none, but never a
// wrong answer.
TEST(ThresholdHeapByTiles, WithoutMemoryQueriesAreLeft) {
  const auto base = vectors<float>(700, 16, 41), queries = vectors<float>(400, 16, 42);
  std::int64_t fewest = 400, most = 0;
  for (std::size_t kilobytes : {150, 250, 400, 700, 1200, 3000}) {
    Problem problem(base.view(), queries.view(), Metric::l2, 43, kilobytes << 10);
    const std::int64_t left = expect_exact(problem, 4, 100, {512, 512, 256, 4096}, 48, 2,
                                           std::to_string(kilobytes) + " KB");
    if (HasFailure()) return;
    fewest = std::min(fewest, left), most = std::max(most, left);
  }
  EXPECT_EQ(fewest, 0);
  EXPECT_EQ(most, 400);
}

TEST(ThresholdHeapByTiles, StopsOnRequest) {
  const auto base = vectors<float>(700, 6, 51), queries = vectors<float>(300, 6, 52);
  Problem problem(base.view(), queries.view(), Metric::l2, 53);
  problem.set_upper_bounds(50);
  const ScanJob job = problem.job(3);
  std::vector<double> fractions;
  int last = 1000;
  const auto run = [&] {
    ExactNeighbors out(300, 3);
    ScanStats stats;
    ThresholdHeapStats heap;
    DeviceTileSizes sizes{128, 128, 64, 1000};
    scan_threshold_heap_on(problem.queue, problem.scan, job, sizes, 48, all_of(300), out, stats,
                           heap, [&](std::string_view, double fraction) {
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

}  // namespace
}  // namespace knear::detail
