// Scalar quantisers against plain loops.
#include "knear/quantize/scalar_quantizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "knear/core/error.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using namespace test;

constexpr ScalarCode all_codes[] = {ScalarCode::bits8, ScalarCode::bits4, ScalarCode::f16,
                                    ScalarCode::bf16};

double value(AnyMatrixView rows, std::int64_t i, std::int64_t j) {
  return visit(rows, [&](auto typed) { return to_double(typed.row(i)[j]); });
}

// The level that code [code_size] has in column j, by the layout that the header promises.
int level_of(const std::uint8_t* code, std::int64_t j, ScalarCode kind) {
  if (kind == ScalarCode::bits8) return code[j];
  return j % 2 == 0 ? code[j / 2] % 16 : code[j / 2] / 16;
}

TEST(ScalarQuantizer, CodesAreTheNearestLevels) {
  Random random(1);
  for (const ElementType type : all_element_types)
    for (const ScalarCode kind : {ScalarCode::bits8, ScalarCode::bits4})
      for (const std::int64_t dim : {1, 7, 40}) {
        const AnyMatrix rows = make(type, 500, dim, [&](auto, std::int64_t j) {
          return std::floor(100 * random.uniform() * random.uniform()) + double(j);
        });
        const auto sq = ScalarQuantizer::train(rows.view(), kind);
        const int last = kind == ScalarCode::bits8 ? 255 : 15;
        EXPECT_EQ(sq.dim(), dim);
        EXPECT_EQ(sq.code_size(), kind == ScalarCode::bits8 ? dim : (dim + 1) / 2);
        const Matrix<std::uint8_t> codes = sq.encode(rows.view());
        const Matrix<float> rough = sq.decode(codes.view());
        for (std::int64_t i = 0; i < 500; ++i)
          for (std::int64_t j = 0; j < dim; ++j) {
            const double x = value(rows.view(), i, j), low = sq.low()[static_cast<std::size_t>(j)],
                         step = sq.step()[static_cast<std::size_t>(j)];
            const int got = level_of(codes.row(i), j, kind);
            for (int c = 0; c <= last; ++c)
              ASSERT_LE(std::fabs(x - (low + got * step)),
                        std::fabs(x - (low + c * step)) + 1e-9 * (1 + std::fabs(x)));
            ASSERT_EQ(rough.row(i)[j], static_cast<float>(low + got * step));
            std::vector<float> one(static_cast<std::size_t>(dim));
            sq.decode_one(codes.row(i), one.data());
            ASSERT_EQ(one[static_cast<std::size_t>(j)], rough.row(i)[j]);
            if (kind == ScalarCode::bits8) {
              ASSERT_LE(std::fabs(rough.row(i)[j] - x), 0.5001 * step + 1e-5);
            }
          }
      }
}

// Where few values lie far out, levels over the whole range lose more than levels that leave them
// out.
TEST(ScalarQuantizer, LevelsOfFourBitsAreThoseThatLoseLeast) {
  Random random(2);
  const AnyMatrix rows = make(ElementType::f32, 4000, 3, [&](std::int64_t i, std::int64_t j) {
    const double x = i % 1000 == 7 && j == 1 ? 10 : gaussian(random);
    return x + 1000 * static_cast<double>(j);
  });
  const auto sq = ScalarQuantizer::train(rows.view(), ScalarCode::bits4);
  const Matrix<float> rough = sq.decode(sq.encode(rows.view()).view());
  for (std::int64_t j = 0; j < 3; ++j) {
    double loss = 0, least = 1e9, most = -1e9;
    for (std::int64_t i = 0; i < 4000; ++i) {
      const double x = value(rows.view(), i, j);
      least = std::min(least, x), most = std::max(most, x);
      loss += std::pow(rough.row(i)[j] - x, 2) / 4000;
    }
    // Sixteen levels over the whole range lose a twelfth of the square of a step.
    const double step = (most - least) / 15;
    EXPECT_LT(loss, (j == 1 ? 0.75 : 0.95) * step * step / 12) << j;
  }
}

// One row of 50,000 took all levels from the others: the recall of SQ8 was 0.03.
TEST(ScalarQuantizer, FarRowsTakeNoLevelsFromOthers) {
  for (const ScalarCode kind : {ScalarCode::bits8, ScalarCode::bits4}) {
    const AnyMatrix plain = gaussians(3000, 20, 4);
    const auto with_far = [&](std::int64_t far_rows, double far) {
      const AnyMatrix rows = make(ElementType::f32, 3000, 20, [&](std::int64_t i, std::int64_t j) {
        return i >= 40 && i < 40 + far_rows && j > 2 ? far : value(plain.view(), i, j);
      });
      return ScalarQuantizer::train(rows.view(), kind);
    };
    const auto usual = with_far(0, 0);
    for (const double far : {1e3, -1e30}) {
      const auto some = with_far(2, far);
      for (std::size_t j = 0; j < 20; ++j) {
        EXPECT_NEAR(some.step()[j], usual.step()[j], 0.05 * usual.step()[j]) << j;
        EXPECT_NEAR(some.low()[j], usual.low()[j], 0.3) << j;
      }
      // Many of them are no exceptions, and are told apart.
      EXPECT_GT(with_far(100, far).step()[5], 10 * usual.step()[5]);
    }
    // Values that are rare in their column are no far rows: each row has one of them.
    const AnyMatrix counts = make(ElementType::f32, 3000, 300, [](std::int64_t i, std::int64_t j) {
      return i % 300 == j ? 50.0 : 0.0;
    });
    const auto sq = ScalarQuantizer::train(counts.view(), kind);
    for (std::size_t j = 0; j < 300; ++j) EXPECT_GT(sq.step()[j], 0.1);
  }
}

TEST(ScalarQuantizer, HalvesAreThoseOfTheElementTypes) {
  const AnyMatrix rows = gaussians(100, 9, 3, 50);
  for (const ScalarCode kind : {ScalarCode::f16, ScalarCode::bf16}) {
    const auto sq = ScalarQuantizer::train(rows.view(), kind);
    EXPECT_EQ(sq.code_size(), 18);
    EXPECT_TRUE(sq.low().empty());
    const Matrix<std::uint8_t> codes = sq.encode(rows.view());
    const Matrix<float> rough = sq.decode(codes.view());
    for (std::int64_t i = 0; i < 100; ++i)
      for (std::int64_t j = 0; j < 9; ++j) {
        const float x = rows.view().as<float>().row(i)[j];
        const std::uint16_t bits = kind == ScalarCode::f16 ? to_f16(x).bits : to_bf16(x).bits;
        std::uint16_t stored;
        std::memcpy(&stored, codes.row(i) + 2 * j, 2);
        ASSERT_EQ(stored, bits);
        ASSERT_EQ(rough.row(i)[j],
                  kind == ScalarCode::f16 ? to_float(f16{bits}) : to_float(bf16{bits}));
      }
  }
}

TEST(ScalarQuantizer, MeasuresWhatCodesStandFor) {
  const AnyMatrix rows = gaussians(1500, 13, 4), queries = gaussians(5, 13, 5);
  for (const ScalarCode kind : all_codes) {
    const auto sq = ScalarQuantizer::train(rows.view(), kind);
    const Matrix<std::uint8_t> codes = sq.encode(rows.view());
    const Matrix<float> rough = sq.decode(codes.view());
    for (const Metric metric : metrics) {
      const Matrix<float> near = sq.distances(queries.view(), codes.view(), metric),
                          between =
                              sq.code_distances(codes.view().rows(3, 5), codes.view(), metric);
      for (std::int64_t i = 0; i < 1500; ++i) {
        for (std::int64_t q = 0; q < 5; ++q)
          ASSERT_EQ(near.row(q)[i],
                    static_cast<float>(reference_distance(metric, queries.view().as<float>().row(q),
                                                          rough.row(i), 13)));
        ASSERT_EQ(between.row(1)[i],
                  static_cast<float>(reference_distance(metric, rough.row(4), rough.row(i), 13)));
      }
    }
  }
}

TEST(ScalarQuantizer, NothingButTheArgumentsChangesABit) {
  const AnyMatrix rows = gaussians(70000, 18, 6);  // more than the sample
  for (const ScalarCode kind : all_codes) {
    const auto sq = ScalarQuantizer::train(rows.view(), kind, 1);
    const Matrix<std::uint8_t> codes = sq.encode(rows.view(), 1);
    for (const Isa isa : available_isas()) {
      const ForcedIsa forced(isa);
      const auto again = ScalarQuantizer::train(rows.view(), kind, 3);
      const Matrix<std::uint8_t> same = again.encode(rows.view(), 3);
      ASSERT_EQ(std::memcmp(same.data(), codes.data(),
                            static_cast<std::size_t>(codes.rows() * codes.cols())),
                0)
          << name_of(kind);
    }
    EXPECT_EQ(std::memcmp(sq.encode(rows.view().rows(69999, 70000)).data(), codes.row(69999),
                          static_cast<std::size_t>(codes.cols())),
              0);
  }
}

TEST(ScalarQuantizer, ExtremesAndConstants) {
  const AnyMatrix rows = make(ElementType::f32, 50, 3, [](std::int64_t i, std::int64_t j) {
    return j == 0 ? 5.0 : (i % 2 == 0 ? 3e38 : -3e38) * (j == 1 ? 1 : 1e-30);
  });
  for (const ScalarCode kind : {ScalarCode::bits8, ScalarCode::bits4, ScalarCode::bf16}) {
    const auto sq = ScalarQuantizer::train(rows.view(), kind);
    const Matrix<float> rough = sq.decode(sq.encode(rows.view()).view());
    for (std::int64_t i = 0; i < 50; ++i)
      for (std::int64_t j = 0; j < 3; ++j) {
        const double x = value(rows.view(), i, j);
        ASSERT_NEAR(rough.row(i)[j], x, 0.01 * std::fabs(x)) << name_of(kind) << j;
      }
    // Beyond the levels: the last one.
    const AnyMatrix far = make(ElementType::f64, 2, 3,
                               [](std::int64_t i, auto) { return i == 0 ? -3.4e38 : 3.4e38; });
    if (kind != ScalarCode::bf16) {
      EXPECT_NO_THROW(sq.encode(far.view()));
    }
  }
}

TEST(ScalarQuantizer, BadArgumentsAreNamed) {
  const AnyMatrix rows = gaussians(40, 5, 7);
  const auto says = [](const std::string& words, auto call) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  AnyMatrix bad = gaussians(40, 5, 8);
  static_cast<float*>(bad.row(12))[3] = std::nanf("");
  for (const ScalarCode kind : all_codes) {
    says("row 12", [&] { ScalarQuantizer::train(bad.view(), kind); });
    says("rows must be at least 1 to train on, but are 0",
         [&] { ScalarQuantizer::train(rows.view().rows(0, 0), kind); });
    const auto sq = ScalarQuantizer::train(rows.view(), kind);
    says("row 12", [&] { sq.encode(bad.view()); });
    const AnyMatrix wide = gaussians(3, 6, 9);
    says("rows have 6 columns, the quantizer 5", [&] { sq.encode(wide.view()); });
    const Matrix<std::uint8_t> odd(4, 9);
    says("codes have 9 columns, the quantizer's codes", [&] { sq.decode(odd.view()); });
    says("codes have 9 columns", [&] { sq.distances(rows.view(), odd.view(), Metric::l2); });
    says("from have 9 columns",
         [&] { sq.code_distances(odd.view(), sq.encode(rows.view()).view(), Metric::l2); });
    const Progress stop = [](std::string_view, double) { return false; };
    EXPECT_THROW(sq.encode(rows.view(), 1, stop), Cancelled);
  }
  const std::vector<float> two(2, 1), three(3, 1), negative(2, -1), large(2, 3e38F);
  says("low has 2 elements, step 3",
       [&] { ScalarQuantizer::from_levels(ScalarCode::bits8, two, three); });
  says("levels must be finite and ascend, but column 0 begins with 1 in steps of -1",
       [&] { ScalarQuantizer::from_levels(ScalarCode::bits8, two, negative); });
  says("levels must be finite",
       [&] { ScalarQuantizer::from_levels(ScalarCode::bits4, two, large); });
  says("code must be 8 or 4 to have levels, but is bf16",
       [&] { ScalarQuantizer::from_levels(ScalarCode::bf16, two, two); });
  says("code must be fp16 or bf16 without levels, but is 8",
       [&] { ScalarQuantizer::of_halves(ScalarCode::bits8, 4); });
  says("dim must be from 1 to 65536, but is 0",
       [&] { ScalarQuantizer::of_halves(ScalarCode::f16, 0); });
  Matrix<float> large_rows(4, 5);
  large_rows.row(2)[1] = 70000;
  says("rows must be finite as fp16, but row 2 column 1 is 70000",
       [&] { ScalarQuantizer::of_halves(ScalarCode::f16, 5).encode(large_rows.view()); });
}

}  // namespace
}  // namespace knear
