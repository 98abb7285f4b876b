// tests/scan/kernels/link_code_kernels_test.cpp -- which links may lead nearer, at every
// instruction set, against a plain loop over bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "knear/scan/kernels/levels.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

std::uint16_t half_of(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}
float float_of(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

// A block and a query of random numbers; what: 0 tables of any numbers, 1 the largest everywhere.
struct Case {
  AlignedArray<std::uint8_t> bytes, tables;
  LinkQuery query;

  Case(std::int64_t columns, int what, Random& random)
      : bytes(static_cast<std::size_t>(link_block_bytes(columns))),
        tables(static_cast<std::size_t>(4 * columns)) {
    for (std::uint8_t& x : bytes) x = static_cast<std::uint8_t>(random.below(256));
    for (std::uint8_t& x : tables)
      x = static_cast<std::uint8_t>(what == 1 ? 255 : random.below(256));
    for (int i = 0; i < links_together; ++i) {
      block().bases[i] = half_of(static_cast<float>(random.uniform() * 20000 - 5000));
      block().slopes[i] = half_of(static_cast<float>(random.uniform() * 30));
    }
    query = {tables.data(), columns, -static_cast<std::int32_t>(random.below(100000)),
             static_cast<float>(random.uniform())};
  }
  LinkBlock& block() { return *reinterpret_cast<LinkBlock*>(bytes.data()); }

  float estimate(int link) {
    std::int32_t sum = 0;
    for (std::int64_t column = 0; column < query.columns; column += 4) {
      const int byte = block().signs()[4 * column + link % 16];
      sum += tables[static_cast<std::size_t>(4 * column) +
                    static_cast<std::size_t>(link < 16 ? byte & 15 : byte >> 4)];
    }
    const float scaled = query.scale * static_cast<float>(2 * sum + query.offset);
    const float product = float_of(block().slopes[link]) * scaled;
    return float_of(block().bases[link]) - product;
  }
};

TEST(LinkCodes, EveryLevelFindsTheLinksBelowALimit) {
  Random random(1);
  // The last are more columns than sums of 16 bits hold.
  for (const std::int64_t columns : {16, 32, 48, 96, 128, 784, 2048, 4096, 4112, 16400})
    for (int what = 0; what < 2; ++what) {
      Case one(columns, what, random);
      one.block().bases[5] = half_of(std::numeric_limits<float>::infinity());
      one.block().slopes[5] = 0;
      std::vector<float> limits{std::numeric_limits<float>::max()};
      // Limits at the estimate of each link, and just above it.
      for (int i = 0; i < links_together; ++i)
        if (i != 5)
          for (const float above : {0.0f, 1.0f}) {
            const float at = one.estimate(i);
            limits.push_back(above > 0 ? std::nextafter(at, std::numeric_limits<float>::max())
                                       : at);
          }
      for (const float limit : limits) {
        std::uint32_t expected = 0;
        for (int i = 0; i < links_together; ++i)
          expected |= static_cast<std::uint32_t>(one.estimate(i) < limit) << i;
        EXPECT_EQ(expected >> 5 & 1, 0u) << "a link that is not there";
        for (const Isa isa : test::levels())
          ASSERT_EQ(link_code_kernel(isa)(one.block(), one.query, limit), expected)
              << name_of(isa) << ", " << columns << " columns, limit " << limit;
      }
    }
}

}  // namespace
}  // namespace knear::detail
