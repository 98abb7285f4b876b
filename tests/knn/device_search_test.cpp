// Searches by a GPU, on the emulated one: the answers of the processor, whatever is asked for.
#include "knear/knn/device_search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/knn/knn.hpp"
#include "tests/simt/emulator.hpp"

namespace knear {
namespace {

Matrix<float> gaussian(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                                       std::cos(6.283185307179586 * random.uniform()));
  return out;
}

// knn() on the emulated device.
Neighbors device_knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, KnnOptions options,
                     KnnReport* report = nullptr, std::size_t device_bytes = std::size_t{1} << 40) {
  options.device = "cuda";
  detail::PreparedRows rows(base, options.metric, survey(base, "base", 1));
  const detail::SearchPart part{&rows, {}, options.filter};
  return detail::DeviceSearch<HostQueue>(HostQueue(7, device_bytes), {&part, 1}, queries, k,
                                         options, true, 0)
      .run(report);
}

void expect_same(const Neighbors& a, const Neighbors& b, const std::string& what) {
  ASSERT_EQ(a.ids.rows(), b.ids.rows());
  ASSERT_EQ(a.ids.cols(), b.ids.cols());
  for (std::int64_t q = 0; q < a.ids.rows(); ++q)
    for (std::int64_t j = 0; j < a.ids.cols(); ++j) {
      ASSERT_EQ(a.ids.row(q)[j], b.ids.row(q)[j]) << what << ", query " << q << ", place " << j;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a.distances.row(q)[j]),
                std::bit_cast<std::uint32_t>(b.distances.row(q)[j]))
          << what << ", query " << q << ", place " << j;
    }
}

TEST(DeviceSearch, AnswersAreThoseOfTheProcessor) {
  const auto base = gaussian(1100, 24, 1), queries = gaussian(140, 24, 2);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (std::int64_t k : {1, 40}) {
      const KnnOptions options{.metric = metric};
      KnnReport report;
      const Neighbors found = device_knn(queries.view(), base.view(), k, options, &report);
      expect_same(found, knn(queries.view(), base.view(), k, options),
                  std::string(name_of(metric)) + ", k " + std::to_string(k));
      EXPECT_EQ(report.device, "cuda");
      EXPECT_EQ(report.first_pass, "int8");
      EXPECT_EQ(report.fallback_queries, 0);
      EXPECT_GE(report.survivors_per_query, static_cast<double>(k));
      EXPECT_LT(report.survivors_per_query, 3.0 * static_cast<double>(k) + 100);
    }
}

TEST(DeviceSearch, FiltersOfAllSizes) {
  const auto base = gaussian(1500, 16, 3), queries = gaussian(6, 16, 4);
  for (std::int64_t every : {1, 2, 9, 400, 1500}) {
    std::vector<Id> ids;
    for (Id id = 0; id < 1500; id += every) ids.push_back(id);
    const KnnOptions options{.filter = RowFilter::of_ids(ids, 1500)};
    expect_same(device_knn(queries.view(), base.view(), 10, options),
                knn(queries.view(), base.view(), 10, options), "every " + std::to_string(every));
  }
}

TEST(DeviceSearch, MemoryOfTheDeviceAndTheProcessorMakesChunks) {
  const auto base = gaussian(5000, 16, 5), queries = gaussian(5, 16, 6);
  const Neighbors truth = knn(queries.view(), base.view(), 20);
  KnnReport report;
  expect_same(device_knn(queries.view(), base.view(), 20, {}, &report, 640 << 10), truth, "device");
  EXPECT_GT(report.chunks, 1);
  report = {};
  expect_same(device_knn(queries.view(), base.view(), 20, {.memory = 3 << 20}, &report), truth,
              "processor");
}

TEST(DeviceSearch, WhatADeviceCannotDoTheProcessorDoes) {
  const auto base = gaussian(2500, 8, 7), queries = gaussian(3, 8, 8);
  KnnReport report;
  expect_same(device_knn(queries.view(), base.view(), 1500, {}, &report),
              knn(queries.view(), base.view(), 1500), "k beyond the registers");
  EXPECT_EQ(report.fallback_queries, 3);
  // Rows that no 8-bit code tells apart fill the lists.
  Matrix<float> near(6000, 8);
  Random random(9);
  for (std::int64_t i = 0; i < near.rows() * 8; ++i)
    near.data()[i] = static_cast<float>(100 + 1e-4 * random.uniform() + (i % 97 == 0 ? 300 : 0));
  expect_same(device_knn(queries.view(), near.view(), 5, {}, &report),
              knn(queries.view(), near.view(), 5), "alike");
  EXPECT_EQ(report.fallback_queries, 3);
}

// Where the device has no memory for the rows or for lists, the processor answers, and says so.
TEST(DeviceSearch, ADeviceWithoutMemoryAnswersNothing) {
  const auto base = gaussian(3000, 16, 16), queries = gaussian(200, 16, 17);
  const Neighbors truth = knn(queries.view(), base.view(), 4);
  KnnReport report;
  expect_same(device_knn(queries.view(), base.view(), 4, {}, &report, 50 << 10), truth, "rows");
  EXPECT_EQ(report.fallback_queries, 200);
  report = {};
  expect_same(device_knn(queries.view(), base.view(), 4, {}, &report, 400 << 10), truth, "lists");
  EXPECT_EQ(report.fallback_queries, 200);
  report = {};
  expect_same(device_knn(queries.view(), base.view(), 4, {}, &report, 10 << 20), truth, "half");
  EXPECT_EQ(report.fallback_queries, 0);
}

TEST(DeviceSearch, ZeroQueriesAndNoRows) {
  const auto base = gaussian(300, 8, 10);
  Matrix<float> queries(2, 8);
  std::fill_n(queries.data(), 16, 0.0f);
  queries.row(1)[3] = 1;
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_same(device_knn(queries.view(), base.view(), 4, {.metric = metric}),
                knn(queries.view(), base.view(), 4, {.metric = metric}), "zero");
  const Matrix<float> none(0, 8), nobody(0, 8);
  expect_same(device_knn(queries.view(), none.view(), 4, {}), knn(queries.view(), none.view(), 4),
              "no rows");
  expect_same(device_knn(nobody.view(), base.view(), 4, {}), knn(nobody.view(), base.view(), 4),
              "no queries");
}

template <class E, class F>
void expect_refused(F call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

// A base that is searched many times is packed and copied once, and any thread may search it.
TEST(DeviceSearch, RowsStayOnTheDevice) {
  const auto base = gaussian(1500, 12, 14), queries = gaussian(6, 12, 15);
  const KnnOptions options{.device = "cuda"};
  const Neighbors truth = knn(queries.view(), base.view(), 7);
  detail::PreparedRows rows(base.view(), Metric::l2, survey(base.view(), "base", 1));
  const detail::SearchPart part{&rows};
  const auto search = [&](KnnReport* report) {
    return detail::DeviceSearch<HostQueue>(HostQueue(3), {&part, 1}, queries.view(), 7, options,
                                           false, 0)
        .run(report);
  };
  KnnReport first, second;
  expect_same(search(&first), truth, "first");
  EXPECT_GT(first.prepare_seconds, 0);
  expect_same(search(&second), truth, "second");
  EXPECT_EQ(second.prepare_seconds, 0);
  EXPECT_EQ(second.bytes_read, first.bytes_read);
  KnnOptions by_number = options;
  by_number.device = "cuda:0";
  expect_same(detail::DeviceSearch<HostQueue>(HostQueue(3), {&part, 1}, queries.view(), 7,
                                              by_number, false, 0)
                  .run(&second),
              truth, "by number");
  EXPECT_EQ(second.prepare_seconds, 0);
  std::vector<std::thread> threads;
  std::vector<Neighbors> found(4);
  for (std::size_t t = 0; t < found.size(); ++t)
    threads.emplace_back([&, t] { found[t] = search(nullptr); });
  for (std::thread& thread : threads) thread.join();
  for (const Neighbors& one : found) expect_same(one, truth, "thread");
  // A filter takes other rows, and leaves those where they are.
  KnnOptions filtered = options;
  std::vector<Id> even;
  for (Id id = 0; id < 1500; id += 2) even.push_back(id);
  filtered.filter = RowFilter::of_ids(even, 1500);
  const detail::SearchPart half{&rows, {}, filtered.filter};
  expect_same(detail::DeviceSearch<HostQueue>(HostQueue(4), {&half, 1}, queries.view(), 7, filtered,
                                              false, 0)
                  .run(nullptr),
              knn(queries.view(), base.view(), 7, {.filter = filtered.filter}), "filter");
  expect_same(search(&second), truth, "last");
  EXPECT_EQ(second.prepare_seconds, 0);
}

TEST(DeviceSearch, TellsWhereItIsAndStopsOnRequest) {
  const auto base = gaussian(3000, 8, 12), queries = gaussian(5, 8, 13);
  std::vector<double> fractions;
  KnnOptions options{.progress = [&](std::string_view stage, double fraction) {
    if (stage == "search") fractions.push_back(fraction);
    return true;
  }};
  device_knn(queries.view(), base.view(), 3, options);
  ASSERT_GE(fractions.size(), 2u);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1);
  int calls = 0;
  options.progress = [&](std::string_view stage, double) {
    return stage != "search" || ++calls < 2;
  };
  EXPECT_THROW(device_knn(queries.view(), base.view(), 3, options), Cancelled);
  EXPECT_EQ(calls, 2);
}

TEST(DeviceSearch, NothingIsIgnored) {
  const auto x = gaussian(100, 8, 11);
  const auto search = [&](KnnOptions options) {
    return [&x, options] { device_knn(x.view(), x.view(), 3, options); };
  };
  expect_refused<InvalidArgument>(search({.first_pass = FirstPass::fp32}), "first_pass is fp32");
  expect_refused<InvalidArgument>(search({.first_pass = FirstPass::prefix}),
                                  "first_pass is prefix");
  expect_refused<InvalidArgument>(search({.choices = {.group = 4}}), "group=4");
  expect_refused<InvalidArgument>(search({.choices = {.guess = false}}), "guess=off");
  const auto plain = [&](KnnOptions options) {
    return [&x, options] { knn(x.view(), x.view(), 3, options); };
  };
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA", ""})
    expect_refused<InvalidArgument>(plain({.device = device}),
                                    "device must be cpu, cuda or cuda:N");
  const Approach reduce{.method = Method::partial_reduce};
  expect_refused<InvalidArgument>(plain({.approach = reduce, .device = "cuda"}), "method");
  expect_refused<InvalidArgument>(
      [&] { range_search(x.view(), x.view(), 1.0, {.device = "cuda"}); }, "a range search");
  expect_refused<InvalidArgument>([&] { self_join(x.view(), 3, {.device = "cuda"}); },
                                  "a self-join");
}

}  // namespace
}  // namespace knear
