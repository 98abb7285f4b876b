// tests/index/awkward_data_test.cpp -- indexes of data that is not well shaped: rows far from zero,
// very small or very large numbers, one row far from all others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

Matrix<float> scaled(const Matrix<float>& from, double factor) {
  Matrix<float> out(from.rows(), from.cols());
  for (std::int64_t i = 0; i < from.rows() * from.cols(); ++i)
    out.data()[i] = static_cast<float>(from.data()[i] * factor);
  return out;
}

// The share of the wanted ids of each query that were found.
double recall_of(const Neighbors& got, const Neighbors& want) {
  std::int64_t same = 0;
  for (std::int64_t q = 0; q < want.ids.rows(); ++q)
    for (std::int64_t j = 0; j < want.ids.cols(); ++j)
      same += std::count(got.ids.row(q), got.ids.row(q) + got.ids.cols(), want.ids.row(q)[j]);
  return static_cast<double>(same) / static_cast<double>(want.ids.rows() * want.ids.cols());
}

Index filled(const std::string& factory, Metric metric, const Matrix<float>& base) {
  Index index = make_index(factory, base.cols(), metric);
  index.train(base.view());
  index.add(base.view());
  return index;
}

// The mean was subtracted from queries, so that products and angles were those of other vectors:
// with all components kept the recall was 0.17, and a query had other neighbours than half of it.
TEST(PrincipalComponentsByProducts, KeepNeighboursDistancesAndRadii) {
  const Matrix<float> base = clustered(3000, 16, 1, {.offset = 1}),
                      queries = clustered(40, 16, 2, {.offset = 1}),
                      small = scaled(queries, 0x1p-30);
  for (const Metric metric : {Metric::ip, Metric::cosine})
    for (const char* factory : {"PCA16,Flat", "PCAR16,Flat", "PCA16,IVF16,Flat", "PCA16,Graph16",
                                "PCA16,IVF16,SQ8", "PCA16,OPQ4,PQ4x4,RFlat", "PCAW16,Flat",
                                "PCA6,Flat", "PCA16,L2norm,Flat", "PCAW6,IVF16,SQ8"}) {
      SCOPED_TRACE(std::string(factory) + " " + std::string(name_of(metric)));
      const Index index = filled(factory, metric, base);
      SearchOptions options;
      if (index.lists() > 0) options.method.probes = 16;
      if (std::string(factory).find("Graph") != std::string::npos) options.method.ef = 3000;
      const Neighbors got = index.search(queries.view(), 10, options),
                      same = index.search(small.view(), 10, options),
                      want = reference_knn(queries.view(), base.view(), 10, metric);
      const bool unit = std::string(factory).find("L2norm") != std::string::npos;
      const double factor = metric == Metric::ip && !unit ? 0x1p-30 : 1;
      for (std::int64_t i = 0; i < 40 * 10; ++i) {
        ASSERT_EQ(got.ids.data()[i], same.ids.data()[i]) << i;
        ASSERT_FLOAT_EQ(got.distances.data()[i] * static_cast<float>(factor),
                        same.distances.data()[i]);
      }
      const std::string name = factory;
      if (name.find(",Flat") == name.npos || name.find("16,") == name.npos ||
          name.find("PCAW") == 0 || name.find("L2norm") != name.npos)
        continue;
      EXPECT_GT(recall_of(got, want), 0.99);
      for (std::int64_t i = 0; i < 40 * 10; ++i)
        ASSERT_NEAR(got.distances.data()[i], want.distances.data()[i], 2e-5);
      // A radius halfway between two distances has the same rows within it.
      const double radius = (want.distances.row(7)[5] + want.distances.row(7)[6]) / 2.0;
      const RangeNeighbors near = index.range_search(queries.view(), radius, options),
                           wanted =
                               filled("Flat", metric, base).range_search(queries.view(), radius);
      EXPECT_EQ(near.ids.size(), wanted.ids.size());
    }
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

// Codes are measured in float32: of vectors of 1e-20 and less, or by products of 1e19 and more, all
// distances were 0 or infinite, so that ids 0, 1, 2 were found without a word.
TEST(CodesOfExtremeNumbers, FindWhatTheyFindAtScaleOneOrAreRefused) {
  const Matrix<float> base = clustered(1500, 8, 1), queries = clustered(30, 8, 2);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Neighbors want = reference_knn(queries.view(), base.view(), 10, metric);
    for (const char* factory : {"SQfp16", "SQbf16", "IVF8,SQfp16", "PQ4x4", "SQ8", "SQ4",
                                "IVF8,SQ8", "IVF8,PQ4x4", "PQ4x4,RFlat", "PQ4x4,Refine(SQfp16)"}) {
      SCOPED_TRACE(std::string(factory) + " " + std::string(name_of(metric)));
      const auto recall_at = [&](double scale) {
        const Matrix<float> rows = scaled(base, scale), some = scaled(queries, scale);
        const Index index = filled(factory, metric, rows);
        SearchOptions options;
        if (index.lists() > 0) options.method.probes = 8;
        return recall_of(index.search(some.view(), 10, options), want);
      };
      const double usual = recall_at(1);
      EXPECT_GT(usual, 0.3);
      int refused = 0;
      for (const double scale : {0x1p-120, 0x1p-66, 0x1p-10, 0x1p62, 0x1p66, 0x1p120}) {
        double recall = usual;
        const std::string said = message([&] { recall = recall_at(scale); });
        // Halves of less than 2^-14 have fewer bits, and products are compared by these.
        EXPECT_GT(recall, usual - 0.05) << scale;
        if (said == "no error") continue;
        ++refused;
        EXPECT_TRUE(said.starts_with("vectors ")) << said;
      }
      EXPECT_EQ(refused == 0, std::string(factory) == "SQbf16" ||
                                  (traits_of(metric).unit_rows &&
                                   std::string(factory).find("fp16") == std::string::npos));
    }
  }
  // Small rows among others, and queries that are longer or shorter than rows.
  Index halves = make_index("SQfp16", 8);
  halves.add(base.view());
  halves.add(scaled(base, 0x1p-60).view());
  EXPECT_EQ(halves.size(), 3000);
  const Index codes = filled("SQ8", Metric::ip, base);
  const Neighbors usual = codes.search(queries.view(), 10);
  for (const double scale : {0x1p-100, 0x1p100}) {
    const Neighbors same = codes.search(scaled(queries, scale).view(), 10);
    for (std::int64_t i = 0; i < 300; ++i) ASSERT_EQ(same.ids.data()[i], usual.ids.data()[i]);
  }
  const Matrix<float> longer = scaled(queries, 0x1p127), shorter = scaled(queries, 0x1p-130);
  const Index long_codes = filled("SQ8", Metric::ip, scaled(base, 0x1p20));
  const auto said = [](const Index& index, const Matrix<float>& some) {
    const std::string once = message([&] { index.search(some.view(), 10); });
    EXPECT_EQ(once, message([&] { index.range_search(some.view(), 0); }));
    return once;
  };
  EXPECT_NE(said(codes, shorter).find("vanish in float32: multiply it by"), std::string::npos);
  EXPECT_NE(said(long_codes, longer).find("are beyond float32: multiply it by"), std::string::npos);
}

// Lists by products refused such rows in training: "initial must have no zero rows for ip".
// Squared distances to centroids beyond float32 are kept beside the lists, and saved with them.
TEST(ListsOfExtremeNumbers, LieInAFile) {
  const std::string path = testing::TempDir() + "/extreme_lists_" + std::to_string(getpid());
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    const Matrix<float> base = scaled(clustered(8000, 8, 1, {}), 1e25);
    Index index = filled("IVF20,Flat", metric, base);
    index.tune(10);
    const SearchOptions options{.method = {.probes = 4}};
    const Neighbors before = index.search(base.view().rows(0, 50), 10, options);
    index.save(path);
    expect_equal(Index::load(path).search(base.view().rows(0, 50), 10, options), before);
  }
  std::filesystem::remove(path);
}

TEST(ZeroRows, GoToAListLikeOthers) {
  Matrix<float> base = clustered(6000, 8, 1);
  for (std::int64_t i = 0; i < 6000; i += 3) std::fill_n(base.row(i), 8, 0.0f);
  const Matrix<float> queries = clustered(30, 8, 2);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const char* factory : {"IVF16,Flat", "IVF16,SQ8"}) {
      const Index index = filled(factory, metric, base);
      EXPECT_EQ(index.size(), 6000);
      const Neighbors got = index.search(queries.view(), 10, {.method = {.probes = 16}});
      EXPECT_GT(recall_of(got, reference_knn(queries.view(), base.view(), 10, metric)), 0.9);
    }
}

// SQ8 found 3 % where one row was far, as one unit of a column was larger than the others' range.
TEST(OneFarRow, LeavesCodesTheirRecall) {
  Matrix<float> base = clustered(5000, 16, 1);
  std::fill_n(base.row(77), 16, 1000.0f);
  const Matrix<float> queries = clustered(40, 16, 2);
  for (const char* factory : {"SQ8", "IVF16,SQ8", "SQ4", "PQ8x4"}) {
    SearchOptions options;
    if (std::string(factory).starts_with("IVF")) options.method.probes = 16;
    const Neighbors want = reference_knn(queries.view(), base.view(), 10, Metric::l2);
    const double with_far = recall_of(
                     filled(factory, Metric::l2, base).search(queries.view(), 10, options), want),
                 usual = recall_of(filled(factory, Metric::l2, clustered(5000, 16, 1))
                                       .search(queries.view(), 10, options),
                                   want);
    EXPECT_GT(with_far, usual - 0.05) << factory;
    EXPECT_GT(usual, 0.25) << factory;
  }
}

// What few components hold of products and angles counts from zero too: rows that lie far from it
// differ little in angle.
TEST(PrincipalComponentsByProducts, OfFewComponentsHoldTheMean) {
  const Matrix<float> base = clustered(3000, 24, 1, {.spread = 0.3, .offset = 2}),
                      queries = clustered(40, 24, 2, {.spread = 0.3, .offset = 2});
  for (const Metric metric : {Metric::ip, Metric::cosine}) {
    const Index index = filled("PCA12,Flat", metric, base);
    const Neighbors got = index.search(queries.view(), 10),
                    want = reference_knn(queries.view(), base.view(), 10, metric);
    for (std::int64_t q = 0; q < 40; ++q)
      ASSERT_NEAR(got.distances.row(q)[0], want.distances.row(q)[0],
                  metric == Metric::ip ? 0.01 * std::abs(want.distances.row(q)[0]) : 0.01);
  }
}

}  // namespace
}  // namespace knear
