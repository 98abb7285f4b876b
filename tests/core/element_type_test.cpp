// Conversions between float and the 16-bit types: every bit pattern, and rounding at the midpoints.
#include "knear/core/element_type.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "knear/core/error.hpp"

namespace knear {
namespace {

TEST(ElementType, Bf16RoundTripsEveryPattern) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(bf16{std::uint16_t(bits)});
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(x))));
    } else {
      ASSERT_EQ(to_bf16(x).bits, bits);
    }
  }
}

TEST(ElementType, F16RoundTripsEveryPatternAndEqualsLdexp) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = to_float(f16{std::uint16_t(bits)});
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(x))));
      continue;
    }
    ASSERT_EQ(to_f16(x).bits, bits);
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    if (exponent == 31) continue;
    const double magnitude =
        exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    ASSERT_EQ(x, (bits & 0x8000) ? -magnitude : magnitude);
  }
}

TEST(ElementType, F16RoundsToNearestTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = to_float(f16{std::uint16_t(bits)});
    const float high = to_float(f16{std::uint16_t(bits + 1)});
    const float middle = (low + high) / 2;  // exact: one bit more than f16 has
    const std::uint16_t even = (bits & 1) ? bits + 1 : bits;
    ASSERT_EQ(to_f16(middle).bits, even) << bits;
    ASSERT_EQ(to_f16(std::nextafter(middle, high)).bits, bits + 1) << bits;
    ASSERT_EQ(to_f16(std::nextafter(middle, low)).bits, bits) << bits;
  }
  EXPECT_EQ(to_f16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
}

TEST(ElementType, ManyHalvesAreThoseOfOneByOne) {
  // All upper halves of a float, with lower ones around every place at which a half rounds.
  for (const std::uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u,
                                  0x9000u, 0xefffu, 0xf000u, 0xffffu}) {
    std::vector<float> in;
    for (std::uint32_t high = 0; high < 65536; ++high)
      in.push_back(std::bit_cast<float>(high << 16 | low));
    for (const ElementType half : {ElementType::f16, ElementType::bf16}) {
      const bool f16s = half == ElementType::f16;
      std::vector<float> finite;
      std::vector<std::uint16_t> expected;
      for (const float x : in) {
        const std::uint16_t bits = f16s ? to_f16(x).bits : to_bf16(x).bits;
        if (std::isfinite(f16s ? to_float(f16{bits}) : to_float(bf16{bits}))) {
          finite.push_back(x), expected.push_back(bits);
          continue;
        }
        std::uint16_t one;
        ASSERT_FALSE(to_halves(half, &x, 1, &one)) << x;
      }
      std::vector<std::uint16_t> out(finite.size());
      ASSERT_TRUE(to_halves(half, finite.data(), std::ssize(finite), out.data()));
      ASSERT_EQ(out, expected) << low;
      finite.back() = INFINITY;
      EXPECT_FALSE(to_halves(half, finite.data(), std::ssize(finite), out.data()));
    }
  }
  EXPECT_TRUE(to_halves(ElementType::f16, nullptr, 0, nullptr));
}

TEST(ElementType, NamesRoundTripAndOthersAreRefused) {
  for (ElementType type : all_element_types) EXPECT_EQ(parse_element_type(name_of(type)), type);
  EXPECT_THROW(parse_element_type("f80"), InvalidArgument);
}

}  // namespace
}  // namespace knear
