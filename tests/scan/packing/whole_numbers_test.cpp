// Whole numbers as bytes: codes, sums and parity are those of a plain loop, for every type.
#include "knear/scan/packing/whole_numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/core/value_range.hpp"

namespace knear::detail {
namespace {

template <class T>
T element(int y) {
  if constexpr (std::is_same_v<T, f16>)
    return to_f16(static_cast<float>(y));
  else if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(static_cast<float>(y));
  else
    return static_cast<T>(y);
}

template <class T>
class WholeNumbers : public ::testing::Test {
 public:
  static int low() { return std::is_same_v<T, std::uint8_t> ? 0 : -128; }
  static int high() { return std::is_same_v<T, std::int8_t> ? 127 : 255; }
};
using Types = ::testing::Types<std::uint8_t, std::int8_t, f16, bf16, float, double>;
TYPED_TEST_SUITE(WholeNumbers, Types);

TYPED_TEST(WholeNumbers, AreCodedAndSummedAsInAPlainLoop) {
  const int low = this->low(), high = this->high();
  Random random(3);
  for (const std::int64_t dim : {0, 1, 3, 31, 64, 100, 784, 16384, 16385, 40000})
    for (const int offset : {0, 128, -128}) {
      std::vector<TypeParam> row;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(dim) + 1, 77), expected(codes);
      std::int64_t sum = 0, squares = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        const int y =
            low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
        row.push_back(element<TypeParam>(y));
        expected[static_cast<std::size_t>(j)] = static_cast<std::uint8_t>(y + offset);
        sum += y, squares += y * y;
      }
      const WholeSums sums = code_whole_numbers(row.data(), dim, offset, codes.data());
      EXPECT_EQ(codes, expected);
      EXPECT_EQ(sums.sum, sum);
      EXPECT_EQ(sums.squares, squares);
      EXPECT_EQ(has_odd_sum(row.data(), dim), sum % 2 != 0);
    }
}

TYPED_TEST(WholeNumbers, HoldTheSquaresOfTheLongestVector) {
  const int high = this->high();
  const std::vector<TypeParam> row(65536, element<TypeParam>(high));
  std::vector<std::uint8_t> codes(row.size());
  const WholeSums sums = code_whole_numbers(row.data(), 65536, 0, codes.data());
  EXPECT_EQ(sums.squares, std::int64_t{65536} * high * high);
  EXPECT_EQ(sums.sum, std::int64_t{65536} * high);
}

TYPED_TEST(WholeNumbers, HaveTheRangeOfTheirElements) {
  const int low = this->low(), high = this->high();
  Matrix<TypeParam> rows(5, 67);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 67; ++j)
      rows.row(i)[j] = element<TypeParam>(static_cast<int>(10 + i + j % 3));
  const auto range_of = [&] { return find_value_range(rows.view(), Metric::l2, "base", 1); };
  EXPECT_TRUE(range_of().integer);
  EXPECT_EQ(range_of().low, 10);
  EXPECT_EQ(range_of().high, 16);
  rows.row(2)[66] = element<TypeParam>(low), rows.row(4)[0] = element<TypeParam>(high);
  EXPECT_EQ(range_of().low, low);
  EXPECT_EQ(range_of().high, high);
}

}  // namespace
}  // namespace knear::detail
