// Rows of few columns, which searches look for in a tree of boxes: the answers are those of
// measuring every pair, whatever the shape, and few rows are looked at.
#include "knear/knn/rows/row_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/exact.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/knn.hpp"

namespace knear {
namespace {

struct Shape {
  std::string name;
  std::int64_t columns;
  Metric metric = Metric::l2;
  ElementType type = ElementType::f32;
};

// Row i of a shape, as doubles.
std::vector<double> row_of(const Shape& shape, std::int64_t i, Random& random) {
  std::vector<double> out(static_cast<std::size_t>(shape.columns));
  const double t = random.uniform();
  for (std::size_t j = 0; j < out.size(); ++j) {
    const double u = random.uniform() - 0.5, column = static_cast<double>(j);
    if (shape.name == "line") {
      out[j] = 100 * t * (column + 1);
    } else if (shape.name == "clusters") {
      out[j] = 1e4 * static_cast<double>(i % 7 * (i % 7 + j)) + u;
    } else if (shape.name == "copies") {
      out[j] = i % 2 == 0 ? 0.25 : u;
    } else if (shape.name == "colours") {
      out[j] = std::floor(8 * (u + 0.5)) * 31;
    } else if (shape.name == "uneven") {
      out[j] = u * std::pow(10, 3 * column) / (t + 0.01);
    } else {
      out[j] = u;
    }
  }
  return out;
}

AnyMatrix rows_of(const Shape& shape, std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  AnyMatrix out(shape.type, count, shape.columns);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<double> row = row_of(shape, i, random);
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      const double x = row[static_cast<std::size_t>(j)];
      if (shape.type == ElementType::f64)
        static_cast<double*>(out.row(i))[j] = x;
      else if (shape.type == ElementType::u8)
        static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(x);
      else
        static_cast<float*>(out.row(i))[j] = static_cast<float>(x);
    }
  }
  return out;
}

class FewColumns : public testing::TestWithParam<Shape> {};

TEST_P(FewColumns, AnswersAsMeasuringEveryPair) {
  const Shape& shape = GetParam();
  const AnyMatrix base = rows_of(shape, 9000, 1), queries = rows_of(shape, 600, 2);
  for (const std::int64_t k : {1, 10, 200}) {
    KnnReport report;
    const KnnOptions options{.metric = shape.metric, .threads = 2};
    KnnOptions direct = options;
    direct.first_pass = FirstPass::direct;
    const Neighbors found = knn(queries.view(), base.view(), k, options, &report);
    const Neighbors wanted = knn(queries.view(), base.view(), k, direct);
    for (std::int64_t q = 0; q < 600; ++q)
      for (std::int64_t j = 0; j < k; ++j) {
        ASSERT_EQ(found.ids.row(q)[j], wanted.ids.row(q)[j]) << "query " << q << ", k " << k;
        ASSERT_EQ(found.distances.row(q)[j], wanted.distances.row(q)[j]) << q;
      }
    if (k == 10) {
      const bool few = shape.columns <= detail::RowTree::few_columns;
      EXPECT_GT(report.scan.leaves, few ? 9000 / 2 / detail::BoxTree::leaf_rows : 1);
      EXPECT_LT(report.scan.hits_per_query, 900);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, FewColumns,
    testing::Values(Shape{"uniform", 1}, Shape{"uniform", 2}, Shape{"uniform", 3, Metric::cosine},
                    Shape{"uniform", 3, Metric::ip},
                    Shape{"uniform", 2, Metric::l2, ElementType::f64}, Shape{"line", 4},
                    Shape{"clusters", 3}, Shape{"line", 5}, Shape{"line", 8}, Shape{"clusters", 9},
                    Shape{"line", 12}, Shape{"clusters", 24},
                    Shape{"clusters", 24, Metric::l2, ElementType::f64}, Shape{"copies", 2},
                    Shape{"uneven", 3}, Shape{"uneven", 2, Metric::ip}),
    [](const auto& p) {
      return p.param.name + "_" + std::to_string(p.param.columns) + "_" +
             std::string(name_of(p.param.metric)) +
             (p.param.type == ElementType::f64 ? "_f64" : "");
    });

// Far clusters of many columns are the leaves of a tree; rows that lie together have none.
TEST(FarClusters, AreTheLeavesOfATree) {
  const std::int64_t rows = 30000;
  const AnyMatrix base = rows_of({"clusters", 20}, rows, 5),
                  queries = rows_of({"clusters", 20}, 300, 6);
  KnnReport report;
  const Neighbors found = knn(queries.view(), base.view(), 10, {}, &report);
  const Neighbors wanted = knn(queries.view(), base.view(), 10, {.first_pass = FirstPass::direct});
  EXPECT_TRUE(std::equal(found.ids.data(), found.ids.data() + 3000, wanted.ids.data()));
  EXPECT_TRUE(same_bits(found.distances.view(), wanted.distances.view()));
  EXPECT_EQ(report.scan.leaves, 7);
  const AnyMatrix near = rows_of({"uniform", 20}, rows, 7);
  knn(queries.view(), near.view(), 10, {}, &report);
  EXPECT_EQ(report.scan.leaves, 0);
}

// An index keeps its tree, which single queries use too.
// Sums of so many columns in another order differ by more than those of few: the box of a row may
// not seem farther away than the row.
TEST(BoxesOfManyColumns, AreNoFartherThanTheirRows) {
  constexpr std::int64_t dim = 49152;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const float x : {1.6281432f, 0.7f, 1.1f, 123.456f, 1e-3f}) {
      Matrix<float> row(1, dim), query(1, dim);
      for (std::int64_t j = 0; j < dim; ++j)
        row.row(0)[j] = -x, query.row(0)[j] = j % 3 ? 0.3f * x : 0;
      const detail::BoxTree boxes(detail::tree_points(row.view(), metric, 1).view(), metric, 1);
      const Matrix<double> point = detail::tree_points(query.view(), metric, 1);
      ExactDistance distance(metric, ElementType::f32);
      distance.set_query(query.view(), 0);
      std::vector<std::int64_t> leaves;
      boxes.within(point.data(), distance.key(row.row(0)), leaves);
      EXPECT_EQ(leaves.size(), 1u) << name_of(metric) << " " << x;
    }
}

TEST(FewColumnsOfAnIndex, KeepItsTree) {
  const Shape shape{"uniform", 2};
  const AnyMatrix base = rows_of(shape, 20000, 3), queries = rows_of(shape, 2000, 4);
  Index index = make_index("Flat", 2);
  index.add(base.view());
  const auto check = [&](const SearchOptions& options, bool by_tree) {
    KnnReport report;
    const Neighbors found = index.search(queries.view(), 5, options, &report);
    SearchOptions direct = options;
    direct.first_pass = FirstPass::direct;
    const Neighbors wanted = index.search(queries.view(), 5, direct);
    ASSERT_TRUE(std::equal(found.ids.data(), found.ids.data() + 10000, wanted.ids.data()));
    ASSERT_TRUE(same_bits(found.distances.view(), wanted.distances.view()));
    EXPECT_EQ(report.scan.leaves > 0, by_tree);
  };
  // It is made once searches have taken as long as making it.
  for (int i = 0; i < 20; ++i) index.search(queries.view(), 5);
  check({}, true);
  const Neighbors one = index.search(queries.view().rows(5, 6), 5),
                  all = index.search(queries.view(), 5);
  for (std::int64_t j = 0; j < 5; ++j) EXPECT_EQ(one.ids.row(0)[j], all.ids.row(5)[j]);
  check({.filter = IdFilter::of_ids(std::vector<Id>{3, 50, 700, 8000, 9000, 10000})}, false);
  // Where few rows are left out the tree serves.
  std::vector<Id> most, some;
  for (Id id = 0; id < 20000; ++id) {
    if (id % 5 != 0) most.push_back(id);
    if (id % 2 != 0) some.push_back(id);
  }
  check({.filter = IdFilter::of_ids(most)}, true);
  check({.filter = IdFilter::of_ids(some)}, false);
  index.remove(std::vector<Id>{1, 2, 3});
  check({}, true);
}

// All rows within a radius, by a tree where it is small; with copies, a filter and removed rows.
TEST(FewColumnsWithinARadius, AreThoseOfMeasuringEveryPair) {
  for (const std::string name : {"uniform", "copies", "clusters"})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      const Shape shape{name, 3};
      const AnyMatrix base = rows_of(shape, 9000, 8), queries = rows_of(shape, 700, 9);
      Index index = make_index("Flat", 3, metric);
      index.add(base.view());
      std::vector<Id> most;
      for (Id id = 0; id < 9000; ++id)
        if (id % 6 != 1) most.push_back(id);
      for (const int way : {0, 1, 2}) {
        SearchOptions options;
        if (way == 1) options.filter = IdFilter::of_ids(most);
        if (way == 2) index.remove(std::vector<Id>{0, 2, 77});
        SearchOptions direct = options;
        direct.first_pass = FirstPass::direct;
        const Neighbors tenth = index.search(queries.view(), 10, direct);
        const double radius = tenth.distances.row(5)[9];
        KnnReport report;
        for (int i = 0; i < 4; ++i) index.range_search(queries.view(), radius, options);
        const RangeNeighbors found = index.range_search(queries.view(), radius, options, &report);
        const RangeNeighbors wanted = index.range_search(queries.view(), radius, direct);
        ASSERT_EQ(found.begin, wanted.begin) << name << ", way " << way;
        ASSERT_EQ(found.ids, wanted.ids);
        ASSERT_EQ(found.distances, wanted.distances);
        if (metric == Metric::l2 && name == "uniform") {
          EXPECT_GT(report.scan.leaves, 0);
        }
      }
    }
}

}  // namespace
}  // namespace knear
