// l1 and hamming, which no scan by products has: their answers are those of the reference, to the
// bit, in every kind of search; what they lack is refused in one line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/factory/choose_index.hpp"
#include "knear/factory/factory.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/index/index.hpp"
#include "knear/quantize/scalar_quantizer.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/knn/refused.hpp"

namespace knear::test {
namespace {

// Whole numbers below `bound`, so that many are equally far; for floats a fraction more.
AnyMatrix numbers(ElementType type, std::int64_t rows, std::int64_t cols, std::uint64_t bound,
                  std::uint64_t seed) {
  Random random(seed);
  const bool fractions = size_of(type) >= 4;
  return make(type, rows, cols, [&](auto, auto) {
    return static_cast<double>(random.below(bound)) + (fractions ? random.uniform() : 0.0);
  });
}

void expect_all_levels(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, Metric metric) {
  const Neighbors expected = reference_knn(queries, base, k, metric);
  for (const Isa isa : levels()) {
    ForcedIsa forced(isa);
    for (const int threads : {1, 3})
      EXPECT_TRUE(same(knn(queries, base, k, {.metric = metric, .threads = threads}), expected))
          << name_of(metric) << ' ' << name_of(isa) << " n=" << base.rows() << " d=" << base.cols()
          << " q=" << queries.rows() << " k=" << k;
  }
}

TEST(MeasuredMetrics, L1IsTheReference) {
  for (const ElementType type :
       {ElementType::f32, ElementType::u8, ElementType::i8, ElementType::f16, ElementType::f64})
    for (const std::int64_t dim : {1, 15, 16, 33, 100})
      for (const std::int64_t rows : {1, 9, 700})
        for (const std::int64_t k : {std::int64_t{1}, std::int64_t{10}, rows + 2})
          expect_all_levels(numbers(type, 5, dim, 50, 1), numbers(type, rows, dim, 50, 2), k,
                            Metric::l1);
}

TEST(MeasuredMetrics, HammingIsTheReference) {
  for (const std::int64_t bytes : {1, 7, 8, 9, 16, 32, 33, 64, 255, 257})
    for (const std::int64_t rows : {1, 7, 8, 9, 31, 33, 1300})
      for (const std::int64_t queries : {1, 5, 130})
        for (const std::int64_t k : {std::int64_t{1}, std::int64_t{10}, rows + 2}) {
          if (small() && (queries > 5 || k > 10) && rows > 33) continue;
          expect_all_levels(numbers(ElementType::u8, queries, bytes, 256, 1),
                            numbers(ElementType::u8, rows, bytes, 256, 2), k, Metric::hamming);
        }
}

// Every bit differs, of rows as wide as can be; and none.
TEST(MeasuredMetrics, HammingOfTheWidestRows) {
  AnyMatrix base(ElementType::u8, 40, 65536), query(ElementType::u8, 1, 65536);
  std::fill_n(static_cast<std::uint8_t*>(base.row(0)), 40 * 65536, std::uint8_t{0});
  std::fill_n(static_cast<std::uint8_t*>(query.row(0)), 65536, std::uint8_t{255});
  std::fill_n(static_cast<std::uint8_t*>(base.row(17)), 65536, std::uint8_t{255});
  for (const Isa isa : levels()) {
    ForcedIsa forced(isa);
    const Neighbors near = knn(query, base, 3, {.metric = Metric::hamming});
    EXPECT_EQ(std::vector<Id>(near.ids.data(), near.ids.data() + 3), (std::vector<Id>{17, 0, 1}));
    EXPECT_EQ(std::vector<float>(near.distances.data(), near.distances.data() + 3),
              (std::vector<float>{0, 8 * 65536, 8 * 65536}));
  }
}

// Rows that are a part of wider ones are not beside each other in memory.
TEST(MeasuredMetrics, RowsOfAViewAndAFilter) {
  const AnyMatrix wide = numbers(ElementType::u8, 900, 50, 256, 3);
  const AnyMatrixView base(ElementType::u8, wide.view().row(0), 900, 21, 50);
  const AnyMatrix queries = numbers(ElementType::u8, 9, 21, 256, 4);
  std::vector<Id> allowed;
  for (Id id = 0; id < 900; id += 1 + id % 5) allowed.push_back(id);
  for (const Metric metric : {Metric::l1, Metric::hamming}) {
    expect_all_levels(queries, base, 12, metric);
    const Neighbors all = reference_knn(queries, base, 900, metric);
    const Neighbors got =
        knn(queries, base, 12, {.metric = metric, .filter = RowFilter::of_ids(allowed, 900)});
    for (std::int64_t q = 0; q < 9; ++q)
      for (std::int64_t j = 0, place = 0; j < 12; ++j, ++place) {
        while (!std::binary_search(allowed.begin(), allowed.end(), all.ids.row(q)[place])) ++place;
        ASSERT_EQ(got.ids.row(q)[j], all.ids.row(q)[place]) << name_of(metric);
        ASSERT_EQ(got.distances.row(q)[j], all.distances.row(q)[place]);
      }
  }
}

TEST(MeasuredMetrics, WithinARadiusAndAmongThemselves) {
  const AnyMatrix base = numbers(ElementType::u8, 600, 9, 256, 5);
  for (const Metric metric : {Metric::l1, Metric::hamming}) {
    const Neighbors all = reference_knn(base, base, 600, metric);
    for (const double radius : {-1.0, 0.0, 24.0, 31.5, metric == Metric::l1 ? 500.0 : 33.0}) {
      const RangeNeighbors got = range_search(base, base, radius, {.metric = metric, .threads = 2});
      for (std::int64_t q = 0; q < 600; ++q) {
        std::int64_t count = 0;
        while (count < 600 && static_cast<double>(all.distances.row(q)[count]) <= radius) ++count;
        const auto begin = static_cast<std::size_t>(got.begin[static_cast<std::size_t>(q)]);
        ASSERT_EQ(
            got.begin[static_cast<std::size_t>(q) + 1] - got.begin[static_cast<std::size_t>(q)],
            count)
            << name_of(metric) << ' ' << radius;
        for (std::int64_t j = 0; j < count; ++j)
          ASSERT_EQ(got.ids[begin + static_cast<std::size_t>(j)], all.ids.row(q)[j]);
      }
    }
    const Neighbors joined = self_join(base, 7, {.metric = metric});
    for (Id row = 0; row < 600; ++row)
      for (std::int64_t j = 0, place = 0; j < 7; ++j, ++place) {
        if (all.ids.row(row)[place] == row) ++place;
        ASSERT_EQ(joined.ids.row(row)[j], all.ids.row(row)[place]) << name_of(metric);
      }
    const NeighborGraph graph = knn_graph(base, 7, {.metric = metric});
    for (std::int64_t i = 0; i < 600 * 7; ++i)
      ASSERT_EQ(graph.ids().data()[i], joined.ids.data()[i]);
  }
}

// Through adding, removing, a file and shards; whole numbers are not kept as panels of products.
TEST(MeasuredMetrics, AnIndexAnswersAsTheRowsThatItHas) {
  const AnyMatrix rows = numbers(ElementType::u8, 900, 24, 256, 6);
  const AnyMatrix queries = numbers(ElementType::u8, 6, 24, 256, 7);
  for (const Metric metric : {Metric::l1, Metric::hamming}) {
    Index index = make_index("Flat", 24, metric);
    index.add(rows.view().rows(0, 300));
    index.add(rows.view().rows(300, 900));
    const auto expect = [&](const Index& got, Id removed_below) {
      std::vector<Id> left;
      for (Id id = removed_below; id < 900; ++id) left.push_back(id);
      const Neighbors expected =
          knn(queries, rows, 15, {.metric = metric, .filter = RowFilter::of_ids(left, 900)});
      EXPECT_TRUE(same(got.search(queries, 15), expected)) << name_of(metric);
      EXPECT_TRUE(same(got.search(queries, 15, {.method = {.recall = 0.9}}), expected));
    };
    expect(index, 0);
    std::vector<Id> gone;
    for (Id id = 0; id < 400; ++id) gone.push_back(id);
    index.remove(gone);
    index.optimize();
    expect(index, 400);
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("knear-measured-" + std::to_string(getpid()) + ".knear"))
                                 .string();
    index.save(path);
    const Index loaded = Index::load(path);
    EXPECT_EQ(loaded.metric(), metric);
    expect(loaded, 400);
    std::filesystem::remove(path);
  }
}

TEST(MeasuredMetrics, WhatTheyHaveNotIsRefused) {
  const AnyMatrix floats = numbers(ElementType::f32, 300, 16, 50, 8);
  const AnyMatrix bytes = numbers(ElementType::u8, 300, 16, 256, 8);
  const auto refused = [&](const KnnOptions& options, const std::string& words) {
    expect_refused<InvalidArgument>([&] { knn(bytes, bytes, 3, options); }, words);
  };
  refused({.metric = Metric::l1, .first_pass = FirstPass::int8}, "first_pass is int8, but metric");
  refused({.metric = Metric::hamming, .first_pass = FirstPass::prefix}, "first_pass is prefix");
  refused({.metric = Metric::l1, .tuning = {.group = 4}}, "choices are made, but metric is l1");
  refused({.metric = Metric::l1, .method = {.kind = Method::threshold_heap}},
          "method is threshold-heap, but metric is l1");
  refused({.metric = Metric::l1, .method = {.kind = Method::partial_reduce, .recall = 0.9}},
          "method is partial-reduce, but metric is l1");
  refused({.metric = Metric::hamming, .device = "cuda"}, "device is cuda, but metric is hamming");
  expect_refused<InvalidArgument>(
      [&] { knn(floats, floats, 3, {.metric = Metric::hamming}); },
      "metric is hamming, which takes u8, eight bits a byte, but elements of base are f32");
  expect_refused<InvalidArgument>([&] { knn(bytes, floats, 3, {.metric = Metric::hamming}); },
                                  "but elements of base are f32");
  for (const Metric metric : {Metric::l1, Metric::hamming}) {
    for (const std::string factory :
         {"IVF16,Flat", "PQ4", "SQ8", "Graph16", "PCA8,Flat", "SQfp16", "L2norm,Flat", "SQ8,RFlat"})
      expect_refused<InvalidArgument>([&] { make_index(factory, 16, metric); },
                                      "metric is " + std::string(name_of(metric)) +
                                          ", but factory '" + factory +
                                          "' takes l2, ip, cosine alone");
    expect_refused<InvalidArgument>([&] { k_means(floats, 4, {.metric = metric}); },
                                    "but k-means takes l2, ip, cosine alone");
    expect_refused<InvalidArgument>([&] { knn_graph(bytes, 3, {.metric = metric, .recall = 0.9}); },
                                    "a recall below 1");
    EXPECT_EQ(choose_index(10'000'000, 16, {.metric = metric}).factory, "Flat");
  }
  // A search that need not find everything makes no lists, however many rows there are.
  const AnyMatrix many = numbers(ElementType::u8, 40'000, 8, 256, 9);
  for (const Metric metric : {Metric::l1, Metric::hamming}) {
    Index flat = make_index("Flat", 8, metric);
    flat.add(many);
    const AnyMatrixView asked = many.view().rows(0, 300);
    const Neighbors all = flat.search(asked, 5);
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(same(flat.search(asked, 5, {.method = {.recall = 0.8}}), all));
    expect_refused<InvalidArgument>([&] { flat.tune(10); }, "but tuning, by inverted lists, takes");
  }
  Index index = make_index("Flat", 16, Metric::hamming);
  expect_refused<InvalidArgument>([&] { index.add(floats.view()); }, "which takes u8");
}

}  // namespace
}  // namespace knear::test
