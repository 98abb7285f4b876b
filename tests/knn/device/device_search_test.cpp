// Searches on the emulated GPU: the answers of the processor, for all options.
#include "knear/knn/device/device_search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/knn/knn.hpp"
#include "tests/knn/device/on_device.hpp"
#include "tests/knn/refused.hpp"

namespace knear {
namespace {

using test::expect_refused;
using test::search_on_device;

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
  detail::PreparedRows rows(base, options.metric,
                            find_value_range(base, options.metric, "base", 1));
  const detail::SearchSegment segment{&rows, {}, options.filter};
  return search_on_device(HostQueue(7, device_bytes), {&segment, 1}, queries, k, options,
                          detail::Reuse::none, report);
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
      EXPECT_EQ(report.device.name, "cuda");
      EXPECT_EQ(report.scan.first_pass, "int8");
      EXPECT_EQ(report.scan.fallback_queries, 0);
      EXPECT_GE(report.scan.survivors_per_query, static_cast<double>(k));
      EXPECT_LT(report.scan.survivors_per_query, 3.0 * static_cast<double>(k) + 100);
    }
}

TEST(DeviceSearch, CosinesOfParallelVectorsAreFromZeroToTwo) {
  const auto queries = gaussian(20, 3, 5);
  Matrix<float> base(300, 3);
  for (int i = 0; i < 300; ++i)
    for (int j = 0; j < 3; ++j)
      base.row(i)[j] = queries.row(i % 20)[j] * static_cast<float>(i % 2 == 0 ? 3 + i : -3 - i);
  const KnnOptions options{.metric = Metric::cosine};
  const Neighbors found = device_knn(queries.view(), base.view(), 300, options);
  expect_same(found, knn(queries.view(), base.view(), 300, options), "parallel");
  for (std::int64_t i = 0; i < 20 * 300; ++i) {
    ASSERT_GE(found.distances.data()[i], 0);
    ASSERT_LE(found.distances.data()[i], 2);
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

TEST(DeviceSearch, ManyNeighbours) {
  const auto base = gaussian(2500, 9, 28), queries = gaussian(3, 9, 29);
  for (Metric metric : {Metric::l2, Metric::cosine})
    for (std::int64_t k : {1024, 1025, 2500, 3000}) {
      const KnnOptions options{.metric = metric};
      KnnReport report;
      expect_same(device_knn(queries.view(), base.view(), k, options, &report),
                  knn(queries.view(), base.view(), k, options), std::to_string(k));
      EXPECT_EQ(report.scan.fallback_queries, 0);
      EXPECT_LT(report.scan.survivors_per_query, 1.2 * static_cast<double>(k) + 100);
    }
  // Segments of a base, in chunks, with upper bounds from the rows searched before.
  expect_same(device_knn(queries.view(), base.view(), 1300, {}, nullptr, 2 << 20),
              knn(queries.view(), base.view(), 1300), "chunks");
}

TEST(DeviceSearch, MemoryOfTheDeviceAndTheProcessorMakesChunks) {
  const auto base = gaussian(5000, 16, 5), queries = gaussian(5, 16, 6);
  const Neighbors truth = knn(queries.view(), base.view(), 20);
  KnnReport report;
  expect_same(device_knn(queries.view(), base.view(), 20, {}, &report, 640 << 10), truth, "device");
  EXPECT_GT(report.scan.chunks, 1);
  report = {};
  expect_same(
      device_knn(queries.view(), base.view(), 20, {.threads = 2, .memory = 3 << 20}, &report),
      truth, "processor");
}

TEST(DeviceSearch, WhatADeviceCannotDoTheProcessorDoes) {
  const auto base = gaussian(2500, 8, 7), queries = gaussian(3, 8, 8);
  KnnReport report;
  // The device has room for a thousand rows at a time, but not for three lists of them beside
  // those.
  expect_same(device_knn(queries.view(), base.view(), 1500, {}, &report, 160 << 10),
              knn(queries.view(), base.view(), 1500), "no room for lists");
  EXPECT_EQ(report.scan.fallback_queries, 3);
}

// Rows that 8-bit codes do not separate fill the lists, which are then made as long as necessary.
TEST(DeviceSearch, ListsThatFillAreMadeAgain) {
  Matrix<float> near(2500, 8);
  Random random(9);
  for (std::int64_t i = 0; i < near.rows() * 8; ++i)
    near.data()[i] = static_cast<float>(100 + 1e-4 * random.uniform() + (i % 97 == 0 ? 300 : 0));
  auto queries = gaussian(130, 8, 8);  // more than a block, most of them near the others
  for (std::int64_t i = 3 * 8; i < 130 * 8; ++i) queries.data()[i] += 400;
  const Neighbors truth = knn(queries.view(), near.view(), 5);
  KnnReport report;
  expect_same(device_knn(queries.view(), near.view(), 5, {}, &report), truth, "alike");
  EXPECT_EQ(report.scan.fallback_queries, 0);
  EXPECT_EQ(report.scan.repeated_queries, 3);
  EXPECT_EQ(report.scan.multiply_adds, (130.0 + 2 * 3) * 2500 * 8);
}

// A self-join searches for the k + 1 nearest, whether or not the row is one of them.
TEST(DeviceSearch, SelfJoins) {
  auto base = gaussian(140, 12, 30);
  for (std::int64_t i = 0; i < 30; ++i) std::copy_n(base.row(0), 12, base.row(4 * i));  // equal
  std::fill_n(base.row(9), 12, 0.0f);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (std::int64_t k : {1, 9, 200}) {
      if (k == (metric == Metric::l2 ? 200 : 1)) continue;
      KnnOptions options{.metric = metric};
      const Neighbors truth = self_join(base.view(), k, options);
      options.device = "cuda";
      detail::PreparedRows rows(base.view(), metric,
                                find_value_range(base.view(), metric, "base", 1));
      const detail::SearchSegment segment{&rows};
      KnnReport report;
      expect_same(search_on_device(HostQueue(31), {&segment, 1}, base.view(), k, options,
                                   detail::Reuse::none, &report, detail::SearchKind::self_join),
                  truth, std::string(name_of(metric)) + ", k " + std::to_string(k));
      EXPECT_EQ(report.k, k);
      EXPECT_EQ(report.scan.fallback_queries, 0);
    }
}

// Where the device has memory for the lists of all rows each pair is scored once, unless a filter
// or queries of zeros leave some rows out, or there are too few rows.
TEST(DeviceSearch, SelfJoinsThatScoreEachPairOnce) {
  auto base = gaussian(1026, 8, 30);
  for (std::int64_t i = 0; i < 30; ++i) std::copy_n(base.row(0), 8, base.row(4 * i));  // equal
  const auto joins = [&](const Matrix<float>& rows, KnnOptions options, std::size_t budget,
                         const std::string& what) {
    const Neighbors truth = self_join(rows.view(), 3, options);
    options.device = "cuda";
    detail::PreparedRows prepared(rows.view(), options.metric,
                                  find_value_range(rows.view(), options.metric, "base", 1));
    const detail::SearchSegment segment{&prepared, {}, options.filter};
    KnnReport report;
    expect_same(search_on_device(HostQueue(31, budget), {&segment, 1}, rows.view(), 3, options,
                                 detail::Reuse::none, &report, detail::SearchKind::self_join),
                truth, what);
    EXPECT_EQ(report.scan.fallback_queries, 0) << what;
    if (report.scan.joined) {
      EXPECT_EQ(report.scan.multiply_adds,
                (1026 / 2 + 2 * report.scan.repeated_queries) * 1026.0 * 8);
    }
    return report.scan.joined;
  };
  constexpr std::size_t enough = std::size_t{1} << 40;
  EXPECT_TRUE(joins(base, {.metric = Metric::ip}, enough, "ip"));
  EXPECT_TRUE(joins(base, {.metric = Metric::cosine}, enough, "cosine"));
  EXPECT_FALSE(joins(base, {}, 20 << 20, "lists of some rows"));
  std::vector<Id> ids;
  for (Id id = 1; id < 1026; id += 9) ids.push_back(id);
  EXPECT_FALSE(joins(base, {.filter = RowFilter::of_ids(ids, 1026)}, enough, "filter"));
  std::fill_n(base.row(9), 8, 0.0f);
  EXPECT_FALSE(joins(base, {.metric = Metric::ip}, enough, "zeros"));
  EXPECT_TRUE(joins(base, {}, enough, "zeros, l2"));
}

// Where the device has no memory for the rows or for lists, the processor answers, and the report
// says so.
TEST(DeviceSearch, ADeviceWithoutMemoryAnswersNothing) {
  const auto base = gaussian(3000, 16, 16), queries = gaussian(200, 16, 17);
  const Neighbors truth = knn(queries.view(), base.view(), 4);
  KnnReport report;
  expect_same(device_knn(queries.view(), base.view(), 4, {}, &report, 50 << 10), truth, "rows");
  EXPECT_EQ(report.scan.fallback_queries, 200);
  report = {};
  expect_same(device_knn(queries.view(), base.view(), 4, {}, &report, 400 << 10), truth, "lists");
  EXPECT_EQ(report.scan.fallback_queries, 200);
  report = {};
  expect_same(device_knn(queries.view(), base.view(), 4, {}, &report, 10 << 20), truth, "half");
  EXPECT_EQ(report.scan.fallback_queries, 0);
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

// A base that is searched many times is packed and copied once, and any thread may search it.
TEST(DeviceSearch, RowsStayOnTheDevice) {
  const auto base = gaussian(1500, 12, 14), queries = gaussian(6, 12, 15);
  const KnnOptions options{.device = "cuda"};
  const Neighbors truth = knn(queries.view(), base.view(), 7);
  detail::PreparedRows rows(base.view(), Metric::l2,
                            find_value_range(base.view(), Metric::l2, "base", 1));
  const detail::SearchSegment segment{&rows};
  const auto search = [&](KnnReport* report) {
    return search_on_device(HostQueue(3), {&segment, 1}, queries.view(), 7, options,
                            detail::Reuse::expected, report);
  };
  KnnReport first, second;
  expect_same(search(&first), truth, "first");
  EXPECT_GT(first.prepare_seconds, 0);
  expect_same(search(&second), truth, "second");
  EXPECT_EQ(second.prepare_seconds, 0);
  EXPECT_EQ(second.scan.bytes_read, first.scan.bytes_read);
  KnnOptions by_number = options;
  by_number.device = "cuda:0";
  expect_same(search_on_device(HostQueue(3), {&segment, 1}, queries.view(), 7, by_number,
                               detail::Reuse::expected, &second),
              truth, "by number");
  EXPECT_EQ(second.prepare_seconds, 0);
  std::vector<std::thread> threads;
  std::vector<Neighbors> found(4);
  for (std::size_t t = 0; t < found.size(); ++t)
    threads.emplace_back([&, t] { found[t] = search(nullptr); });
  for (std::thread& thread : threads) thread.join();
  for (const Neighbors& one : found) expect_same(one, truth, "thread");
}

// The rows on the device serve every filter that leaves one row in sixteen; where fewer are left,
// these are packed by themselves, and the rows on the device stay.
TEST(DeviceSearch, FiltersAreServedByTheRowsThatStay) {
  constexpr std::int64_t n = 3000;
  const auto floats = gaussian(n, 12, 18), queries = gaussian(9, 12, 19);
  Matrix<std::uint8_t> whole(n, 12), whole_queries(9, 12);
  Random random(20);
  for (std::int64_t i = 0; i < n * 12; ++i)
    whole.data()[i] = static_cast<std::uint8_t>(random.below(11));  // many ties
  for (std::int64_t i = 0; i < 9 * 12; ++i)
    whole_queries.data()[i] = static_cast<std::uint8_t>(random.below(11));
  for (const bool integer : {false, true})
    for (Metric metric : {Metric::l2, Metric::ip}) {
      const AnyMatrixView base = integer ? AnyMatrixView(whole.view()) : floats.view();
      const AnyMatrixView asked = integer ? AnyMatrixView(whole_queries.view()) : queries.view();
      detail::PreparedRows rows(base, metric, find_value_range(base, metric, "base", 1));
      const auto search = [&](const RowFilter& filter, std::int64_t offset, std::int64_t k,
                              KnnReport* report) {
        const KnnOptions options{.metric = metric, .device = "cuda"};
        const detail::SearchSegment segment{&rows, {}, filter, offset};
        return search_on_device(HostQueue(5), {&segment, 1}, asked, k, options,
                                detail::Reuse::expected, report);
      };
      KnnReport report;
      search({}, 0, 10, &report);
      ASSERT_GT(report.prepare_seconds, 0);
      const double bytes = report.scan.bytes_read;
      for (std::int64_t every : {1, 2, 3, 7, 15, 16, 17, 100, 1500, 3000}) {
        const std::int64_t k = integer == (metric == Metric::l2) ? 10 : 300;
        const std::int64_t offset = every % 2 * 37;
        const std::string what = std::string(name_of(metric)) + (integer ? ", integer" : "") +
                                 ", every " + std::to_string(every) + ", offset " +
                                 std::to_string(offset) + ", k " + std::to_string(k);
        std::vector<Id> ids, own;
        for (Id id = offset + every / 2; id < n; id += every) ids.push_back(id);
        for (Id id : ids) own.push_back(id - offset);
        // Row 0 of the segment is row `offset` of the filter.
        const auto filter = RowFilter::of_ids(ids, n + offset);
        expect_same(search(filter, offset, k, &report),
                    knn(asked, base, k, {.metric = metric, .filter = RowFilter::of_ids(own, n)}),
                    what);
        EXPECT_EQ(report.scan.fallback_queries, 0) << what;
        const bool served = std::ssize(ids) * 16 >= n;
        EXPECT_EQ(report.prepare_seconds == 0, served) << what;
        EXPECT_EQ(report.scan.bytes_read == bytes, served) << what;
        if (HasFailure()) return;
      }
      search({}, 0, 10, &report);
      EXPECT_EQ(report.prepare_seconds, 0);
    }
}

// The allowed rows may be together in the panels, here because they are the largest.
TEST(DeviceSearch, AFilterOfTheLongestRows) {
  constexpr std::int64_t n = 6000;
  auto base = gaussian(n, 8, 21);
  std::vector<Id> longest;
  for (Id id = 3; id < n; id += 15) {
    for (int j = 0; j < 8; ++j) base.row(id)[j] *= 50;
    longest.push_back(id);
  }
  const auto queries = gaussian(20, 8, 22);
  const auto filter = RowFilter::of_ids(longest, n);
  detail::PreparedRows rows(base.view(), Metric::l2,
                            find_value_range(base.view(), Metric::l2, "base", 1));
  const detail::SearchSegment segment{&rows, {}, filter};
  for (std::int64_t k : {1, 10, 100, 500}) {
    const KnnOptions options{.device = "cuda"};
    KnnReport report;
    expect_same(search_on_device(HostQueue(6), {&segment, 1}, queries.view(), k, options,
                                 detail::Reuse::expected, &report),
                knn(queries.view(), base.view(), k, {.filter = filter}), std::to_string(k));
    EXPECT_EQ(report.scan.fallback_queries, 0);
  }
}

// Rows that an index has removed are never found, and nothing is packed again for that.
TEST(DeviceSearch, RemovedRows) {
  constexpr std::int64_t n = 2500;
  const auto base = gaussian(n, 10, 23), queries = gaussian(7, 10, 24);
  detail::PreparedRows rows(base.view(), Metric::cosine,
                            find_value_range(base.view(), Metric::cosine, "base", 1));
  RowSet live(n);
  Random random(25);
  std::vector<Id> names(n);
  for (Id id = 0; id < n; ++id) names[static_cast<std::size_t>(id)] = 3 * id + 1;
  const KnnOptions options{.metric = Metric::cosine, .device = "cuda"};
  for (int removed = 0; removed < 1200; removed += 400) {
    for (int i = 0; i < 400; ++i) live.remove(static_cast<std::int64_t>(random.below(n)));
    std::vector<Id> left;
    for (Id id = 0; id < n; ++id)
      if (live.contains(id)) left.push_back(id);
    const detail::SearchSegment segment{&rows, {0, names.data()}, {}, 0, &live};
    KnnReport report;
    const Neighbors found = search_on_device(HostQueue(6), {&segment, 1}, queries.view(), 20,
                                             options, detail::Reuse::expected, &report);
    Neighbors truth = knn(queries.view(), base.view(), 20,
                          {.metric = Metric::cosine, .filter = RowFilter::of_ids(left, n)});
    for (std::int64_t i = 0; i < 7 * 20; ++i) truth.ids.data()[i] = 3 * truth.ids.data()[i] + 1;
    expect_same(found, truth, std::to_string(removed));
    EXPECT_EQ(report.prepare_seconds == 0, removed > 0);
    EXPECT_EQ(report.scan.fallback_queries, 0);
  }
}

// Where a device has no memory for the bits of a filter, the processor answers.
TEST(DeviceSearch, NoMemoryForAFilter) {
  const auto base = gaussian(40000, 4, 26), queries = gaussian(3, 4, 27);
  std::vector<Id> ids;
  for (Id id = 0; id < 40000; id += 2) ids.push_back(id);
  const auto filter = RowFilter::of_ids(ids, 40000);
  detail::PreparedRows rows(base.view(), Metric::l2,
                            find_value_range(base.view(), Metric::l2, "base", 1));
  const HostQueue queue(8, 12 << 20);
  const std::size_t all = queue.free_bytes();
  const detail::SearchSegment everything{&rows}, half{&rows, {}, filter};
  const KnnOptions options{.device = "cuda"};
  search_on_device(queue, {&everything, 1}, queries.view(), 3, options, detail::Reuse::expected,
                   nullptr);
  HostQueue kept = queue;  // the same memory
  ASSERT_LT(kept.free_bytes(), all);
  const auto filler = kept.allocate<char>(kept.free_bytes() - 1000);
  KnnReport report;
  expect_same(search_on_device(queue, {&half, 1}, queries.view(), 3, options,
                               detail::Reuse::expected, &report),
              knn(queries.view(), base.view(), 3, {.filter = filter}), "no memory");
  EXPECT_EQ(report.scan.fallback_queries, 3);
}

TEST(DeviceSearch, ReportsProgressAndStopsOnRequest) {
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
  expect_refused<InvalidArgument>(search({.tuning = {.group = 4}}), "group=4");
  expect_refused<InvalidArgument>(search({.tuning = {.guess = false}}), "guess=off");
  const auto plain = [&](KnnOptions options) {
    return [&x, options] { knn(x.view(), x.view(), 3, options); };
  };
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "CUDA", ""})
    expect_refused<InvalidArgument>(plain({.device = device}),
                                    "device must be cpu, cuda or cuda:N");
}

TEST(DeviceOfProcess, TakesTheNextOne) {
  EXPECT_EQ(detail::device_of_process("cuda", 0, 4), "cuda:0");
  EXPECT_EQ(detail::device_of_process("cuda", 3, 4), "cuda:3");
  EXPECT_EQ(detail::device_of_process("cuda", 5, 4), "cuda:1");
  EXPECT_EQ(detail::device_of_process("cuda:2", 5, 4), "cuda:2");
  EXPECT_EQ(detail::device_of_process("cpu", 5, 4), "cpu");
  EXPECT_EQ(knear::device_of_process("cpu", 5), "cpu");
  EXPECT_THROW(knear::device_of_process("gpu", 0), InvalidArgument);
}

}  // namespace
}  // namespace knear
