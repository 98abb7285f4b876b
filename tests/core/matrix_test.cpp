// Matrices and views: what equality of bits means.
#include "knear/core/matrix.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace knear {
namespace {

TEST(SameBits, ComparesShapesAndElementsButNoGaps) {
  const std::vector<float> a = {1, 2, 9, 3, 4, 9}, b = {1, 2, 3, 4};
  const MatrixView<float> wide(a.data(), 2, 2, 3), narrow(b.data(), 2, 2);
  EXPECT_TRUE(same_bits(wide, narrow));
  EXPECT_TRUE(same_bits(wide.rows(0, 1), narrow.rows(0, 1)));
  EXPECT_FALSE(same_bits(wide.rows(0, 1), narrow));
  EXPECT_FALSE(same_bits({b.data(), 1, 4}, narrow));
  for (std::size_t changed = 0; changed < b.size(); ++changed) {
    std::vector<float> other = b;
    other[changed] += 1;
    EXPECT_FALSE(same_bits(wide, {other.data(), 2, 2})) << changed;
  }
}

TEST(SameBits, GoesByBitsNotByValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), zero = 0, minus = -0.0f;
  EXPECT_TRUE(same_bits({&nan, 1, 1}, {&nan, 1, 1}));
  EXPECT_FALSE(same_bits({&zero, 1, 1}, {&minus, 1, 1}));
}

TEST(SameBits, TakesMatricesWithoutElements) {
  EXPECT_TRUE(same_bits({}, {}));
  EXPECT_TRUE(same_bits({nullptr, 1, 0}, {nullptr, 1, 0}));
  EXPECT_FALSE(same_bits({}, {nullptr, 0, 3}));
}

}  // namespace
}  // namespace knear
