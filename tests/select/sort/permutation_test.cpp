// The computed permutation: one to one, the same everywhere, and as good as a true shuffle for the
// bins into which neighbours fall, whatever the order of the base.
#include "knear/select/sort/permutation.hpp"

#include <gtest/gtest.h>

#include "knear/core/error.hpp"
#include "tests/select/reduction_cases.hpp"

namespace knear {
namespace {

TEST(Permutation, IsOneToOneAndInverted) {
  for (std::int64_t n = 1; n <= 70000; n += n < 300 ? 1 : n / 3)
    for (const std::uint64_t seed : {0, 1, 99}) {
      const Permutation order(n, seed);
      ASSERT_EQ(order.size(), n);
      std::vector<bool> taken(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t place = order(i);
        ASSERT_GE(place, 0);
        ASSERT_LT(place, n);
        ASSERT_FALSE(taken[static_cast<std::size_t>(place)]) << n << ' ' << i;
        taken[static_cast<std::size_t>(place)] = true;
        ASSERT_EQ(order.row_at(place), i);
      }
    }
}

TEST(Permutation, OfHugeNumbers) {
  for (const std::int64_t n :
       {std::int64_t{1} << 40, (std::int64_t{1} << 62) - 57, std::int64_t{1} << 62}) {
    const Permutation order(n, 5);
    for (std::int64_t i = 0; i < 1000; ++i) {
      const std::int64_t row = i % 2 ? n - 1 - i : i * (n / 1000), place = order(row);
      ASSERT_GE(place, 0);
      ASSERT_LT(place, n);
      ASSERT_EQ(order.row_at(place), row);
    }
  }
}

// Indexes depend on these numbers: changing them would change the format.
TEST(Permutation, IsTheSameEverywhere) {
  const Permutation order(1000003, 7);
  const std::int64_t wanted[] = {649243, 516130, 586442, 591312, 302498, 480617};
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(order(i), wanted[i]);
}

TEST(Permutation, RefusesBadSizes) {
  EXPECT_THROW(Permutation(0), InvalidArgument);
  EXPECT_THROW(Permutation(-3), InvalidArgument);
  EXPECT_THROW(Permutation((std::int64_t{1} << 62) + 1), InvalidArgument);
}

// Over many seeds, every place is equally likely for a row, and every pair of places for two.
TEST(Permutation, PlacesAreUniform) {
  constexpr int seeds = 200000;
  for (const std::int64_t n : {2, 3, 5, 7, 12, 16}) {
    const auto cells = static_cast<std::size_t>(n * n);
    for (const auto& [first, second] :
         {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, n - 1}, {n / 2 - 1, n - 1}}) {
      std::vector<std::int64_t> counts(cells);
      for (int seed = 0; seed < seeds; ++seed) {
        const Permutation order(n, static_cast<std::uint64_t>(seed));
        ++counts[static_cast<std::size_t>(order(first) * n + order(second))];
      }
      std::vector<double> law(cells);
      for (std::int64_t a = 0; a < n; ++a)
        for (std::int64_t b = 0; b < n; ++b)
          law[static_cast<std::size_t>(a * n + b)] =
              a == b ? 0.0 : 1 / static_cast<double>(n * (n - 1));
      EXPECT_LT(test::misfit(counts, law), 5) << n << ' ' << first << ' ' << second;
    }
  }
}

// Bases sorted so that the k neighbours of a query are rows in a pattern. Without a permutation
// each pattern is the worst case of some bins: all k in one of them.
std::vector<std::int64_t> pattern(int which, std::int64_t k, std::int64_t n) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < k; ++i) switch (which) {
      case 0:
        rows.push_back(i);  // the first
        break;
      case 1:
        rows.push_back(n - 1 - i);  // the last
        break;
      case 2:
        rows.push_back(n / 3 + i);  // sorted by cluster
        break;
      case 3:
        rows.push_back(i * (n / k));  // as far apart as can be
        break;
      case 4: {
        std::int64_t stride = 1;  // a power of two
        while (stride * 2 * (k - 1) < n) stride *= 2;
        rows.push_back(i * stride);
        break;
      }
    }
  return rows;
}

TEST(Permutation, NeighboursFallIntoBinsAsByATrueShuffle) {
  constexpr int seeds = 20000;
  constexpr std::int64_t k = 10;
  struct Case {
    std::int64_t n;
    Reduction reduction;
  };
  for (const Case& c : {Case{20, {6, 1}}, Case{64, {16, 1}}, Case{100, {7, 2}}, Case{1000, {30, 1}},
                        Case{4096, {64, 1}}, Case{65536, {16, 2}}, Case{1000000, {100, 1}},
                        Case{1000003, {14, 2}}, Case{std::int64_t{1} << 30, {32, 1}}}) {
    const std::vector<double> law = test::law_of_lost(k, c.n, c.reduction);
    const std::int64_t size = (c.n + c.reduction.bins - 1) / c.reduction.bins;
    for (int which = 0; which < 5; ++which) {
      const auto rows = pattern(which, k, c.n);
      std::vector<std::int64_t> strided(k + 1), in_blocks(k + 1), places;
      for (int seed = 0; seed < seeds; ++seed) {
        const Permutation order(c.n, static_cast<std::uint64_t>(seed));
        places.clear();
        for (const std::int64_t row : rows) places.push_back(order(row));
        ++strided[static_cast<std::size_t>(test::lost(places, c.reduction))];
        for (std::int64_t& place : places) place /= size;
        ++in_blocks[static_cast<std::size_t>(test::lost(places, c.reduction))];
      }
      EXPECT_LT(test::misfit(strided, law), 5) << c.n << ' ' << which;
      // Blocks of equal size have the same law as strides; others are less equal.
      if (c.n % c.reduction.bins == 0) {
        EXPECT_LT(test::misfit(in_blocks, law), 5) << c.n << ' ' << which;
      }
    }
  }
}

// Many neighbours, for which the network's digits have few values: mean and variance of the loss.
TEST(Permutation, ThousandsOfNeighboursLoseAsByATrueShuffle) {
  Random random(3);
  constexpr int seeds = 2000;
  const std::int64_t k = 2000, n = 100000;
  const Reduction reduction{1000, 3};
  const auto moments = [&](auto&& draw) {
    double sum = 0, squares = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const auto x = static_cast<double>(test::lost(draw(seed), reduction));
      sum += x, squares += x * x;
    }
    return std::pair(sum / seeds, squares / seeds - sum / seeds * sum / seeds);
  };
  const auto [mean, variance] = moments([&](int) { return test::random_places(random, k, n); });
  const double wanted = (1 - expected_recall(k, n, reduction)) * static_cast<double>(k);
  EXPECT_NEAR(mean, wanted, 4 * std::sqrt(variance / seeds));
  for (int which = 0; which < 5; ++which) {
    const auto rows = pattern(which, k, n);
    const auto [m, v] = moments([&](int seed) {
      const Permutation order(n, static_cast<std::uint64_t>(seed));
      std::vector<std::int64_t> places;
      for (const std::int64_t row : rows) places.push_back(order(row));
      return places;
    });
    EXPECT_NEAR(m, wanted, 4 * std::sqrt(variance / seeds)) << which;
    // So many runs give a variance to within sqrt(2 / seeds), here 3 %; both are measured.
    EXPECT_NEAR(v / variance, 1, 6 * std::sqrt(2.0 / seeds)) << which;
  }
}

// Without a permutation neighbours side by side share a bin of a block, those a stride apart a
// strided bin.
TEST(Permutation, IsNeeded) {
  std::vector<std::int64_t> every_bin;
  for (std::int64_t i = 0; i < 10; ++i) every_bin.push_back(i * 64);
  EXPECT_EQ(test::lost(every_bin, {64, 1}), 9);
}

}  // namespace
}  // namespace knear
