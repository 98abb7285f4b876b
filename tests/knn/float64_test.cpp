// Vectors of f64: measured as they are, though every first pass has coarser codes, at any size down
// to where squares vanish.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using namespace test;

AnyMatrix doubles(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1) {
  Random random(seed);
  return make(ElementType::f64, rows, cols, [&](auto, auto) { return gaussian(random) * scale; });
}

// Rows that are the same vector as floats, in an order that only doubles show.
TEST(Float64, NeighboursThatFloatsCannotTellApart) {
  const auto beside_one = [](std::int64_t rows) {
    return make(ElementType::f64, rows, 40, [=](std::int64_t r, std::int64_t c) {
      return 1 + (c == 3 ? static_cast<double>(r * 7919 % rows) * 0x1p-44 : 0);
    });
  };
  const AnyMatrix base = beside_one(2000),
                  queries = make(ElementType::f64, 3, 40,
                                 [](auto r, auto) { return 1 - 0.25 * static_cast<double>(r); });
  for (const Metric metric : metrics) check_all(queries, base, 10, metric, "beside one");
  const Neighbors found = knn(queries, base, 3, {});
  for (std::int64_t j = 0; j < 3; ++j) EXPECT_EQ(found.ids.row(0)[j] * 7919 % 2000, j);
}

TEST(Float64, TypesMix) {
  const AnyMatrix base = doubles(3000, 50, 1), queries = gaussians(30, 50, 2);
  for (const Metric metric : metrics) {
    check_all(queries, base, 10, metric, "f32 queries");
    check_all(base.view().rows(0, 30), gaussians(3000, 50, 3), 10, metric, "f64 queries");
  }
}

// Squares of the smaller ones vanish in float64 too, and then the reference says so.
TEST(Float64, SizesDownToTheSmallestDoubles) {
  for (const double least : {-320.0, -170.0, -80.0, -40.0}) {
    Random random(5);
    const auto value = [&](std::int64_t r, auto) {
      return gaussian(random) * std::pow(10.0, r % 5 == 0 ? least : least * random.uniform());
    };
    const AnyMatrix base = make(ElementType::f64, 1200, 33, value),
                    queries = make(ElementType::f64, 20, 33, value);
    for (const Metric metric : {Metric::l2, Metric::ip})
      check_all(queries, base, 10, metric, "from 1e" + std::to_string(least));
  }
  for (const double scale : {1e-300, 1e-160, 1e-153, 1e-100, 1e-60, 1e30})
    for (const Metric metric : {Metric::l2, Metric::ip})
      check_all(doubles(20, 24, 6, scale), doubles(1500, 24, 7, scale), 10, metric,
                "all of size " + std::to_string(std::log10(scale)));
}

TEST(Float64, CosineOfShortAndLongRows) {
  Random random(8);
  const auto value = [&](std::int64_t r, auto) {
    return (random.uniform() + 0.5) * std::pow(10.0, static_cast<double>(r % 95) - 60);
  };
  const AnyMatrix base = make(ElementType::f64, 1500, 30, value),
                  queries = make(ElementType::f64, 20, 30, value);
  check_all(queries, base, 10, Metric::cosine, "from 1e-60 to 1e35");
}

TEST(Float64, RangesAndSelfJoins) {
  const AnyMatrix base = doubles(2500, 24, 9);
  const AnyMatrixView queries = base.view().rows(0, 40);
  for (const Metric metric : metrics) {
    const Neighbors all = reference_knn(queries, base, 2500, metric);
    // Between two distances that floats cannot tell apart there is no radius to give; ties count.
    const float radius = all.distances.row(0)[20];
    const RangeNeighbors found = range_search(queries, base, radius, {.metric = metric});
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      std::vector<Id> wanted;
      const auto* x = static_cast<const double*>(queries.row(q));
      for (Id id = 0; id < 2500; ++id) {
        const double d = reference_distance(
            metric, x, static_cast<const double*>(base.view().row(id)), base.cols());
        if (metric == Metric::ip ? d >= radius : d <= radius) wanted.push_back(id);
      }
      std::vector<Id> got(found.ids.begin() + found.begin[static_cast<std::size_t>(q)],
                          found.ids.begin() + found.begin[static_cast<std::size_t>(q) + 1]);
      std::sort(got.begin(), got.end());
      EXPECT_EQ(got, wanted);
    }
    const Neighbors near = self_join(base, 5, {.metric = metric});
    for (std::int64_t q = 0; q < 40; ++q) {
      std::vector<Id> wanted;
      for (std::int64_t j = 0; wanted.size() < 5; ++j)
        if (all.ids.row(q)[j] != q) wanted.push_back(all.ids.row(q)[j]);
      for (std::int64_t j = 0; j < 5; ++j)
        EXPECT_EQ(near.ids.row(q)[j], wanted[static_cast<std::size_t>(j)]);
    }
  }
}

TEST(Float64, WholeNumbersAreScoredAsSuch) {
  Random random(10);
  const AnyMatrix base =
      make(ElementType::f64, 2000, 20, [&](auto, auto) { return double(random.below(256)); });
  KnnReport report;
  const AnyMatrixView queries = base.view().rows(0, 30);
  EXPECT_TRUE(
      same(knn(queries, base, 10, {}, &report), reference_knn(queries, base, 10, Metric::l2)));
  EXPECT_EQ(report.scan.first_pass, "integer");
}

TEST(Float64, WhatNoFloatIsAsLargeAsIsRefused) {
  AnyMatrix base = doubles(100, 4, 11);
  const AnyMatrix queries = doubles(2, 4, 12);
  const auto refuses = [&](double value, Metric metric, const std::string& words) {
    AnyMatrix bad = make(ElementType::f64, 100, 4, [&](std::int64_t r, auto c) {
      return r == 77 ? (c == 2 ? value : 0) : 1;
    });
    try {
      knn(queries, bad, 1, {.metric = metric});
      ADD_FAILURE() << "took " << value;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const double infinity = std::numeric_limits<double>::infinity();
  refuses(infinity, Metric::l2, "base must be finite, but row 77 column 2 is inf");
  refuses(std::nan(""), Metric::ip, "base must be finite, but row 77 column 2 is nan");
  refuses(-3.5e38, Metric::l2, "largest float, but row 77 column 2 is -3.5e+38");
  refuses(1e-70, Metric::cosine, "row 77 is 1e-70");
  set(base, 5, 3.4e38), set(base, 9, 1e-70);
  EXPECT_TRUE(same(knn(queries, base, 3, {}), reference_knn(queries, base, 3, Metric::l2)));
}

}  // namespace
}  // namespace knear
