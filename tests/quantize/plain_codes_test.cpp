// Plain scalar codes against loops that write one number at a time.
#include "knear/quantize/plain_codes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using detail::PlainCode;
using Kind = PlainCode::Kind;

constexpr Kind all_kinds[] = {Kind::bits8, Kind::bits6, Kind::bits4, Kind::f16, Kind::bf16};

int bits_of(Kind kind) {
  return kind == Kind::bits8 ? 8 : kind == Kind::bits6 ? 6 : kind == Kind::bits4 ? 4 : 16;
}

// The number of a value, one rounding after another.
unsigned number_of(Kind kind, float x, float low, float span) {
  if (kind == Kind::f16) return to_f16(x).bits;
  if (kind == Kind::bf16) return to_bf16(x).bits;
  if (!(span > 0)) return 0;
  const float difference = x - low, share = difference / span;
  const float scaled = std::clamp(share, 0.0f, 1.0f) * static_cast<float>((1 << bits_of(kind)) - 1);
  return static_cast<unsigned>(scaled);
}

struct Case {
  Kind kind;
  std::int64_t n, dim;
  std::vector<float> low, span;
  Matrix<float> rows, centroids;
  std::vector<std::int64_t> list_of;

  Case(Kind code, std::int64_t count, std::int64_t columns)
      : kind(code), n(count), dim(columns), rows(count, columns), centroids(3, columns) {
    Random random(7);
    const auto number = [&] { return static_cast<float>(6 * (random.uniform() - 0.5)); };
    for (std::int64_t j = 0; j < dim && bits_of(kind) < 16; ++j) {
      low.push_back(number() / 2 - 1);
      span.push_back(random.below(5) == 0 ? 0.0f : 1 + std::abs(number()));
    }
    for (std::int64_t i = 0; i < n * dim; ++i)
      rows.data()[i] = random.below(9) == 0 ? number() * 1e-6f : number();
    for (std::int64_t i = 0; i < 3 * dim; ++i) centroids.data()[i] = number();
    for (std::int64_t i = 0; i < n; ++i) list_of.push_back(random.below(3));
  }
  PlainCode code() const { return {kind, dim, low, span}; }
  std::vector<std::uint8_t> expected(bool residual) const {
    const std::int64_t size = code().code_size(), bits = bits_of(kind);
    std::vector<std::uint8_t> out(static_cast<std::size_t>(n * size));
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < dim; ++j) {
        const auto at = static_cast<std::size_t>(j);
        float x = rows.row(i)[j];
        if (residual) x -= centroids.row(list_of[static_cast<std::size_t>(i)])[j];
        const unsigned number =
            number_of(kind, x, low.empty() ? 0 : low[at], span.empty() ? 0 : span[at]);
        for (std::int64_t b = 0; b < bits; ++b)
          if (number >> b & 1) {
            const std::int64_t bit = j * bits + b;
            out[static_cast<std::size_t>(i * size + bit / 8)] |=
                static_cast<std::uint8_t>(1 << bit % 8);
          }
      }
    return out;
  }
};

TEST(PlainCodes, AreThoseOfOneNumberAfterAnother) {
  for (const Isa isa : test::levels()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    for (const Kind kind : all_kinds)
      for (const std::int64_t dim : {1, 2, 3, 4, 5, 7, 16, 31, 33, 129})
        for (const std::int64_t n : {0, 1, 5, 3000}) {
          const Case of(kind, n, dim);
          for (const bool residual : {false, true})
            for (const int threads : {1, 3}) {
              // One byte more, which must stay as it is.
              std::vector<std::uint8_t> got(static_cast<std::size_t>(n * of.code().code_size()) + 1,
                                            0xA5);
              const std::int64_t done =
                  of.code().encode(of.rows, residual ? of.centroids.view() : MatrixView<float>(),
                                   residual ? std::span<const std::int64_t>(of.list_of)
                                            : std::span<const std::int64_t>(),
                                   threads, got.data());
              ASSERT_EQ(done, n);
              ASSERT_EQ(got.back(), 0xA5);
              got.pop_back();
              ASSERT_EQ(got, of.expected(residual))
                  << name_of(isa) << ' ' << bits_of(kind) << " bits, " << n << 'x' << dim;
            }
        }
  }
  unsetenv("KNEAR_ISA");
}

TEST(PlainCodes, NameTheFirstRowWithoutACode) {
  for (const Isa isa : test::levels()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    for (const Kind kind : all_kinds) {
      const float nan = std::numeric_limits<float>::quiet_NaN(),
                  infinity = std::numeric_limits<float>::infinity();
      std::vector<float> bad = {nan, -nan, infinity, -infinity};
      if (kind == Kind::f16) bad.insert(bad.end(), {65520, -65520, 1e30f});
      if (kind == Kind::bf16) bad.insert(bad.end(), {3.4e38f, -3.4e38f});
      for (const float value : bad)
        for (const std::int64_t row : {0, 8, 2999}) {
          Case of(kind, 3000, 33);
          of.rows.row(row)[32] = value;
          of.rows.row(2999)[0] = nan;
          std::vector<std::uint8_t> out(static_cast<std::size_t>(3000 * of.code().code_size()));
          EXPECT_EQ(of.code().encode(of.rows, {}, {}, 2, out.data()), row);
        }
      // The largest values that have a code.
      Case of(kind, 1, 2);
      of.rows.row(0)[0] = kind == Kind::f16 ? 65519.0f : kind == Kind::bf16 ? 3.38e38f : 3.4e38f;
      std::vector<std::uint8_t> out(8);
      EXPECT_EQ(of.code().encode(of.rows, {}, {}, 1, out.data()), 1);
    }
  }
  unsetenv("KNEAR_ISA");
}

TEST(PlainCodes, RefusesWrongArguments) {
  const std::vector<float> two = {0, 1};
  EXPECT_THROW(PlainCode(Kind::bits8, 3, two, two), ShapeMismatch);
  EXPECT_THROW(PlainCode(Kind::f16, 2, two, two), ShapeMismatch);
  EXPECT_THROW(PlainCode(Kind::f16, 0, {}, {}), InvalidArgument);
  EXPECT_THROW(PlainCode::kind_of("5"), InvalidArgument);
  EXPECT_EQ(PlainCode::kind_of("6"), Kind::bits6);
}

}  // namespace
}  // namespace knear
