// The methods beside the exact scan: what threshold-heap reports, and what partial-reduce promises,
// certifies and repairs, for every order of the base. knn_test, nasty_data_test and fuzz_test
// check, with the exact search itself, that both are exact on awkward data at every level where
// they say so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/knn.hpp"
#include "knear/select/bins.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using test::gaussian;

// Rows around 20 centres, one cluster after the other; queries around the same centres. whole:
// 8-bit whole numbers.
Matrix<float> clustered(std::int64_t rows, std::int64_t dim, bool whole, std::uint64_t seed) {
  Random centres(99), random(seed);
  std::vector<float> centre(static_cast<std::size_t>(20 * dim));
  for (float& c : centre) c = static_cast<float>(gaussian(centres));
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j) {
      const double x =
          centre[static_cast<std::size_t>(i * 20 / rows * dim + j)] + 0.7 * gaussian(random);
      out.row(i)[j] =
          static_cast<float>(whole ? std::clamp(std::round(128 + 30 * x), 0.0, 255.0) : x);
    }
  return out;
}

Matrix<float> reordered(const Matrix<float>& rows, const std::vector<std::int64_t>& order) {
  Matrix<float> out(rows.rows(), rows.cols());
  for (std::int64_t i = 0; i < rows.rows(); ++i)
    std::copy_n(rows.row(order[static_cast<std::size_t>(i)]), rows.cols(), out.row(i));
  return out;
}

// Orders that would break bins of consecutive rows, or of rows at a fixed stride.
std::vector<Matrix<float>> orders_of(const Matrix<float>& sorted_by_class,
                                     MatrixView<float> query) {
  const std::int64_t n = sorted_by_class.rows();
  std::vector<Matrix<float>> out;
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  out.push_back(reordered(sorted_by_class, order));
  Random random(5);
  std::vector<std::int64_t> shuffled = order;
  for (std::size_t i = shuffled.size(); i > 1; --i)
    std::swap(shuffled[i - 1], shuffled[random.below(i)]);
  out.push_back(reordered(sorted_by_class, shuffled));
  const Neighbors near = knn(query, sorted_by_class.view(), n);
  std::vector<std::int64_t> by_distance(near.ids.row(0), near.ids.row(0) + n);
  out.push_back(reordered(sorted_by_class, by_distance));
  for (std::int64_t stride : {64, 100}) {
    std::vector<std::int64_t> strided(order.size());
    std::int64_t next = 0;
    for (std::int64_t first = 0; first < stride; ++first)
      for (std::int64_t place = first; place < n; place += stride)
        strided[static_cast<std::size_t>(place)] = by_distance[static_cast<std::size_t>(next++)];
    out.push_back(reordered(sorted_by_class, strided));
  }
  return out;
}

// The share of the k nearest that was found, by distance: ties with the k-th count.
double recall_of(const Neighbors& got, const Neighbors& exact) {
  const std::int64_t k = exact.ids.cols();
  double found = 0;
  for (std::int64_t q = 0; q < exact.ids.rows(); ++q)
    for (std::int64_t j = 0; j < k; ++j)
      found +=
          got.ids.row(q)[j] != no_id && got.distances.row(q)[j] <= exact.distances.row(q)[k - 1];
  return found / static_cast<double>(k * exact.ids.rows());
}

bool same_row(const Neighbors& a, const Neighbors& b, std::int64_t q) {
  const auto k = static_cast<std::size_t>(a.ids.cols());
  return std::memcmp(a.ids.row(q), b.ids.row(q), k * sizeof(Id)) == 0 &&
         std::memcmp(a.distances.row(q), b.distances.row(q), k * sizeof(float)) == 0;
}
bool same(const Neighbors& a, const Neighbors& b) {
  for (std::int64_t q = 0; q < a.ids.rows(); ++q)
    if (!same_row(a, b, q)) return false;
  return true;
}

KnnOptions reducing(double recall, FirstPass pass = FirstPass::automatic) {
  return {.first_pass = pass, .method = {.kind = Method::partial_reduce, .recall = recall}};
}

class PartialReduceKinds : public testing::TestWithParam<bool> {};

TEST_P(PartialReduceKinds, KeepsItsPromiseForEveryOrderAndCertifiesNothingWrong) {
  const bool whole = GetParam();
  const Matrix<float> base = clustered(6000, 24, whole, 1), queries = clustered(400, 24, whole, 2);
  std::int64_t uncertified = 0;
  for (const Matrix<float>& order : orders_of(base, queries.view().rows(7, 8)))
    for (std::int64_t k : {10, 100}) {
      const Neighbors exact = knn(queries.view(), order.view(), k);
      for (double recall : {0.1, 0.3, 0.9, 0.95, 0.99, 0.999, 1.0}) {
        SCOPED_TRACE(testing::Message() << "k " << k << " recall " << recall);
        KnnReport report;
        // Narrow intervals where rows are floats: rows that are dropped are certain to be farther.
        const FirstPass pass = !whole && recall < 0.9 ? FirstPass::fp32 : FirstPass::automatic;
        const Neighbors got = knn(queries.view(), order.view(), k, reducing(recall, pass), &report);
        EXPECT_EQ(report.method, "partial-reduce");
        EXPECT_EQ(report.promise.promised_recall, recall);
        EXPECT_GE(report.promise.expected_recall, recall);
        EXPECT_GE(report.partial_reduce.bins, 60);
        const double measured = recall_of(got, exact);
        EXPECT_GE(measured, recall);
        // Queries that are not listed as uncertain are exact.
        std::vector<char> open(static_cast<std::size_t>(queries.rows()));
        for (const std::int64_t q : report.promise.uncertified)
          open[static_cast<std::size_t>(q)] = 1;
        for (std::int64_t q = 0; q < queries.rows(); ++q)
          EXPECT_TRUE(open[static_cast<std::size_t>(q)] || same_row(got, exact, q)) << q;
        EXPECT_EQ(report.promise.certified_queries + std::ssize(report.promise.uncertified),
                  queries.rows());
        uncertified += std::ssize(report.promise.uncertified);
        if (recall == 1) {
          EXPECT_TRUE(same(got, exact));
          EXPECT_EQ(report.promise.recall_argument, "exact");
        }
      }
    }
  EXPECT_GT(uncertified, 0);  // else nothing was tested
}

INSTANTIATE_TEST_SUITE_P(Knn, PartialReduceKinds, testing::Values(false, true),
                         [](const auto& which) { return which.param ? "whole" : "floats"; });

// Bins lose much here: all of the k are wanted from very few of them.
TEST(PartialReduce, WhatTheLawOfABinSaysIsWhatHappens) {
  const Matrix<float> queries = clustered(800, 16, true, 4);
  // In random order: consecutive neighbours fall into different bins.
  const Matrix<float> base =
      std::move(orders_of(clustered(6000, 16, true, 3), queries.view().rows(0, 1))[1]);
  const std::int64_t k = 200;
  const Neighbors exact = knn(queries.view(), base.view(), k);
  KnnReport report;
  const Neighbors got = knn(queries.view(), base.view(), k, reducing(0.05), &report);
  const double expected =
      expected_recall(k, 6000,
                      {.bins = report.partial_reduce.bins,
                       .kept = static_cast<int>(report.partial_reduce.kept_per_bin)});
  EXPECT_LT(report.promise.expected_recall, 0.99995);
  EXPECT_NEAR(recall_of(got, exact), expected, 0.6 * (1 - expected));
  EXPECT_GE(expected,
            report.promise.expected_recall);  // placed without replacement: a little better
}

TEST(PartialReduce, TheSameBitsForThreadsBatchesLevelsAndPasses) {
  const Matrix<float> base = clustered(5000, 20, false, 5), queries = clustered(60, 20, false, 6);
  const Neighbors wanted = knn(queries.view(), base.view(), 50, reducing(0.2));
  for (Isa isa : available_isas()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    for (FirstPass pass :
         {FirstPass::automatic, FirstPass::int8, FirstPass::int16, FirstPass::fp32})
      for (int threads : {1, 3}) {
        KnnOptions options = reducing(0.2, pass);
        options.threads = threads;
        EXPECT_TRUE(same(knn(queries.view(), base.view(), 50, options), wanted))
            << name_of(isa) << ' ' << name_of(pass) << ' ' << threads;
      }
    for (std::int64_t q = 0; q < 3; ++q) {
      const Neighbors one = knn(queries.view().rows(q, q + 1), base.view(), 50, reducing(0.2));
      EXPECT_EQ(std::memcmp(one.ids.row(0), wanted.ids.row(q), 50 * sizeof(Id)), 0);
    }
    unsetenv("KNEAR_ISA");
  }
}

void copies_filters_and_metrics(bool whole) {
  Matrix<float> base = clustered(3000, 12, whole, 7);
  Random random(8);
  for (int i = 0; i < 1500; ++i)
    std::copy_n(base.row(static_cast<std::int64_t>(random.below(40))), 12,
                base.row(static_cast<std::int64_t>(random.below(3000))));
  const Matrix<float> queries = clustered(100, 12, whole, 9);
  std::vector<Id> some, few;
  for (Id row = 0; row < 3000; ++row) {
    if (row % 3 != 0) some.push_back(row);
    if (row % 5 == 0) few.push_back(row);
  }
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const std::vector<Id>* allowed : {(std::vector<Id>*)nullptr, &some, &few})
      for (double recall : {0.2, 1.0}) {
        KnnOptions options = reducing(recall);
        options.metric = metric;
        if (allowed) options.filter = RowFilter::of_ids(*allowed, 3000);
        KnnOptions plain = options;
        plain.method = {};
        KnnReport report;
        const Neighbors exact = knn(queries.view(), base.view(), 40, plain);
        const Neighbors got = knn(queries.view(), base.view(), 40, options, &report);
        std::vector<char> open(100);
        for (const std::int64_t q : report.promise.uncertified)
          open[static_cast<std::size_t>(q)] = 1;
        for (std::int64_t q = 0; q < 100; ++q)
          EXPECT_TRUE(open[static_cast<std::size_t>(q)] || same_row(got, exact, q)) << q;
      }
}

TEST(PartialReduce, CopiesFiltersAndMetrics) { copies_filters_and_metrics(false); }
TEST(PartialReduce, CopiesFiltersAndMetricsOfWholeNumbers) { copies_filters_and_metrics(true); }

TEST(PartialReduce, CandidatesAndShards) {
  const Matrix<float> base = clustered(6000, 16, true, 10), queries = clustered(50, 16, true, 11);
  const Neighbors exact = knn(queries.view(), base.view(), 10);
  KnnOptions options = reducing(0.9);
  options.method.partial_reduce.aggregate = false;
  KnnReport report;
  const Neighbors all = knn(queries.view(), base.view(), 10, options, &report);
  ASSERT_EQ(all.ids.cols(), report.partial_reduce.bins * report.partial_reduce.kept_per_bin);
  EXPECT_EQ(report.promise.certified_queries, 0);
  // Each bin is nearest first; the best of all of them are the aggregated answer.
  options.method.partial_reduce.aggregate = true;
  const Neighbors got = knn(queries.view(), base.view(), 10, options);
  for (std::int64_t q = 0; q < 50; ++q) {
    std::vector<std::pair<float, Id>> pairs;
    for (std::int64_t j = 0; j < all.ids.cols(); ++j) {
      if (j % report.partial_reduce.kept_per_bin != 0 && all.ids.row(q)[j] != no_id) {
        EXPECT_LE(all.distances.row(q)[j - 1], all.distances.row(q)[j]);
      }
      if (all.ids.row(q)[j] != no_id)
        pairs.emplace_back(all.distances.row(q)[j], all.ids.row(q)[j]);
    }
    std::sort(pairs.begin(), pairs.end());
    for (std::int64_t j = 0; j < 10; ++j) {
      EXPECT_EQ(pairs[static_cast<std::size_t>(j)].second, got.ids.row(q)[j]);
    }
  }
  // A shard of a base that was split at random has fewer of the k, and keeps fewer.
  options.method.partial_reduce.logical_rows = 600000;
  KnnReport shard;
  knn(queries.view(), base.view(), 10, options, &shard);
  EXPECT_LT(shard.partial_reduce.kept_per_bin, report.partial_reduce.kept_per_bin);
  // All k may be in one shard, by default: here each of four shards in the order of distance.
  const Neighbors near = knn(queries.view().rows(0, 1), base.view(), 6000);
  const Matrix<float> sorted =
      reordered(base, std::vector<std::int64_t>(near.ids.row(0), near.ids.row(0) + 6000));
  const Neighbors truth = knn(queries.view(), sorted.view(), 10);
  std::vector<std::vector<std::pair<float, Id>>> merged(50);
  for (std::int64_t part = 0; part < 4; ++part) {
    const Neighbors found =
        knn(queries.view(), sorted.view().rows(part * 1500, part * 1500 + 1500), 10, reducing(0.9));
    for (std::int64_t q = 0; q < 50; ++q)
      for (std::int64_t j = 0; j < 10; ++j)
        merged[static_cast<std::size_t>(q)].emplace_back(found.distances.row(q)[j],
                                                         found.ids.row(q)[j] + part * 1500);
  }
  Neighbors together{Matrix<Id>(50, 10), Matrix<float>(50, 10)};
  for (std::int64_t q = 0; q < 50; ++q) {
    auto& list = merged[static_cast<std::size_t>(q)];
    std::sort(list.begin(), list.end());
    for (std::int64_t j = 0; j < 10; ++j)
      together.distances.row(q)[j] = list[static_cast<std::size_t>(j)].first,
      together.ids.row(q)[j] = list[static_cast<std::size_t>(j)].second;
  }
  EXPECT_GE(recall_of(together, truth), 0.9);
}

// Copies of a row are rows like others: each is placed, kept and returned by itself.
TEST(PartialReduce, CandidatesAmongCopies) {
  const Matrix<float> few = clustered(500, 12, true, 30), queries = clustered(40, 12, true, 31);
  Matrix<float> base(5000, 12);
  for (std::int64_t i = 0; i < 5000; ++i) std::copy_n(few.row(i % 500), 12, base.row(i));
  const Neighbors exact = knn(queries.view(), base.view(), 20);
  for (FirstPass pass : {FirstPass::integer, FirstPass::int8, FirstPass::fp32}) {
    KnnOptions options = reducing(0.95, pass);
    options.method.partial_reduce.aggregate = false;
    const Neighbors all = knn(queries.view(), base.view(), 20, options);
    for (std::int64_t q = 0; q < 40; ++q) {
      const std::vector<Id> ids(all.ids.row(q), all.ids.row(q) + all.ids.cols());
      for (std::int64_t j = 0; j < 20; ++j)
        EXPECT_NE(std::find(ids.begin(), ids.end(), exact.ids.row(q)[j]), ids.end())
            << name_of(pass) << ' ' << q;
    }
  }
  EXPECT_TRUE(same(knn(queries.view(), base.view(), 20, reducing(0.4, FirstPass::integer)),
                   knn(queries.view(), base.view(), 20, reducing(0.4, FirstPass::int8))));
}

// A filter thins out all shards of a base alike.
TEST(PartialReduce, ShardsDrawnAtRandomAndAFilter) {
  const std::int64_t n = 16000, shards = 8, part = n / shards, k = 150;
  const Matrix<float> queries = clustered(30, 12, false, 32);
  const Matrix<float> base =
      std::move(orders_of(clustered(n, 12, false, 33), queries.view().rows(0, 1))[1]);
  std::vector<Id> allowed;
  for (Id row = 0; row < n; row += 10) allowed.push_back(row);
  const Neighbors exact =
      knn(queries.view(), base.view(), k, {.filter = RowFilter::of_ids(allowed, n)});
  std::vector<std::vector<std::pair<float, Id>>> merged(30);
  for (std::int64_t s = 0; s < shards; ++s) {
    std::vector<Id> here;
    for (const Id row : allowed)
      if (row >= s * part && row < (s + 1) * part) here.push_back(row - s * part);
    KnnOptions options = reducing(0.99);
    options.method.partial_reduce.logical_rows = n, options.filter = RowFilter::of_ids(here, part);
    const Neighbors found =
        knn(queries.view(), base.view().rows(s * part, (s + 1) * part), k, options);
    for (std::int64_t q = 0; q < 30; ++q)
      for (std::int64_t j = 0; j < k; ++j)
        if (found.ids.row(q)[j] != no_id)
          merged[static_cast<std::size_t>(q)].emplace_back(found.distances.row(q)[j], 0);
  }
  double found = 0;
  for (std::int64_t q = 0; q < 30; ++q)
    for (const auto& [distance, id] : merged[static_cast<std::size_t>(q)])
      found += distance <= exact.distances.row(q)[k - 1];
  EXPECT_GE(found / static_cast<double>(30 * k), 0.99);
}

TEST(Methods, AnIndexInSegmentsWithRowsTakenAway) {
  const Matrix<float> base = clustered(4000, 16, false, 12), queries = clustered(80, 16, false, 13);
  Index index = make_index("Flat", 16);
  for (std::int64_t begin = 0; begin < 4000; begin += 1000)
    index.add(base.view().rows(begin, begin + 1000));
  std::vector<Id> gone;
  for (Id id = 3; id < 4000; id += 7) gone.push_back(id);
  index.remove(gone);
  const Neighbors exact = index.search(queries.view(), 20);
  for (Method method : {Method::threshold_heap, Method::partial_reduce}) {
    KnnReport report;
    EXPECT_TRUE(
        same(index.search(queries.view(), 20, {.method = {.kind = method}}, &report), exact));
    EXPECT_EQ(report.method, name_of(method));
  }
  KnnReport report;
  const Neighbors got = index.search(
      queries.view(), 20, {.method = {.kind = Method::partial_reduce, .recall = 0.5}}, &report);
  EXPECT_GE(recall_of(got, exact), 0.5);
}

TEST(ThresholdHeap, ReportsHowWellTheSamplePrunes) {
  const Matrix<float> base = clustered(6000, 24, false, 14),
                      queries = clustered(200, 24, false, 15);
  const std::int64_t k = 16;
  const Neighbors exact = knn(queries.view(), base.view(), k);
  double last_ratio = 0, last_threshold = 0;
  for (std::int64_t samples : {16, 128, 1024, 6000}) {
    KnnReport report;
    const KnnOptions options{.method = {.kind = Method::threshold_heap,
                                        .threshold_heap = {.samples = samples, .query_batch = 8}}};
    EXPECT_TRUE(same(knn(queries.view(), base.view(), k, options, &report), exact));
    EXPECT_EQ(report.threshold_heap.samples, samples);
    if (samples == 6000) {  // the sample is the base, and thresholds would be the answer
      EXPECT_EQ(report.threshold_heap.compression_ratio, 1);
      continue;
    }
    EXPECT_GT(report.threshold_heap.compression_ratio, last_ratio);
    EXPECT_GT(report.threshold_heap.threshold_ratio, last_threshold);
    EXPECT_LE(report.threshold_heap.threshold_ratio, 1);
    last_ratio = report.threshold_heap.compression_ratio,
    last_threshold = report.threshold_heap.threshold_ratio;
  }
  KnnReport usual;
  knn(queries.view(), base.view(), k, {.method = {.kind = Method::threshold_heap}}, &usual);
  EXPECT_EQ(usual.threshold_heap.samples, 8 * k);
  // The sample has nothing of a row that is not allowed, and for products there is no ratio.
  KnnReport report;
  knn(queries.view(), base.view(), k,
      {.metric = Metric::ip, .method = {.kind = Method::threshold_heap}}, &report);
  EXPECT_EQ(report.threshold_heap.threshold_ratio, 0);
}

// Values equal to the threshold are kept: here every row's.
TEST(ThresholdHeap, EqualsAreKept) {
  Matrix<float> base(3000, 8), queries(5, 8);
  std::fill_n(base.data(), 3000 * 8, 2.0f);
  for (std::int64_t i = 0; i < 5 * 8; ++i) queries.data()[i] = static_cast<float>(i % 7);
  for (FirstPass pass : {FirstPass::int8, FirstPass::integer, FirstPass::direct}) {
    const KnnOptions options{.first_pass = pass, .method = {.kind = Method::threshold_heap}};
    const Neighbors got = knn(queries.view(), base.view(), 30, options);
    for (std::int64_t q = 0; q < 5; ++q)
      for (std::int64_t j = 0; j < 30; ++j) EXPECT_EQ(got.ids.row(q)[j], j) << name_of(pass);
  }
}

// Every row has the same distance: none is above any threshold, and memory is bounded nevertheless.
TEST(ThresholdHeap, TiesTakeLittleMemory) {
  const std::int64_t n = 400000;
  AnyMatrix base(ElementType::u8, n, 8), queries(ElementType::u8, 12, 8);
  for (std::int64_t i = 0; i < n; ++i) static_cast<std::uint8_t*>(base.row(i))[i % 8] = 1;
  for (std::int64_t batch : {0, 1, 1 << 30}) {
    const KnnOptions options{
        .threads = 2,
        .first_pass = FirstPass::integer,
        .method = {.kind = Method::threshold_heap, .threshold_heap = {.query_batch = batch}}};
    KnnReport report;
    const Neighbors got = knn(queries.view(), base.view(), 10, options, &report);
    for (std::int64_t q = 0; q < 12; ++q)
      for (std::int64_t j = 0; j < 10; ++j) EXPECT_EQ(got.ids.row(q)[j], j);
    EXPECT_LT(report.memory_bytes, std::int64_t{150} << 20);
  }
}

TEST(ThresholdHeap, KeepsToItsMemory) {
  const Matrix<float> base = clustered(20000, 16, false, 17),
                      queries = clustered(300, 16, false, 18);
  const Neighbors exact = knn(queries.view(), base.view(), 100);
  for (std::int64_t megabytes : {20, 28, 64}) {
    KnnOptions options{
        .threads = 2, .memory = megabytes << 20, .method = {.kind = Method::threshold_heap}};
    KnnReport report;
    EXPECT_TRUE(same(knn(queries.view(), base.view(), 100, options, &report), exact));
    EXPECT_LE(report.memory_bytes, options.memory);
  }
  KnnOptions options{.threads = 2, .memory = 1 << 20, .method = {.kind = Method::threshold_heap}};
  EXPECT_THROW(knn(queries.view(), base.view(), 100, options), MemoryBudgetError);
}

TEST(Methods, WhatDoesNotGoTogetherIsRefused) {
  const Matrix<float> x = clustered(500, 16, false, 19);
  const auto message = [&](const KnnOptions& options, int what = 0) {
    try {
      if (what == 0) knn(x.view(), x.view(), 5, options);
      if (what == 1) self_join(x.view(), 5, options);
      if (what == 2) range_search(x.view(), x.view(), 1, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto with = [](MethodOptions method) { return KnnOptions{.method = method}; };
  EXPECT_EQ(message(with({.recall = 0})), "recall must be in (0, 1], but is 0");
  EXPECT_EQ(message(with({.recall = NAN})), "recall must be in (0, 1], but is nan");
  EXPECT_EQ(message(with({.kind = Method::exact, .recall = 0.9})),
            "method is exact, which finds everything, but recall is 0.9");
  EXPECT_EQ(message(with({.kind = Method::threshold_heap, .threshold_heap = {.samples = 4}})),
            "samples must be at least k = 5, but are 4");
  EXPECT_EQ(message(with({.threshold_heap = {.samples = 40}})),
            "samples is 40, but method is auto, not threshold-heap");
  EXPECT_EQ(message(with({.kind = Method::exact, .partial_reduce = {.logical_rows = 4}})),
            "logical_rows is 4, but method is exact, not partial-reduce");
  EXPECT_EQ(message(with({.partial_reduce = {.aggregate = false}})),
            "aggregate is off, but method is auto, not partial-reduce");
  EXPECT_EQ(message(with({.kind = Method::partial_reduce}), 1),
            "method is partial-reduce, but a self-join has only auto and exact");
  EXPECT_EQ(message(with({.kind = Method::threshold_heap}), 2),
            "method is threshold-heap, but a range search has only auto and exact");
  KnnOptions options = reducing(0.9, FirstPass::direct);
  EXPECT_EQ(message(options),
            "first_pass is direct, but method is partial-reduce, which has no bins then");
  options = reducing(0.9, FirstPass::prefix);
  EXPECT_EQ(message(options),
            "first_pass is prefix, but method is partial-reduce, which has no such pass");
  options = reducing(0.9), options.tuning.tile = 64;
  EXPECT_EQ(message(options),
            "choices name a tile, but method is partial-reduce, whose bins are tiles");
  EXPECT_THROW(parse_method("heap"), InvalidArgument);
  EXPECT_EQ(
      message(with({.kind = Method::partial_reduce, .partial_reduce = {.logical_rows = 499}})),
      "logical_rows must be between the 500 rows that there are and 2^40, but is 499");
  options = reducing(0.9), options.method.partial_reduce.aggregate = false,
  options.memory = 1 << 30;
  EXPECT_EQ(message(options), "aggregate is off, but memory is limited to 1073741824 bytes");
  // auto takes the exact search for options that only that has.
  for (TuningOverrides choices : {TuningOverrides{.guess = false}, TuningOverrides{.parts = 2},
                                  TuningOverrides{.tile = 64}, TuningOverrides{.refine = false}})
    EXPECT_EQ(message({.tuning = choices, .method = {.recall = 0.5}}), "no error");
  // Fewer rows than k, none at all, and no queries are allowed.
  for (Method method : {Method::threshold_heap, Method::partial_reduce}) {
    KnnOptions plain{.method = {.kind = method}};
    EXPECT_EQ(knn(x.view(), x.view().rows(0, 3), 5, plain).ids.row(0)[4], no_id);
    EXPECT_EQ(knn(x.view(), x.view().rows(0, 0), 5, plain).ids.row(0)[0], no_id);
    EXPECT_EQ(knn(x.view().rows(0, 0), x.view(), 5, plain).ids.rows(), 0);
  }
}

// Less recall is used, where it is asked for, only if it is forecast to be faster; the report says
// which it was.
TEST(Methods, AutoSaysWhatItDid) {
  const Matrix<float> base = clustered(6000, 24, true, 20), queries = clustered(100, 24, true, 21);
  KnnReport report;
  const Neighbors got = knn(queries.view(), base.view(), 10, {.method = {.recall = 0.9}}, &report);
  if (report.method == "exact") {
    EXPECT_EQ(report.promise.promised_recall, 1);
    EXPECT_TRUE(same(got, knn(queries.view(), base.view(), 10)));
  } else {
    EXPECT_EQ(report.promise.promised_recall, 0.9);
  }
}

}  // namespace
}  // namespace knear
