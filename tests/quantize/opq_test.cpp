// The rotation in front of a product quantiser: that it is one, and what it gains.
#include "knear/quantize/opq.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "knear/core/error.hpp"
#include "knear/quantize/product_quantizer.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using namespace test;

// What a quantiser trained on the rows loses of each, in the mean.
double loss(MatrixView<float> rows, std::int64_t parts, int bits = 4) {
  const auto pq = ProductQuantizer::train(rows, parts, bits, {.iterations = 15});
  const Matrix<float> rough = pq.decode(pq.encode(rows).view());
  double sum = 0;
  for (std::int64_t i = 0; i < rows.rows(); ++i)
    sum += reference_distance(Metric::l2, rows.row(i), rough.row(i), rows.cols());
  return sum / static_cast<double>(rows.rows());
}

// Columns of very unequal variance, of which neighbours belong together, far from zero; turned by a
// random rotation or not.
Matrix<float> related(std::int64_t rows, std::uint64_t seed, bool turned) {
  Random random(seed);
  Matrix<float> out(rows, 16);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t part = 0; part < 4; ++part) {
      const double centre = static_cast<double>(random.below(6)) * 3;
      for (std::int64_t j = 0; j < 4; ++j)
        out.row(i)[4 * part + j] =
            static_cast<float>(50 + std::ldexp(1.0, static_cast<int>(part)) *
                                        (centre * double(j % 3) + gaussian(random)));
    }
  return turned ? Transform::rotation(16, 16, 5).apply(out.view()) : std::move(out);
}

TEST(Opq, LosesLessThanWhatItBeginsWith) {
  for (const bool turned : {false, true}) {
    const Matrix<float> rows = related(3000, 1, turned);
    const Transform turn = train_opq(rows.view(), 4, {.bits = 4});
    EXPECT_TRUE(turn.keeps_distances());
    const double best = loss(turn.apply(rows.view()).view(), 4), plain = loss(rows.view(), 4),
                 components = loss(
                     Transform::pca(rows.view(), 16, {.balance_over = 4}).apply(rows.view()).view(),
                     4);
    EXPECT_LT(best, turned ? 0.9 * plain : 1.02 * plain);
    EXPECT_LT(best, 1.02 * components);
  }
}

TEST(Opq, MayLeaveColumnsOut) {
  const Matrix<float> rows = related(2000, 2, true);
  const Transform turn = train_opq(rows.view(), 2, {.bits = 4, .dim_out = 6, .iterations = 8});
  EXPECT_EQ(turn.dim_in(), 16);
  EXPECT_EQ(turn.dim_out(), 6);
  // Rows of the matrix are orthonormal: the way there and back ends where it began.
  const Matrix<float> y = turn.apply(rows.view()),
                      again = turn.apply(turn.inverse(y.view()).view());
  for (std::int64_t i = 0; i < 2000; ++i)
    for (std::int64_t j = 0; j < 6; ++j) ASSERT_NEAR(again.row(i)[j], y.row(i)[j], 1e-3);
}

TEST(Opq, NothingButTheArgumentsChangesABit) {
  const Matrix<float> rows = related(3000, 3, true);
  OpqOptions options{.bits = 8, .iterations = 4, .most_rows = 1000, .threads = 1};
  const Transform first = train_opq(rows.view(), 4, options);
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    for (const int threads : {1, 2, 5}) {
      options.threads = threads;
      const Transform again = train_opq(rows.view(), 4, options);
      ASSERT_EQ(
          std::memcmp(again.steps()[0].matrix.data(), first.steps()[0].matrix.data(), 16 * 64), 0);
    }
  }
}

TEST(Opq, BadArgumentsAreNamed) {
  const AnyMatrix rows = gaussians(300, 12, 4);
  const auto refuses = [&](const std::string& words, std::int64_t parts, const OpqOptions& options,
                           AnyMatrixView from) {
    try {
      train_opq(from, parts, options);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refuses("dim_out must be from 1 to 12, the columns, but is 13", 1, {.dim_out = 13}, rows.view());
  refuses("dim_out must be from 1 to 12, the columns, but is -2", 1, {.dim_out = -2}, rows.view());
  refuses("sub_quantizers must divide the columns, which are 10, but is 4", 4, {.dim_out = 10},
          rows.view());
  refuses("but is 0", 0, {}, rows.view());
  refuses("iterations must not be negative, but is -1", 4, {.iterations = -1}, rows.view());
  refuses("bits must be 4 or 8, but is 5", 4, {.bits = 5}, rows.view());
  refuses("rows are 200, but 8 bits take 256 at least", 4, {}, rows.view().rows(0, 200));
  refuses("most_rows must be 0 or at least 256, but is 10", 4, {.most_rows = 10}, rows.view());
  refuses("threads", 4, {.threads = -1}, rows.view());
  AnyMatrix bad = gaussians(300, 12, 5);
  static_cast<float*>(bad.row(77))[0] = std::nanf("");
  refuses("row 77", 4, {}, bad.view());
  int calls = 0;
  double last = 0;
  const Progress stop = [&](std::string_view stage, double done) {
    EXPECT_EQ(stage, "train rotation");
    EXPECT_GE(done, last);
    last = done;
    return ++calls < 40;
  };
  EXPECT_THROW(train_opq(rows.view(), 4, {.iterations = 500, .progress = stop}), Cancelled);
}

}  // namespace
}  // namespace knear
