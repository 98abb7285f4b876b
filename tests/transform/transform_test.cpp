// Transforms against plain loops: each maker, chains, inverses; and that nothing but the arguments
// changes a bit.
#include "knear/transform/transform.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "knear/core/error.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using namespace test;

bool same_bits(const Matrix<float>& a, const Matrix<float>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.rows() * a.cols()) * 4) == 0;
}

// Rows whose variances fall, in directions that no coordinate is aligned with, far from zero.
AnyMatrix stretched(std::int64_t rows, std::int64_t dim, std::uint64_t seed, double offset = 3,
                    ElementType type = ElementType::f32) {
  const Transform turn = Transform::rotation(dim, dim, 77);
  Random random(seed);
  Matrix<float> straight(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      straight.row(i)[j] =
          static_cast<float>(gaussian(random) * 8 / (1 + static_cast<double>(j * j)));
  const Matrix<float> turned = turn.apply(straight.view());
  return make(type, rows, dim, [&](std::int64_t i, std::int64_t j) {
    return turned.row(i)[j] + offset + static_cast<double>(j);
  });
}

double value(AnyMatrixView rows, std::int64_t i, std::int64_t j) {
  return visit(rows, [&](auto typed) { return to_double(typed.row(i)[j]); });
}

// Covariances [dim x dim] by the definition.
Matrix<double> covariance(AnyMatrixView rows) {
  const std::int64_t dim = rows.cols(), n = rows.rows();
  std::vector<double> mean(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      mean[static_cast<std::size_t>(j)] += value(rows, i, j) / static_cast<double>(n);
  Matrix<double> out(dim, dim);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t a = 0; a < dim; ++a)
      for (std::int64_t b = 0; b < dim; ++b)
        out.row(a)[b] += (value(rows, i, a) - mean[static_cast<std::size_t>(a)]) *
                         (value(rows, i, b) - mean[static_cast<std::size_t>(b)]) /
                         static_cast<double>(n);
  return out;
}

TEST(Transform, LinearIsTheMatrixAndTheOffset) {
  Random random(1);
  for (const std::int64_t in : {1, 3, 17, 64})
    for (const std::int64_t out : {1, 5, 64}) {
      Matrix<float> matrix(out, in);
      std::vector<float> offset(static_cast<std::size_t>(out));
      for (std::int64_t i = 0; i < out * in; ++i)
        matrix.data()[i] = static_cast<float>(gaussian(random));
      for (float& x : offset) x = static_cast<float>(gaussian(random));
      const Transform both = Transform::linear(matrix.view(), offset),
                      plain = Transform::linear(matrix.view());
      EXPECT_EQ(both.dim_in(), in);
      EXPECT_EQ(both.dim_out(), out);
      for (const ElementType type : all_element_types) {
        const AnyMatrix rows =
            make(type, 300, in, [&](auto, auto) { return std::floor(100 * random.uniform()); });
        const Matrix<float> y = both.apply(rows.view()), z = plain.apply(rows.view());
        for (std::int64_t i = 0; i < 300; ++i)
          for (std::int64_t c = 0; c < out; ++c) {
            double sum = 0;
            for (std::int64_t j = 0; j < in; ++j)
              sum += value(rows.view(), i, j) * double{matrix.row(c)[j]};
            ASSERT_EQ(z.row(i)[c], static_cast<float>(sum));
            ASSERT_EQ(y.row(i)[c],
                      static_cast<float>(sum + double{offset[static_cast<std::size_t>(c)]}));
          }
      }
    }
}

TEST(Transform, PrincipalComponentsAreUncorrelatedAndTheLargest) {
  const AnyMatrix rows = stretched(4000, 24, 2);
  const Matrix<double> before = covariance(rows.view());
  double total = 0;
  for (int j = 0; j < 24; ++j) total += before.row(j)[j];
  const Transform all = Transform::pca(rows.view(), 24), some = Transform::pca(rows.view(), 5);
  EXPECT_TRUE(all.keeps_distances());
  EXPECT_FALSE(some.keeps_distances());
  const Matrix<double> after = covariance(all.apply(rows.view()).view());
  double kept = 0;
  for (int a = 0; a < 24; ++a) {
    kept += after.row(a)[a];
    if (a > 0) {
      EXPECT_LE(after.row(a)[a], after.row(a - 1)[a - 1] * (1 + 1e-5));
    }
    for (int b = 0; b < a; ++b) EXPECT_NEAR(after.row(a)[b], 0, 1e-5 * after.row(0)[0]);
  }
  EXPECT_NEAR(kept, total, 1e-5 * total);
  // The first components of all are those of some, and the first one points somewhere up.
  const Matrix<float> matrix_of_all = [&] {
    Matrix<float> out(5, 24);
    std::memcpy(out.data(), all.steps()[1].matrix.data(), 5 * 24 * 4);
    return out;
  }();
  EXPECT_EQ(std::memcmp(matrix_of_all.data(), some.steps()[1].matrix.data(), 5 * 24 * 4), 0);
  for (int c = 0; c < 5; ++c) {
    const float* row = matrix_of_all.row(c);
    EXPECT_GT(*std::max_element(row, row + 24,
                                [](float a, float b) { return std::fabs(a) < std::fabs(b); }),
              0);
  }
  // The mean goes to zero; the inverse of all is the row, of some the nearest in their space.
  const Matrix<float> back = all.inverse(all.apply(rows.view()).view()),
                      rough = some.inverse(some.apply(rows.view()).view());
  double left = 0;
  for (std::int64_t i = 0; i < 4000; ++i)
    for (std::int64_t j = 0; j < 24; ++j) {
      ASSERT_NEAR(back.row(i)[j], value(rows.view(), i, j), 1e-4);
      left += std::pow(double{rough.row(i)[j]} - value(rows.view(), i, j), 2) / 4000;
    }
  double smaller = 0;
  for (int a = 5; a < 24; ++a) smaller += after.row(a)[a];
  EXPECT_NEAR(left, smaller, 1e-4 * smaller);
}

TEST(Transform, WhiteningMakesVariancesOne) {
  const AnyMatrix rows = stretched(3000, 12, 3, 1000);
  const Transform white = Transform::pca(rows.view(), 9, {.whiten = true});
  const Matrix<float> y = white.apply(rows.view());
  const Matrix<double> after = covariance(y.view());
  for (int a = 0; a < 9; ++a)
    for (int b = 0; b < 9; ++b) EXPECT_NEAR(after.row(a)[b], a == b ? 1 : 0, 1e-3) << a << b;
  const Matrix<float> rough = white.inverse(y.view()),
                      plain =
                          Transform::pca(rows.view(), 9)
                              .inverse(Transform::pca(rows.view(), 9).apply(rows.view()).view());
  for (std::int64_t i = 0; i < 3000; ++i)
    for (std::int64_t j = 0; j < 12; ++j) ASSERT_NEAR(rough.row(i)[j], plain.row(i)[j], 2e-3);
  // Where rows vary in fewer directions than there are components, the others are 0.
  const AnyMatrix flat = make(ElementType::f32, 100, 4,
                              [](std::int64_t i, std::int64_t j) { return double(i * (j + 1)); });
  EXPECT_NO_THROW(Transform::pca(flat.view(), 4));
  const Transform few = Transform::pca(flat.view(), 3, {.whiten = true});
  const Matrix<float> whitened = few.apply(flat.view()), restored = few.inverse(whitened.view());
  EXPECT_NEAR(covariance(whitened.view()).row(0)[0], 1, 1e-3);
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(whitened.row(i)[1], 0);
    EXPECT_EQ(whitened.row(i)[2], 0);
    for (std::int64_t j = 0; j < 4; ++j) EXPECT_NEAR(restored.row(i)[j], i * (j + 1), 1e-2);
  }
  const AnyMatrix equal =
      make(ElementType::f32, 10, 4, [](std::int64_t, std::int64_t j) { return double(j); });
  try {
    Transform::pca(equal.view(), 2, {.whiten = true});
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "rows do not vary, so that whitening would divide by nothing");
  }
  // Where 1 over the deviation is no float, the matrix was said not to be finite.
  Matrix<float> tiny(50, 3);
  Random random(9);
  for (std::int64_t i = 0; i < 150; ++i)
    tiny.data()[i] = static_cast<float>((random.uniform() - 0.5) * 1e-39);
  try {
    Transform::pca(tiny.view(), 2, {.whiten = true});
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("rows vary by "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("beyond the range of float32"), std::string::npos);
  }
}

// Fewer rows than columns: the products of the rows are decomposed, which took minutes by columns.
// The same rows twice have the same components, and are decomposed by columns.
TEST(Transform, PrincipalComponentsOfFewerRowsThanColumns) {
  const AnyMatrix rows = stretched(20, 36, 8);
  const AnyMatrix twice = make(ElementType::f32, 40, 36, [&](std::int64_t i, std::int64_t j) {
    return value(rows.view(), i % 20, j);
  });
  for (const bool centre : {true, false}) {
    const Transform one = Transform::pca(rows.view(), 8, {.centre = centre}),
                    two = Transform::pca(twice.view(), 8, {.centre = centre});
    const Matrix<float> a = one.apply(rows.view()), b = two.apply(rows.view());
    for (std::int64_t i = 0; i < 20; ++i)
      for (std::int64_t j = 0; j < 8; ++j) ASSERT_NEAR(a.row(i)[j], b.row(i)[j], 1e-3) << j;
  }
  // All columns: those beyond the rank complete the basis, and are nothing after whitening.
  EXPECT_TRUE(Transform::pca(rows.view(), 36).keeps_distances());
  const Transform white = Transform::pca(rows.view(), 36, {.whiten = true});
  const Matrix<float> y = white.apply(rows.view());
  const Matrix<double> after = covariance(y.view());
  for (int c = 0; c < 36; ++c) EXPECT_NEAR(after.row(c)[c], c < 19 ? 1 : 0, 2e-2) << c;
  // Rows on a line span one direction.
  const AnyMatrix line = make(ElementType::f32, 5, 9,
                              [](std::int64_t i, std::int64_t j) { return double(i * (j + 1)); });
  const Transform few = Transform::pca(line.view(), 9, {.whiten = true});
  const Matrix<float> ends = few.apply(line.view());
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 1; j < 9; ++j) EXPECT_EQ(ends.row(i)[j], 0);
  EXPECT_NEAR(covariance(ends.view()).row(0)[0], 1, 1e-3);
}

// Without its shift the map is linear: products and lengths stay where all columns are kept.
TEST(Transform, PrincipalComponentsWithoutCentringKeepProducts) {
  const AnyMatrix rows = stretched(300, 12, 9);
  const Transform turn = Transform::pca(rows.view(), 12, {.centre = false});
  ASSERT_EQ(turn.steps().size(), 1u);
  const Matrix<float> y = turn.apply(rows.view());
  for (std::int64_t i = 0; i < 20; ++i)
    for (std::int64_t k = 0; k < 20; ++k) {
      double was = 0, is = 0;
      for (std::int64_t j = 0; j < 12; ++j) {
        was += value(rows, i, j) * value(rows, k, j);
        is += double{y.row(i)[j]} * double{y.row(k)[j]};
      }
      ASSERT_NEAR(is, was, 1e-5 * std::abs(was) + 1e-4);
    }
  // The first component is the direction in which the rows lie, not that in which they differ.
  double first = 0, others = 0;
  for (std::int64_t i = 0; i < 300; ++i)
    for (std::int64_t j = 0; j < 12; ++j)
      (j == 0 ? first : others) += double{y.row(i)[j]} * double{y.row(i)[j]};
  EXPECT_GT(first, others);
}

TEST(Transform, RotatedComponentsHaveAlikeVariances) {
  const AnyMatrix rows = stretched(3000, 32, 4);
  const Transform turned = Transform::pca(rows.view(), 32, {.rotate = true});
  EXPECT_TRUE(turned.keeps_distances());
  const Matrix<double> plain =
                           covariance(Transform::pca(rows.view(), 32).apply(rows.view()).view()),
                       after = covariance(turned.apply(rows.view()).view());
  double largest = 0;
  for (int a = 0; a < 32; ++a) largest = std::max(largest, after.row(a)[a]);
  EXPECT_LT(largest, 0.5 * plain.row(0)[0]);
}

// The greedy order against all orders.
TEST(Transform, BalancedPartsHaveAlikeProducts) {
  const AnyMatrix rows = stretched(2000, 6, 5);
  const Matrix<double> plain = covariance(Transform::pca(rows.view(), 6).apply(rows.view()).view());
  for (const std::int64_t parts : {1, 2, 3, 6}) {
    const Transform t = Transform::pca(rows.view(), 6, {.balance_over = parts});
    const Matrix<double> after = covariance(t.apply(rows.view()).view());
    const std::int64_t width = 6 / parts;
    // The largest product of a part, of `order`.
    const auto worst = [&](const std::vector<double>& variances) {
      double most = 0;
      for (std::int64_t p = 0; p < parts; ++p) {
        double product = 1;
        for (std::int64_t j = 0; j < width; ++j)
          product *= variances[static_cast<std::size_t>(p * width + j)];
        most = std::max(most, product);
      }
      return most;
    };
    std::vector<double> got, all;
    for (int j = 0; j < 6; ++j) got.push_back(after.row(j)[j]), all.push_back(plain.row(j)[j]);
    std::sort(all.begin(), all.end());
    double best = std::numeric_limits<double>::infinity();
    do best = std::min(best, worst(all));
    while (std::next_permutation(all.begin(), all.end()));
    EXPECT_LT(worst(got), best * (parts == 2 ? 3 : 1.001)) << parts;
    // The same components, in another order.
    std::sort(got.begin(), got.end()), std::sort(all.begin(), all.end());
    for (std::size_t j = 0; j < 6; ++j) EXPECT_NEAR(got[j], all[j], 1e-4 * all[j] + 1e-9);
  }
}

TEST(Transform, RotationsKeepDistances) {
  const AnyMatrix rows = gaussians(50, 20, 6);
  const Transform turn = Transform::rotation(20, 20, 9), wider = Transform::rotation(20, 33, 9),
                  less = Transform::rotation(20, 8, 9);
  EXPECT_TRUE(turn.keeps_distances());
  EXPECT_TRUE(wider.keeps_distances());
  EXPECT_FALSE(less.keeps_distances());
  const auto distance = [](MatrixView<float> x, int a, int b) {
    return reference_distance(Metric::l2, x.row(a), x.row(b), x.cols());
  };
  const Matrix<float> y = turn.apply(rows.view()), z = wider.apply(rows.view()),
                      back = turn.inverse(y.view()), across = wider.inverse(z.view());
  for (int i = 1; i < 50; ++i) {
    const double wanted = distance(rows.view().as<float>(), 0, i);
    EXPECT_NEAR(distance(y.view(), 0, i), wanted, 1e-4);
    EXPECT_NEAR(distance(z.view(), 0, i), wanted, 1e-4);
    for (int j = 0; j < 20; ++j) {
      EXPECT_NEAR(back.row(i)[j], value(rows.view(), i, j), 1e-5);
      EXPECT_NEAR(across.row(i)[j], value(rows.view(), i, j), 1e-5);
    }
  }
  EXPECT_TRUE(same_bits(Transform::rotation(20, 20, 9).apply(rows.view()), y));
  EXPECT_FALSE(same_bits(Transform::rotation(20, 20, 10).apply(rows.view()), y));
  const Matrix<float> shorter = less.apply(rows.view());
  EXPECT_EQ(shorter.cols(), 8);
  EXPECT_TRUE(same_bits(less.apply(less.inverse(shorter.view()).view()), shorter) ||
              std::fabs(less.apply(less.inverse(shorter.view()).view()).row(3)[3] -
                        shorter.row(3)[3]) < 1e-5);
}

TEST(Transform, AnyMatrixHasAPseudoInverse) {
  Random random(10);
  for (const std::int64_t out : {3, 6, 9}) {
    Matrix<float> matrix(out, 6);
    for (std::int64_t i = 0; i < out * 6; ++i)
      matrix.data()[i] = static_cast<float>(gaussian(random));
    const std::vector<float> offset(static_cast<std::size_t>(out), 2.5F);
    const Transform t = Transform::linear(matrix.view(), offset);
    EXPECT_FALSE(t.keeps_distances());
    const AnyMatrix rows = gaussians(30, 6, 11);
    const Matrix<float> y = t.apply(rows.view()), x = t.inverse(y.view()),
                        again = t.apply(x.view());
    for (int i = 0; i < 30; ++i) {
      for (std::int64_t j = 0; j < out; ++j) EXPECT_NEAR(again.row(i)[j], y.row(i)[j], 1e-4);
      for (std::int64_t j = 0; j < 6 && out >= 6; ++j)
        EXPECT_NEAR(x.row(i)[j], value(rows.view(), i, j), 1e-3);
    }
  }
}

TEST(Transform, CentringAndUnitNorm) {
  const AnyMatrix rows = stretched(500, 7, 12, 1e6, ElementType::f64);
  const Transform centre = Transform::centring(rows.view());
  EXPECT_TRUE(centre.keeps_distances());
  const Matrix<float> y = centre.apply(rows.view());
  for (int j = 0; j < 7; ++j) {
    double sum = 0;
    for (int i = 0; i < 500; ++i) sum += y.row(i)[j] / 500.0;
    EXPECT_NEAR(sum, 0, 0.1);  // the offset is a float of a million
  }
  const Matrix<float> back = centre.inverse(y.view());
  for (int i = 0; i < 500; ++i) EXPECT_NEAR(back.row(i)[3], value(rows.view(), i, 3), 0.1);

  const Transform unit = Transform::unit_norm(3);
  EXPECT_FALSE(unit.keeps_distances());
  const double sizes[] = {1, 3e38, 1e-44, 1e-300, 5e-324, 0};
  const AnyMatrix odd = make(ElementType::f64, 6, 3, [&](std::int64_t i, std::int64_t j) {
    return i == 4 ? (j == 1 ? 5e-324 : 0) : sizes[i] * static_cast<double>(j - 1) * 0.5;
  });
  const Matrix<float> z = unit.apply(odd.view());
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(z.row(i)[0], -std::sqrt(0.5F)) << sizes[i];
    EXPECT_EQ(z.row(i)[1], 0);
    EXPECT_FLOAT_EQ(z.row(i)[2], std::sqrt(0.5F)) << sizes[i];
  }
  EXPECT_EQ(z.row(4)[1], 1);
  for (int j = 0; j < 3; ++j) EXPECT_EQ(z.row(5)[j], 0);
  EXPECT_TRUE(same_bits(unit.inverse(z.view()), z));
}

TEST(Transform, AChainIsOneAfterTheOther) {
  const AnyMatrix rows = stretched(700, 16, 13);
  const Transform pca = Transform::pca(rows.view(), 8), unit = Transform::unit_norm(8),
                  turn = Transform::rotation(8, 8, 2);
  const Transform all = Transform::chain({pca, Transform::chain({unit, turn})});
  EXPECT_EQ(all.steps().size(), 4U);
  EXPECT_EQ(all.dim_in(), 16);
  EXPECT_EQ(all.dim_out(), 8);
  const Matrix<float> one_by_one = turn.apply(unit.apply(pca.apply(rows.view()).view()).view());
  EXPECT_TRUE(same_bits(all.apply(rows.view()), one_by_one));
  EXPECT_TRUE(same_bits(all.inverse(one_by_one.view()),
                        pca.inverse(unit.inverse(turn.inverse(one_by_one.view()).view()).view())));
  // From its steps it can be made again.
  std::vector<Transform> parts;
  for (const Transform::Step& step : all.steps()) switch (step.kind) {
      case Transform::Kind::linear:
        parts.push_back(Transform::linear(step.matrix, step.offset));
        break;
      case Transform::Kind::shift:
        parts.push_back(Transform::shift(step.offset));
        break;
      case Transform::Kind::unit_norm:
        parts.push_back(Transform::unit_norm(step.dim_in));
    }
  EXPECT_TRUE(same_bits(Transform::chain(parts).apply(rows.view()), one_by_one));
}

TEST(Transform, NothingButTheArgumentsChangesABit) {
  const AnyMatrix rows = stretched(3000, 40, 14);
  const PcaOptions options{
      .whiten = true, .rotate = true, .balance_over = 4, .most_rows = 1000, .threads = 1};
  const Transform first = Transform::pca(rows.view(), 20, options);
  const Matrix<float> y = first.apply(rows.view(), 1), x = first.inverse(y.view(), 1);
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    for (const int threads : {1, 2, 7}) {
      PcaOptions other = options;
      other.threads = threads;
      const Transform again = Transform::pca(rows.view(), 20, other);
      ASSERT_TRUE(same_bits(again.apply(rows.view(), threads), y));
      ASSERT_TRUE(same_bits(again.inverse(y.view(), threads), x));
    }
  }
  for (const std::int64_t i : {0, 255, 256, 2999})
    EXPECT_EQ(std::memcmp(first.apply(rows.view().rows(i, i + 1)).data(), y.row(i), 80), 0);
}

TEST(Transform, BadArgumentsAreNamed) {
  const AnyMatrix rows = gaussians(30, 6, 15);
  const auto says = [](const std::string& words, auto call) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  says("components must be from 1 to 6, the columns, but is 7",
       [&] { Transform::pca(rows.view(), 7); });
  says("but is 0", [&] { Transform::pca(rows.view(), 0); });
  says("rows must be at least 2 for principal components, but are 1",
       [&] { Transform::pca(rows.view().rows(0, 1), 1); });
  says("balance_over must divide the components, which are 4, but is 3",
       [&] { Transform::pca(rows.view(), 4, {.balance_over = 3}); });
  says("most_rows must be 0 or at least 2, but is 1",
       [&] { Transform::pca(rows.view(), 4, {.most_rows = 1}); });
  says("threads", [&] { Transform::pca(rows.view(), 4, {.threads = -1}); });
  says("columns of rows must be from 1 to 65536, but is 0",
       [&] { Transform::pca(AnyMatrixView(ElementType::f32, nullptr, 4, 0, 0), 1); });
  says("rows must be at least 1 to have a mean, but are 0",
       [&] { Transform::centring(rows.view().rows(0, 0)); });
  says("dim must be from 1 to 65536, but is 0", [&] { Transform::unit_norm(0); });
  says("dim_out must be from 1 to 65536, but is 0", [&] { Transform::rotation(3, 0); });
  const Matrix<float> matrix(3, 4);
  says("offset has 2 elements, the matrix 3 rows",
       [&] { Transform::linear(matrix.view(), std::vector<float>(2)); });
  says("offset must be finite, but element 1 is inf", [&] {
    Transform::linear(matrix.view(), std::vector<float>{0, INFINITY, 0});
  });
  says("transforms must be at least 1, but are 0", [&] { Transform::chain({}); });
  says("transform 1 takes 5 columns, the one before gives 3", [&] {
    Transform::chain({Transform::linear(matrix.view()), Transform::unit_norm(5)});
  });
  AnyMatrix bad = gaussians(30, 6, 16);
  static_cast<float*>(bad.row(21))[2] = INFINITY;
  says("row 21", [&] { Transform::pca(bad.view(), 2); });
  says("row 21", [&] { Transform::centring(bad.view()); });
  const Transform turn = Transform::rotation(6, 6);
  says("row 21", [&] { turn.apply(bad.view()); });
  says("row 21", [&] { turn.inverse(bad.view()); });
  says("rows have 6 columns, the transform takes 3",
       [&] { Transform::unit_norm(3).apply(rows.view()); });
  says("rows have 6 columns, the transform gives 3",
       [&] { Transform::unit_norm(3).inverse(rows.view()); });
  Matrix<float> tenfold(1, 1);
  tenfold.data()[0] = 10;
  Matrix<float> large(300, 1);
  large.row(299)[0] = 3e38F;
  says("that of row 299", [&] { Transform::linear(tenfold.view()).apply(large.view()); });
  EXPECT_EQ(turn.apply(rows.view().rows(0, 0)).rows(), 0);
  const Progress stop = [](std::string_view, double) { return false; };
  EXPECT_THROW(Transform::pca(rows.view(), 2, {.progress = stop}), Cancelled);
  EXPECT_THROW(turn.apply(rows.view(), 1, stop), Cancelled);
  EXPECT_THROW(turn.inverse(rows.view(), 1, stop), Cancelled);
}

}  // namespace
}  // namespace knear
