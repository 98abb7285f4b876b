// Branch-free selection and sorting against the standard library.
#include "knear/select/sort/sort_pairs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "knear/core/random.hpp"

namespace knear {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Random values of this many kinds: with few there are ties.
double value(Random& random, std::uint64_t kinds) {
  const double x = static_cast<double>(random.below(kinds)) - static_cast<double>(kinds / 2);
  return kinds > 1000 ? std::ldexp(x, static_cast<int>(random.below(80)) - 40) : x;
}

TEST(NthValue, IsThatOfTheStandardLibrary) {
  Random random(1);
  for (std::size_t count = 1; count < 3000; count += 1 + count / 7)
    for (const std::uint64_t kinds : {1, 2, 7, 1 << 30})
      for (const int order : {0, 1, 2}) {
        std::vector<double> values(count);
        for (double& x : values) x = value(random, kinds);
        if (order == 1) std::sort(values.begin(), values.end());
        if (order == 2) std::sort(values.rbegin(), values.rend());
        for (std::size_t rank = 0; rank < count; rank += 1 + count / 9) {
          std::vector<double> sorted = values, used = values, spare(count);
          std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(rank),
                           sorted.end());
          ASSERT_EQ(nth_value(used.data(), spare.data(), count, rank), sorted[rank])
              << count << ' ' << kinds << ' ' << rank;
        }
      }
}

TEST(NthValue, OfInfinities) {
  std::vector<double> spare(100);
  for (std::size_t rank : {0, 49, 50, 99}) {
    std::vector<double> values(100, infinity);
    for (int i = 0; i < 50; ++i) values[static_cast<std::size_t>(2 * i)] = -infinity;
    EXPECT_EQ(nth_value(values.data(), spare.data(), 100, rank), rank < 50 ? -infinity : infinity);
  }
}

TEST(SortPairs, IsTheTotalOrder) {
  Random random(2);
  for (std::size_t count = 0; count < 3000; count += 1 + count / 9)
    for (const std::uint64_t kinds : {1, 2, 9, 1 << 30}) {
      std::vector<KeyedId> pairs(count);
      for (std::size_t i = 0; i < count; ++i)
        pairs[i] = {value(random, kinds), static_cast<std::int64_t>(random.below(1 << 20)) - 1000};
      if (count > 3)
        pairs[1].first = infinity, pairs[2].first = -infinity, pairs[3].second = 1L << 62;
      std::vector<KeyedId> sorted = pairs;
      std::sort(sorted.begin(), sorted.end());
      sort_pairs(pairs);
      ASSERT_EQ(pairs, sorted) << count << ' ' << kinds;
      sort_pairs(pairs);  // sorted already
      ASSERT_EQ(pairs, sorted);
      std::reverse(pairs.begin(), pairs.end());
      sort_pairs(pairs);
      ASSERT_EQ(pairs, sorted);
    }
}

TEST(SortPairs, ZeroEqualsMinusZero) {
  std::vector<KeyedId> pairs{{0.0, 3}, {-0.0, 2}, {0.0, 1}, {-1.0, 9}, {-0.0, 4}, {0.0, 0}};
  sort_pairs(pairs);
  std::vector<std::int64_t> ids;
  for (const KeyedId& pair : pairs) ids.push_back(pair.second);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{9, 0, 1, 2, 3, 4}));
}

TEST(KeepSmallest, KeepsTheSmallestAndTheLargestOfThemLast) {
  Random random(3);
  for (std::size_t count = 1; count < 3000; count += 1 + count / 5)
    for (const std::uint64_t kinds : {1, 2, 9, 1 << 30})
      for (std::size_t k = 1; k <= count; k += 1 + count / 6) {
        std::vector<KeyedId> pairs(count);
        for (std::size_t i = 0; i < count; ++i)
          pairs[i] = {value(random, kinds), static_cast<std::int64_t>((i * 7919) % 3001)};
        std::vector<KeyedId> sorted = pairs;
        std::sort(sorted.begin(), sorted.end());
        sorted.resize(k);
        keep_smallest(pairs, k);
        ASSERT_EQ(pairs.size(), k);
        ASSERT_EQ(pairs.back(), sorted.back()) << count << ' ' << kinds << ' ' << k;
        std::sort(pairs.begin(), pairs.end());
        ASSERT_EQ(pairs, sorted);
      }
}

}  // namespace
}  // namespace knear
