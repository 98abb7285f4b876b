// BitonicPartialSort against a partial sort of pairs.
#include "knear/select/sort/bitonic_partial_sort.hpp"

#include <gtest/gtest.h>

#include "tests/select/select_cases.hpp"

namespace knear {
namespace {

class BitonicPartialSortOf : public testing::TestWithParam<test::SelectKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, BitonicPartialSortOf, testing::ValuesIn(test::all_select_kinds),
                         [](const auto& each) { return test::name_of(each.param); });

template <class Id>
void expect_the_smallest(BitonicPartialSort<float, Id>& sort, test::SelectKind kind, std::int64_t n,
                         std::int64_t k, std::uint64_t seed) {
  const std::vector<float> row = test::select_values(kind, n, seed);
  // One place more than is written, to check that it is not.
  std::vector<float> values(std::size_t(k + 1), -9.0f), expected = values;
  std::vector<Id> ids(std::size_t(k + 1), -9), expected_ids = ids;
  test::select_reference(row.data(), Id(n), int(k), expected.data(), expected_ids.data());
  const std::int64_t found = sort(row.data(), n, k, values.data(), ids.data());
  ASSERT_EQ(ids, expected_ids) << "n " << n << " k " << k << " seed " << seed;
  ASSERT_TRUE(test::same_bits(values.data(), expected.data(), k + 1)) << "n " << n << " k " << k;
  ASSERT_EQ(found, k - std::count(ids.begin(), ids.end(), Id(-1)));
}

TEST_P(BitonicPartialSortOf, IsAPartialSort) {
  BitonicPartialSort sort;
  for (const std::int64_t k : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 64, 100, 128})
    for (const std::int64_t n :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, k - 1, k, k + 1, 2 * k - 1, 2 * k,
          2 * k + 1, 3 * k, 8 * k, std::int64_t{256}, std::int64_t{1000}, std::int64_t{1025}})
      for (const std::uint64_t seed : {1, 2}) {
        expect_the_smallest(sort, GetParam(), n, k, seed);
        if (HasFatalFailure()) return;
      }
}

// More than one piece, whose best are merged; the last piece is short.
TEST_P(BitonicPartialSortOf, LongRows) {
  BitonicPartialSort sort;
  for (const std::int64_t n : {16383, 16384, 16385, 16384 * 2 + 5, 16384 * 5 + 4000})
    for (const std::int64_t k : {1, 10, 1000, 5000}) {
      expect_the_smallest(sort, GetParam(), n, k, 3);
      if (HasFatalFailure()) return;
    }
  expect_the_smallest(sort, GetParam(), 70000, 70001, 4);
}

TEST_P(BitonicPartialSortOf, WithLongIds) {
  BitonicPartialSort<float, std::int64_t> sort;
  for (const std::int64_t n : {0, 1, 9, 10, 11, 500, 20000})
    expect_the_smallest(sort, GetParam(), n, 10, 5);
}

TEST(BitonicPartialSort, KeepsNothingWhereNothingIsWanted) {
  BitonicPartialSort sort;
  const float row[] = {1, 2};
  EXPECT_EQ(sort(row, 2, 0, nullptr, nullptr), 0);
}

// Every input of zeros and ones sorts, so every input does (Knuth, volume 3, 5.3.4).
TEST(BitonicPartialSort, SortsZerosAndOnes) {
  BitonicPartialSort<double> sort;
  for (unsigned bits = 0; bits < 1u << 16; ++bits) {
    double row[16], values[16];
    std::int32_t ids[16];
    for (unsigned i = 0; i < 16; ++i) row[i] = bits >> i & 1;
    ASSERT_EQ(sort(row, 16, 16, values, ids), 16);
    ASSERT_TRUE(std::is_sorted(values, values + 16)) << bits;
    ASSERT_EQ(std::count(values, values + 16, 1.0), std::popcount(bits));
  }
}

}  // namespace
}  // namespace knear
