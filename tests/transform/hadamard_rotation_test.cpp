// tests/transform/hadamard_rotation_test.cpp -- a fast rotation keeps lengths and products, spreads
// what lies in one column over all, and is the same everywhere.
#include "knear/transform/hadamard_rotation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "knear/core/random.hpp"

namespace knear::detail {
namespace {

std::vector<float> drawn(std::int64_t columns, Random& random) {
  std::vector<float> out;
  for (std::int64_t j = 0; j < columns; ++j)
    out.push_back(static_cast<float>(random.uniform() - 0.5));
  return out;
}
double product(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) sum += double{a[j]} * double{b[j]};
  return sum;
}

// The rotation as it is defined: one step after the other, a pair at a time.
void rotate_by_pairs(std::vector<float>& x, std::uint64_t seed) {
  const std::size_t columns = x.size();
  std::size_t block = 1;
  while (2 * block <= columns) block *= 2;
  const float within = 1 / std::sqrt(static_cast<float>(block));
  Random random(seed);
  for (int round = 0; round < 4; ++round) {
    const std::size_t first = round % 2 == 0 ? 0 : columns - block;
    for (std::size_t j = 0; j < columns; ++j) {
      const float sign = random.next() & 1 ? 1.0f : -1.0f;
      x[j] *= j >= first && j < first + block ? sign * within : sign;
    }
    for (std::size_t apart = 1; apart < block; apart *= 2)
      for (std::size_t i = 0; i < block; ++i) {
        if (i & apart) continue;
        const float a = x[first + i], b = x[first + i + apart];
        x[first + i] = a + b, x[first + i + apart] = a - b;
      }
  }
}

TEST(HadamardRotation, KeepsProducts) {
  Random random(1);
  for (const std::int64_t columns : {1, 2, 3, 16, 48, 100, 128, 784, 1000}) {
    const HadamardRotation rotation(columns, 7);
    EXPECT_EQ(rotation.columns(), columns);
    std::vector<float> a = drawn(columns, random), b = drawn(columns, random);
    const double aa = product(a, a), ab = product(a, b);
    rotation.apply(a.data()), rotation.apply(b.data());
    EXPECT_NEAR(product(a, a), aa, 1e-5 * aa) << columns;
    EXPECT_NEAR(product(a, b), ab, 1e-5 * aa) << columns;
  }
}

TEST(HadamardRotation, StepsThatAreTakenTogetherChangeNoBit) {
  Random random(2);
  for (const std::int64_t columns : {2, 5, 8, 16, 32, 48, 64, 128, 256, 512, 784, 1000}) {
    std::vector<float> x = drawn(columns, random), expected = x;
    HadamardRotation(columns, 5).apply(x.data());
    rotate_by_pairs(expected, 5);
    EXPECT_EQ(x, expected) << columns;
  }
}

TEST(HadamardRotation, SpreadsAColumnOverAll) {
  for (const std::int64_t columns : {128, 784})
    for (const std::int64_t one : {std::int64_t{0}, columns / 2, columns - 1}) {
      std::vector<float> x(static_cast<std::size_t>(columns));
      x[static_cast<std::size_t>(one)] = 1;
      HadamardRotation(columns, 3).apply(x.data());
      const float largest = std::abs(*std::max_element(
          x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
      // Of normal columns of this length the largest is about 3.4 times their root mean square.
      EXPECT_LT(largest, 6 / std::sqrt(static_cast<float>(columns))) << columns << " " << one;
    }
}

TEST(HadamardRotation, IsTheSameEverywhereAndAnotherForAnotherSeed) {
  std::vector<float> x{1, 2, 3, 4, 5, 6}, other = x;
  HadamardRotation(6, 1).apply(x.data());
  HadamardRotation(6, 2).apply(other.data());
  EXPECT_EQ(x, (std::vector<float>{0.5f, 5, -5.25f, -4.75f, 3.75f, 1.25f}));
  EXPECT_NE(x, other);
}

}  // namespace
}  // namespace knear::detail
