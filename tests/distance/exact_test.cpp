// ExactDistance gives the bits of reference_distance at every level, for every pair of types,
// metrics and dimensions around the edges of the sixteen lanes; and the reference follows its
// definition.
#include "knear/distance/exact.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <type_traits>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine, Metric::l1};

// Random elements of the type; floats spread over 12 powers of ten, some zero and denormal.
AnyMatrix random_matrix(ElementType type, std::int64_t rows, std::int64_t cols,
                        std::uint64_t seed) {
  AnyMatrix out(type, rows, cols);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::uint64_t r = random.next();
    float x = static_cast<float>((random.uniform() - 0.5) * std::pow(10.0, double(r % 13) - 6));
    if (r % 97 == 0) x = 0;
    if (r % 101 == 0) x = 1e-42f;
    void* p = out.row(0);
    switch (type) {
      case ElementType::f32:
        static_cast<float*>(p)[i] = x;
        break;
      case ElementType::f16:
        static_cast<f16*>(p)[i] = to_f16(x / 100);
        break;
      case ElementType::bf16:
        static_cast<bf16*>(p)[i] = to_bf16(x);
        break;
      case ElementType::f64:
        static_cast<double*>(p)[i] = r % 103 == 0 ? 1e-320 : x * (1 + 0x1p-40);
        break;
      default:
        static_cast<std::uint8_t*>(p)[i] = std::uint8_t(r >> 20);
    }
  }
  return out;
}

TEST(Exact, SameBitsAsReferenceAtEveryLevelAloneAndInGroups) {
  const std::int64_t which[] = {1, 4, 0, 3};
  for (ElementType qt : all_element_types)
    for (ElementType bt : all_element_types)
      for (std::int64_t dim : {1, 2, 15, 16, 17, 31, 32, 33, 100, 257}) {
        const AnyMatrix queries = random_matrix(qt, 5, dim, 1), base = random_matrix(bt, 3, dim, 2);
        for (Metric metric : metrics) {
          Matrix<double> expected(ExactGroup::size, base.view().rows());
          for (int q = 0; q < ExactGroup::size; ++q)
            for (int row = 0; row < 3; ++row)
              expected.row(q)[row] = visit(queries.view(), [&](auto x) {
                return visit(base.view(), [&](auto y) {
                  return order_key(metric,
                                   reference_distance(metric, x.row(which[q]), y.row(row), dim));
                });
              });
          const auto check = [&](double got, int q, int row, Isa isa, int count) {
            ASSERT_EQ(std::bit_cast<std::uint64_t>(got),
                      std::bit_cast<std::uint64_t>(expected.row(q)[row]))
                << name_of(qt) << ' ' << name_of(bt) << ' ' << dim << ' ' << name_of(metric) << ' '
                << name_of(isa) << ' ' << q << " of " << count << ' ' << got << ' '
                << expected.row(q)[row];
          };
          for (Isa isa : test::levels()) {
            ExactDistance measure(metric, bt, isa);
            measure.set_query(queries, which[0]);
            for (int row = 0; row < 3; ++row)
              check(measure.key(base.view().row(row)), 0, row, isa, 1);
            const int places[] = {2, 0, 1, 2};
            const void* rows[ExactDistance::most_rows];
            for (int r = 0; r < ExactDistance::most_rows; ++r) rows[r] = base.view().row(places[r]);
            for (int count : {4, 1, 3, 2}) {
              double keys[ExactDistance::most_rows];
              measure.keys(rows, count, keys);
              for (int r = 0; r < count; ++r) check(keys[r], 0, places[r], isa, count);
            }
            ExactGroup group(metric, bt, isa);
            for (int count : {4, 1, 3, 2}) {
              group.set_queries(queries, which, count);
              for (int row = 0; row < 3; ++row) {
                double keys[ExactGroup::size];
                group.keys(base.view().row(row), keys);
                for (int q = 0; q < count; ++q) check(keys[q], q, row, isa, count);
              }
            }
          }
        }
      }
}

// Rounding leaves 1 - cos of parallel vectors a little below 0 or above 2 otherwise.
TEST(Exact, CosinesOfParallelVectorsAreFromZeroToTwo) {
  for (ElementType type : {ElementType::f32, ElementType::f64})
    for (std::int64_t dim : {1, 3, 17}) {
      const AnyMatrix x = random_matrix(type, 300, dim, 7);
      int at_zero = 0, at_two = 0;
      for (double factor : {3.0, 7.0, -3.0, -7.0}) {
        AnyMatrix y(type, 300, dim);
        visit(x.view(), [&](auto from) {
          using T = std::remove_cvref_t<decltype(from.row(0)[0])>;
          if constexpr (std::is_floating_point_v<T>)
            for (std::int64_t i = 0; i < 300 * dim; ++i)
              static_cast<T*>(y.row(0))[i] =
                  static_cast<T>(factor * double{from.row(i / dim)[i % dim]});
        });
        ExactDistance measure(Metric::cosine, type);
        for (std::int64_t i = 0; i < 300; ++i) {
          measure.set_query(x, i);
          const double key = measure.key(y.view().row(i));
          ASSERT_TRUE(key >= 0 && key <= 2) << name_of(type) << ' ' << dim << ' ' << key;
          at_zero += key == 0;
          at_two += key == 2;
        }
      }
      EXPECT_GT(at_zero, 0);
      EXPECT_GT(at_two, 0);
    }
}

TEST(Exact, ReferenceIsTheDocumentedOrderOfSums) {
  // 1 and 17 terms of very different size: the seventeenth is added to the first before the tree.
  std::vector<float> x(17, 0.0f), y(17, 0.0f);
  x[0] = 1e8f, x[16] = 1.0f, x[1] = -1e8f;
  // l2: s_0 = 1e16 + 1 (rounds to 1e16 in double), s_1 = 1e16.
  EXPECT_EQ(reference_distance(Metric::l2, x.data(), y.data(), 17), 2e16);
  const std::vector<float> ones(17, 1.0f);
  EXPECT_EQ(reference_distance(Metric::ip, ones.data(), ones.data(), 17), 17.0);
  EXPECT_EQ(reference_distance(Metric::cosine, x.data(), y.data(), 17), 1.0);
  EXPECT_EQ(reference_distance(Metric::cosine, ones.data(), ones.data(), 17), 0.0);
}

TEST(Exact, ReferenceKnnOrdersByDistanceThenIdAndPads) {
  Matrix<float> base(4, 1), query(1, 1);
  base.row(0)[0] = 3, base.row(1)[0] = 1, base.row(2)[0] = -1, base.row(3)[0] = 0;
  const Neighbors near = reference_knn(query.view(), base.view(), 6, Metric::l2);
  const Id ids[] = {3, 1, 2, 0, no_id, no_id};
  const float distances[] = {0, 1, 1, 9, INFINITY, INFINITY};
  for (int j = 0; j < 6; ++j) {
    EXPECT_EQ(near.ids.row(0)[j], ids[j]);
    EXPECT_EQ(near.distances.row(0)[j], distances[j]);
  }
  query.row(0)[0] = 1;
  const Neighbors product = reference_knn(query.view(), base.view(), 5, Metric::ip);
  EXPECT_EQ(product.ids.row(0)[0], 0);
  EXPECT_EQ(product.distances.row(0)[0], 3);
  EXPECT_EQ(product.distances.row(0)[4], -INFINITY);
}

}  // namespace
}  // namespace knear
