// RadixSort against a stable sort, RadixSelect and the first of a RadixSort against a partial sort
// of pairs.
#include "knear/select/sort/radix_sort.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "knear/core/random.hpp"
#include "tests/select/select_cases.hpp"

namespace knear {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// -0.0 comes out as 0.0.
std::vector<float> without_negative_zero(std::vector<float> row) {
  for (float& x : row) x += 0.0f;
  return row;
}

// Both selections of the k smallest, with one place more than is written, to check that it is not.
void expect_the_smallest(RadixSort& sort, RadixSelect& select, const std::vector<float>& row,
                         std::int64_t k) {
  const std::int64_t n = std::int64_t(row.size());
  const std::vector<float> untouched(std::size_t(k + 1), -9.0f);
  const std::vector<std::int32_t> untouched_ids(std::size_t(k + 1), -9);
  std::vector<float> expected = untouched;
  std::vector<std::int32_t> expected_ids = untouched_ids;
  test::select_reference(without_negative_zero(row).data(), std::int32_t(n), int(k),
                         expected.data(), expected_ids.data());
  for (const bool whole : {false, true}) {
    std::vector<float> values = untouched;
    std::vector<std::int32_t> ids = untouched_ids;
    const std::int64_t found = whole ? sort.first(row.data(), n, k, values.data(), ids.data())
                                     : select(row.data(), n, k, values.data(), ids.data());
    ASSERT_EQ(ids, expected_ids) << (whole ? "sort" : "select") << " n " << n << " k " << k;
    ASSERT_TRUE(test::same_bits(values.data(), expected.data(), k + 1)) << "n " << n << " k " << k;
    ASSERT_EQ(found, k - std::count(ids.begin(), ids.end(), -1));
  }
}

class RadixOf : public testing::TestWithParam<test::SelectKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RadixOf, testing::ValuesIn(test::all_select_kinds),
                         [](const auto& each) { return test::name_of(each.param); });

TEST_P(RadixOf, FindsTheSmallest) {
  RadixSort sort;
  RadixSelect select;
  for (const std::int64_t k : {1, 2, 3, 7, 8, 31, 32, 33, 100, 128, 1000, 1024, 1025})
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, k - 1, k, k + 1,
                                 2 * k - 1, 2 * k, 2 * k + 1, 8 * k, std::int64_t{1024}}) {
      const std::vector<float> row = test::select_values(GetParam(), n, std::uint64_t(n * 31 + k));
      expect_the_smallest(sort, select, row, k);
      if (HasFatalFailure()) return;
    }
}

// Every k: wherever the k-th value is in its bucket.
TEST_P(RadixOf, FindsTheSmallestForEveryK) {
  RadixSort sort;
  RadixSelect select;
  const std::vector<float> row = test::select_values(GetParam(), 300, 9);
  for (std::int64_t k = 0; k <= 301; ++k) expect_the_smallest(sort, select, row, k);
}

TEST_P(RadixOf, LongRows) {
  RadixSort sort;
  RadixSelect select;
  for (const std::int64_t n : {200000, 65536, 65537})
    for (const std::int64_t k : {1, 100, 5000, 60000, 200000})
      expect_the_smallest(sort, select, test::select_values(GetParam(), n, 4), k);
}

TEST_P(RadixOf, SortsEverythingAndNaNLast) {
  RadixSort sort;
  for (const std::int64_t n : {0, 1, 2, 3, 255, 2048, 10000}) {
    const std::vector<float> row = test::select_values(GetParam(), n, 5);
    std::vector<std::int32_t> expected(row.size()), ids(row.size(), -9);
    std::vector<float> values(row.size());
    std::iota(expected.begin(), expected.end(), 0);
    const auto precedes = [&row](std::int32_t a, std::int32_t b) {
      const float x = row[std::size_t(a)], y = row[std::size_t(b)];
      return x < y || (!std::isnan(x) && std::isnan(y));
    };
    std::stable_sort(expected.begin(), expected.end(), precedes);
    const std::int64_t numbers = sort(row.data(), n, values.data(), ids.data());
    ASSERT_EQ(ids, expected) << n;
    ASSERT_EQ(numbers, std::count_if(row.begin(), row.end(), [](float x) { return x == x; }));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float x = row[std::size_t(ids[i])];
      if (x != x) {
        ASSERT_TRUE(std::isnan(values[i])) << n << ' ' << i;
        continue;
      }
      const float expected_value = x + 0.0f;  // -0.0 comes out as 0.0
      ASSERT_TRUE(test::same_bits(&values[i], &expected_value, 1)) << n << ' ' << i;
    }
  }
}

// Bits of all kinds: every digit takes many values, so that each pass and each round is needed.
// Rows whose first one or two digits are the same skip passes and reach the last round.
TEST(Radix, OfRandomBits) {
  Random random(6);
  RadixSort sort;
  RadixSelect select;
  for (const std::uint32_t changing :
       {0xffffffffu, 0x001fffffu, 0x000003ffu, 0x0000000fu, 0xffe00000u, 0xffe003ffu, 0x001ffc00u})
    for (const std::size_t n : {50, 3000, 20000}) {
      std::vector<float> row(n);
      for (float& x : row)
        x = std::bit_cast<float>(0x3f800000u ^ (std::uint32_t(random.next()) & changing));
      for (const std::int64_t k : {std::size_t{1}, n / 10, n / 2, n}) {
        SCOPED_TRACE(changing);
        expect_the_smallest(sort, select, row, k);
      }
    }
}

TEST(Radix, KeysAreInTheOrderOfNumbers) {
  const float ascending[] = {-infinity,
                             std::numeric_limits<float>::lowest(),
                             -1.5f,
                             -1.0f,
                             -std::numeric_limits<float>::min(),
                             -std::numeric_limits<float>::denorm_min(),
                             0.0f,
                             std::numeric_limits<float>::denorm_min(),
                             std::numeric_limits<float>::min(),
                             1.0f,
                             std::nextafter(1.0f, 2.0f),
                             std::numeric_limits<float>::max(),
                             infinity};
  for (std::size_t i = 0; i < std::size(ascending); ++i) {
    EXPECT_EQ(detail::radix_value(detail::radix_key(ascending[i])), ascending[i]);
    if (i > 0) {
      EXPECT_LT(detail::radix_key(ascending[i - 1]), detail::radix_key(ascending[i]));
    }
  }
  EXPECT_EQ(detail::radix_key(-0.0f), detail::radix_key(0.0f));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float x : {nan, -nan, std::bit_cast<float>(0x7f800001u)})
    EXPECT_EQ(detail::radix_key(x), detail::radix_key_of_nan);
  EXPECT_TRUE(std::isnan(detail::radix_value(detail::radix_key_of_nan)));
  // Only NaN has the last first digit.
  constexpr detail::RadixDigit first = detail::radix_digits[0];
  EXPECT_EQ(first.of(detail::radix_key_of_nan), detail::radix_most_values - 1);
  EXPECT_EQ(first.of(detail::radix_key(infinity)), detail::radix_most_values - 4);
}

}  // namespace
}  // namespace knear
