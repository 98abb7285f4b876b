// Finding rows that occur more than once, and the range of their values.
#include "knear/scan/packing/duplicates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/core/value_range.hpp"

namespace knear::detail {
namespace {

TEST(Duplicates, FindsEveryCopyByItsFirstRow) {
  Random random(1);
  Matrix<float> base(3000, 3);
  std::map<int, std::vector<std::uint32_t>> rows_of;
  for (std::int64_t r = 0; r < 3000; ++r) {
    const int kind = static_cast<int>(random.below(700));
    rows_of[kind].push_back(static_cast<std::uint32_t>(r));
    for (int c = 0; c < 3; ++c) base.row(r)[c] = static_cast<float>(kind * (c + 1));
  }
  const Duplicates found = Duplicates::find(base.view(), {}, 2);
  ASSERT_TRUE(found.any());
  ASSERT_EQ(found.distinct().size(), rows_of.size());
  EXPECT_TRUE(std::is_sorted(found.distinct().begin(), found.distinct().end()));
  for (const auto& [kind, rows] : rows_of) {
    const auto others = found.others(rows[0]);
    EXPECT_TRUE(std::equal(others.begin(), others.end(), rows.begin() + 1, rows.end()));
    if (rows.size() > 1) {
      EXPECT_TRUE(found.others(rows[1]).empty());
    }
  }
}

TEST(Duplicates, ZeroRowsAreEqualWhateverTheirSigns) {
  Random random(2);
  const auto check = [&](auto zero, auto minus_zero, auto one, ElementType type) {
    Matrix<decltype(zero)> base(512, 5);
    for (std::int64_t r = 0; r < 512; ++r)
      for (int c = 0; c < 5; ++c) base.row(r)[c] = random.below(2) ? zero : minus_zero;
    base.row(100)[3] = base.row(400)[3] = one;
    const Duplicates found = Duplicates::find(base.view(), {}, 2);
    EXPECT_EQ(found.distinct(), (std::vector<std::uint32_t>{0, 100})) << name_of(type);
    if (found.distinct().size() != 2) return;
    EXPECT_EQ(found.others(0).size(), 509u);
    EXPECT_EQ(found.others(100).size(), 1u);
  };
  check(0.0f, -0.0f, 1.0f, ElementType::f32);
  check(0.0, -0.0, 1.0, ElementType::f64);
  check(f16{0}, f16{0x8000}, f16{0x3c00}, ElementType::f16);
  check(bf16{0}, bf16{0x8000}, bf16{0x3f80}, ElementType::bf16);
}

TEST(Duplicates, NoneAmongDistinctRows) {
  Matrix<float> base(5000, 2);
  for (std::int64_t r = 0; r < 5000; ++r) base.row(r)[0] = static_cast<float>(r);
  EXPECT_FALSE(Duplicates::find(base.view(), {}, 1).any());
  EXPECT_FALSE(Duplicates::find(base.view().rows(0, 0), {}, 1).any());
}

TEST(ValueRange, FindsWholeNumbersAndTheirRange) {
  Matrix<float> x(4, 3);
  for (int i = 0; i < 12; ++i) x.data()[i] = static_cast<float>(i * 20 - 100);
  ValueRange found = find_value_range(x.view(), Metric::l2, "x", 2);
  EXPECT_TRUE(found.integer);
  EXPECT_EQ(found.low, -100);
  EXPECT_EQ(found.high, 120);
  for (float not_whole : {0.5f, 256.0f, -129.0f, 1e30f, -3e38f, 1e-42f}) {
    x.row(2)[1] = not_whole;
    EXPECT_FALSE(find_value_range(x.view(), Metric::l2, "x", 1).integer) << not_whole;
  }
  x.row(2)[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(find_value_range(x.view(), Metric::l2, "x", 1), InvalidArgument);
  x.row(2)[1] = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(find_value_range(x.view(), Metric::l2, "x", 1), InvalidArgument);
}

}  // namespace
}  // namespace knear::detail
