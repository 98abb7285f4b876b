// tests/knn/near_queries_test.cpp -- the order in which near queries come together.
#include "knear/knn/near_queries.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "knear/core/random.hpp"

namespace knear::detail {
namespace {

Matrix<float> uniform(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(rows, cols);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    out.data()[i] = static_cast<float>(random.uniform());
  return out;
}

bool is_permutation_of_all(std::vector<std::int64_t> order, std::int64_t rows) {
  std::sort(order.begin(), order.end());
  std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  return order == all;
}

TEST(NearQueries, FollowTheDirectionOfMostSpread) {
  // Column 2 spreads ten times as much as any other, far from the origin.
  Matrix<float> queries = uniform(1000, 5, 1);
  for (std::int64_t q = 0; q < 1000; ++q) queries.row(q)[2] = 300 + 10 * queries.row(q)[2];
  const auto order = order_of_near(queries.view(), 1);
  ASSERT_TRUE(is_permutation_of_all(order, 1000));
  EXPECT_EQ(order_of_near(queries.view(), 3), order);
  // Two halves of the order are two halves of the column, but for few at the border.
  const double sign = queries.row(order.front())[2] < queries.row(order.back())[2] ? 1 : -1;
  std::int64_t across = 0;
  for (std::size_t i = 0; i < 1000; ++i)
    across += (sign * (queries.row(order[i])[2] - 305) > 0) != (i >= 500);
  EXPECT_LT(across, 60);
}

TEST(NearQueries, QueriesThatAreAlikeStayInOrder) {
  Matrix<float> queries(300, 4);
  std::fill_n(queries.data(), 1200, 3.f);
  const auto order = order_of_near(queries.view(), 2);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_TRUE(is_permutation_of_all(order, 300));
  EXPECT_TRUE(order_of_near(queries.view().rows(0, 0), 2).empty());
  std::fill_n(queries.data(), 1200, 0.f);
  EXPECT_TRUE(is_permutation_of_all(order_of_near(queries.view(), 2), 300));
}

TEST(NearQueries, TheLargestNumbersAreOrderedToo) {
  constexpr double largest = std::numeric_limits<double>::max(),
                   smallest = std::numeric_limits<double>::denorm_min();
  for (const double size : {largest, smallest, 1.0}) {
    Random random(3);
    Matrix<double> queries(700, 3);
    // Those of the sample are short and the others not, as far as the sample is every second or
    // third query.
    for (std::int64_t i = 0; i < 2100; ++i)
      queries.data()[i] = (random.below(2) ? -1 : 1) * size * (i / 3 % 3 == 0 ? 1 : 0.5);
    EXPECT_TRUE(is_permutation_of_all(order_of_near(queries.view(), 2), 700)) << size;
    queries.row(699)[0] = largest, queries.row(699)[1] = largest, queries.row(699)[2] = -largest;
    EXPECT_TRUE(is_permutation_of_all(order_of_near(queries.view(), 2), 700)) << size;
  }
}

}  // namespace
}  // namespace knear::detail
