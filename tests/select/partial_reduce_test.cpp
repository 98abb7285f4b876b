// PartialReduce against sorting bin by bin, and its certificate against the truth: over a million
// small cases, mostly with ties.
#include "knear/select/partial_reduce.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "knear/core/random.hpp"

namespace knear {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Row {
  double value, lower;  // the exact value, and a lower bound of it
  std::int64_t bin, id;
};

std::vector<KeyedId> sorted(std::vector<KeyedId> pairs, std::size_t k) {
  std::sort(pairs.begin(), pairs.end());
  pairs.resize(std::min(pairs.size(), k));
  return pairs;
}

struct Case {
  std::vector<Row> rows;
  std::int64_t bins;
  int kept;
  std::int64_t k;
};

// n up to 12, values of a few kinds, ids in any order; lower bounds equal to the value or below.
Case small_case(Random& random) {
  Case c;
  c.bins = 1 + static_cast<std::int64_t>(random.below(4));
  c.kept = 1 + static_cast<int>(random.below(3));
  c.k = 1 + static_cast<std::int64_t>(random.below(6));
  const auto n = static_cast<std::int64_t>(random.below(13));
  const std::uint64_t kinds = 1 + random.below(6);
  const std::uint64_t slack = random.below(4);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(3 * i);
  for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
  const std::uint64_t order = random.below(3);
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<double>(random.below(kinds)) - 1);
  if (order == 1) std::sort(values.begin(), values.end());
  if (order == 2) std::sort(values.rbegin(), values.rend());
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = values[static_cast<std::size_t>(i)];
    const auto below = static_cast<double>(random.below(slack + 1));
    const auto bin =
        random.below(2)
            ? i % c.bins
            : static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(c.bins)));
    c.rows.push_back({value, value - below, bin, ids[static_cast<std::size_t>(i)]});
  }
  return c;
}

TEST(PartialReduce, KeepsTheBestOfEachBinAndTheBestDropped) {
  Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const Case c = small_case(random);
    PartialReduce reduce(c.bins, c.kept);
    for (const Row& row : c.rows) reduce.offer(row.bin, row.value, row.id);
    std::vector<KeyedId> kept, dropped;
    for (std::int64_t bin = 0; bin < c.bins; ++bin) {
      std::vector<KeyedId> all;
      for (const Row& row : c.rows)
        if (row.bin == bin) all.emplace_back(row.value, row.id);
      std::sort(all.begin(), all.end());
      for (std::size_t j = 0; j < all.size(); ++j)
        (j < static_cast<std::size_t>(c.kept) ? kept : dropped).push_back(all[j]);
    }
    ASSERT_EQ(reduce.candidates(), kept);
    ASSERT_EQ(reduce.smallest(c.k), sorted(kept, static_cast<std::size_t>(c.k)));
    ASSERT_EQ(reduce.best_dropped().has_value(), !dropped.empty());
    if (!dropped.empty()) {
      ASSERT_EQ(*reduce.best_dropped(), *std::min_element(dropped.begin(), dropped.end()));
    }
  }
}

TEST(PartialReduce, IsCertifiedIffTheAnswerIsTheTruth) {
  Random random(2);
  std::int64_t exact = 0, exact_and_certified = 0;
  for (int i = 0; i < 1000000; ++i) {
    const Case c = small_case(random);
    PartialReduce reduce(c.bins, c.kept);
    std::vector<KeyedId> all;
    for (const Row& row : c.rows) {
      reduce.offer(row.bin, row.value, row.id);
      all.emplace_back(row.value, row.id);
    }
    const bool true_answer =
        reduce.smallest(c.k) == sorted(std::move(all), static_cast<std::size_t>(c.k));
    ASSERT_EQ(reduce.certified(c.k), true_answer) << i;
    exact += true_answer, exact_and_certified += reduce.certified(c.k);
  }
  EXPECT_EQ(exact, exact_and_certified);
  EXPECT_GT(exact, 300000);
  EXPECT_LT(exact, 900000);
}

TEST(PartialReduce, IsSoundForIntervals) {
  Random random(3);
  std::int64_t exact = 0, certain = 0;
  for (int i = 0; i < 1000000; ++i) {
    const Case c = small_case(random);
    PartialReduce reduce(c.bins, c.kept);
    std::vector<KeyedId> all;
    for (const Row& row : c.rows) {
      reduce.offer(row.bin, row.lower, row.id);
      all.emplace_back(row.value, row.id);
    }
    std::vector<KeyedId> rescored;
    for (const KeyedId& candidate : reduce.candidates())
      rescored.push_back(*std::find_if(all.begin(), all.end(), [&](const KeyedId& row) {
        return row.second == candidate.second;
      }));
    const auto k = static_cast<std::size_t>(c.k);
    const auto answer = sorted(rescored, k);
    const bool true_answer = answer == sorted(all, k);
    if (certified(answer, c.k, reduce.best_dropped())) {
      ASSERT_TRUE(true_answer) << i;
      ++certain;
    }
    exact += true_answer;
  }
  // Some true answers cannot be certified; most can.
  EXPECT_GT(certain, exact / 2);
  EXPECT_LT(certain, exact);
}

TEST(PartialReduce, KeepingOneMoreOfEachBinCertifiesTheSame) {
  Random random(4);
  for (int i = 0; i < 200000; ++i) {
    const Case c = small_case(random);
    PartialReduce reduce(c.bins, c.kept), wider(c.bins, c.kept + 1);
    for (const Row& row : c.rows) {
      reduce.offer(row.bin, row.value, row.id);
      wider.offer(row.bin, row.value, row.id);
    }
    // Certified by the wider reduction: no bin has all its kept + 1 at or before the k-th of those
    // that the narrower one keeps.
    const auto answer = reduce.smallest(c.k);
    std::vector<int> before(static_cast<std::size_t>(c.bins));
    for (const KeyedId& candidate : wider.candidates())
      for (const Row& row : c.rows)
        if (row.id == candidate.second)
          before[static_cast<std::size_t>(row.bin)] +=
              static_cast<std::int64_t>(answer.size()) < c.k || candidate <= answer.back();
    const bool hidden =
        std::any_of(before.begin(), before.end(), [&](int count) { return count == c.kept + 1; });
    ASSERT_EQ(!hidden, reduce.certified(c.k));
  }
}

TEST(PartialReduce, NaNIsNeitherKeptNorDropped) {
  PartialReduce reduce(1, 2);
  for (const double x : {nan, 3.0, -nan, 1.0, nan}) reduce.offer(0, x, static_cast<int>(x == 1));
  EXPECT_EQ(reduce.candidates(), (std::vector<KeyedId>{{1.0, 1}, {3.0, 0}}));
  EXPECT_FALSE(reduce.best_dropped());
  EXPECT_TRUE(reduce.certified(5));
}

TEST(PartialReduce, InfinitiesAndZeros) {
  PartialReduce reduce(1, 2);
  reduce.offer(0, infinity, 1);
  EXPECT_EQ(reduce.candidates().size(), 1u);
  reduce.offer(0, 0.0, 7);
  reduce.offer(0, -0.0, 3);
  reduce.offer(0, -infinity, 9);
  EXPECT_EQ(reduce.smallest(2), (std::vector<KeyedId>{{-infinity, 9}, {0.0, 3}}));
  EXPECT_EQ(*reduce.best_dropped(), (KeyedId{0.0, 7}));
  EXPECT_TRUE(reduce.certified(2));
  EXPECT_FALSE(reduce.certified(3));
}

// An equal lower end hides nothing from a smaller id, and may hide something from a larger one.
TEST(Certified, EqualLowerEnds) {
  const std::vector<KeyedId> results{{1.0, 4}, {2.0, 5}};
  EXPECT_TRUE(certified(results, 2, KeyedId{2.0, 6}));
  EXPECT_FALSE(certified(results, 2, KeyedId{2.0, 3}));
  EXPECT_FALSE(certified(results, 2, KeyedId{1.9, 6}));
  EXPECT_TRUE(certified(results, 3, std::nullopt));
  EXPECT_FALSE(certified(results, 3, KeyedId{infinity, 6}));
}

TEST(PartialReduce, RefusesBadArguments) {
  EXPECT_THROW(PartialReduce(0, 1), InvalidArgument);
  EXPECT_THROW(PartialReduce(1, 0), InvalidArgument);
  PartialReduce reduce(3, 1);
  EXPECT_THROW(reduce.offer(3, 0.0, 1), InvalidArgument);
  EXPECT_THROW(reduce.offer(-1, 0.0, 1), InvalidArgument);
  EXPECT_THROW(reduce.smallest(0), InvalidArgument);
}

}  // namespace
}  // namespace knear
