// RowFilter against a plain list of bools, over ranges that begin and end anywhere in a word.
#include "knear/core/row_filter.hpp"

#include <gtest/gtest.h>

#include "knear/core/random.hpp"

namespace knear {
namespace {

TEST(RowFilter, CountsAndListsWhatIsAllowedBetweenAnyTwoRows) {
  Random random(3);
  for (std::int64_t rows : {0, 1, 63, 64, 65, 128, 200}) {
    std::vector<Id> ids;
    std::vector<bool> allowed(static_cast<std::size_t>(rows));
    std::vector<std::uint8_t> bits(static_cast<std::size_t>((rows + 7) / 8));
    for (std::int64_t row = 0; row < rows; ++row) {
      if (random.below(3) == 0) continue;
      ids.push_back(row);
      allowed[static_cast<std::size_t>(row)] = true;
      bits[static_cast<std::size_t>(row / 8)] |= static_cast<std::uint8_t>(1 << row % 8);
    }
    for (const RowFilter& filter : {RowFilter::of_ids(ids, rows), RowFilter::of_bits(bits, rows)}) {
      EXPECT_EQ(filter.rows(), rows);
      EXPECT_EQ(filter.count(), std::ssize(ids));
      for (std::int64_t begin = 0; begin <= rows; ++begin)
        for (std::int64_t end = begin; end <= rows; ++end) {
          std::vector<std::uint32_t> expected;
          for (std::int64_t row = begin; row < end; ++row)
            if (allowed[static_cast<std::size_t>(row)])
              expected.push_back(static_cast<std::uint32_t>(row - begin));
          ASSERT_EQ(filter.count(begin, end), std::ssize(expected)) << begin << " to " << end;
          ASSERT_EQ(filter.allowed(begin, end), expected) << begin << " to " << end;
        }
    }
  }
}

}  // namespace
}  // namespace knear
