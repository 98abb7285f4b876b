// Method threshold-heap across devices, on the emulated GPU: the answers of the processor to the
// bit, and a report that says what was done where.
#include "knear/knn/device/device_search.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/knn/device/on_device.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/knn/refused.hpp"

namespace knear {
namespace {

using test::expect_refused;
using test::gaussians;
using test::metrics;
using test::same;
using test::search_on_device;

KnnOptions heap_options(KnnOptions options) {
  options.method.kind = Method::threshold_heap;
  return options;
}

// knn() across the emulated device and the processor.
Neighbors across(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, KnnOptions options,
                 KnnReport* report = nullptr, std::size_t device_bytes = std::size_t{1} << 40) {
  options = heap_options(options);
  options.device = "cuda";
  detail::PreparedRows rows(base, options.metric,
                            find_value_range(base, options.metric, "base", 1));
  const detail::SearchSegment segment{&rows, {}, options.filter};
  return search_on_device(HostQueue(7, device_bytes), {&segment, 1}, queries, k, options,
                          detail::Reuse::none, report);
}

void expect_same(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, KnnOptions options,
                 const std::string& what, std::int64_t fallback = 0,
                 std::size_t device_bytes = std::size_t{1} << 40) {
  SCOPED_TRACE(what + ", " + std::string(name_of(options.metric)) + ", k " + std::to_string(k));
  KnnReport report;
  const Neighbors found = across(queries, base, k, options, &report, device_bytes);
  KnnOptions exact = options;
  exact.memory = 0, exact.method = {}, exact.first_pass = FirstPass::automatic;
  EXPECT_TRUE(same(found, knn(queries, base, k, exact)));
  EXPECT_EQ(report.scan.fallback_queries, fallback);
}

AnyMatrix typed(ElementType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                double most = 100) {
  Random random(seed);
  return test::make(type, rows, cols, [&](auto, auto) { return most * random.uniform(); });
}

TEST(DeviceThresholdHeapSearch, AnswersAreThoseOfTheProcessor) {
  std::uint64_t seed = 1;
  for (ElementType type :
       {ElementType::f32, ElementType::f16, ElementType::bf16, ElementType::u8, ElementType::i8})
    for (Metric metric : metrics) {
      const AnyMatrix base = typed(type, 1100, 15, ++seed), queries = typed(type, 20, 15, ++seed);
      for (std::int64_t k : {1, 10, 100})
        expect_same(queries.view(), base.view(), k, {.metric = metric},
                    "type " + std::string(name_of(type)));
    }
}

TEST(DeviceThresholdHeapSearch, ManyQueriesInGroups) {
  const AnyMatrix base = gaussians(700, 12, 31), queries = gaussians(300, 12, 32);
  expect_same(queries.view(), base.view(), 5, {.threads = 2}, "floats");
  expect_same(queries.view(), base.view(), 5,
              {.threads = 2, .method = {.threshold_heap = {.query_batch = 130}}}, "batches");
  // A memory limit makes groups small; each is coded by itself.
  expect_same(queries.view(), base.view(), 5, {.threads = 2, .memory = 6 << 20}, "memory");
}

TEST(DeviceThresholdHeapSearch, TiesAndCopies) {
  const AnyMatrix whole = typed(ElementType::u8, 900, 4, 41, 3),
                  whole_queries = typed(ElementType::u8, 12, 4, 42, 3);
  Random random(43);
  AnyMatrix few = test::make(ElementType::f32, 900, 4, [&](std::int64_t row, std::int64_t column) {
    return std::sin(static_cast<double>(row % 30 * 7 + column));
  });
  const AnyMatrix queries = gaussians(12, 4, 44);
  const AnyMatrix one = test::make(ElementType::f32, 900, 4, [](auto, auto) { return 0.7; });
  for (Metric metric : metrics)
    for (std::int64_t k : {1, 10, 100, 900, 1500}) {
      expect_same(whole_queries.view(), whole.view(), k, {.metric = metric}, "whole");
      expect_same(queries.view(), few.view(), k, {.metric = metric}, "thirty vectors");
      expect_same(queries.view(), one.view(), k, {.metric = metric}, "one vector");
    }
}

TEST(DeviceThresholdHeapSearch, FiltersAndSamples) {
  const AnyMatrix base = gaussians(1500, 10, 51), queries = gaussians(6, 10, 52);
  for (std::int64_t every : {1, 2, 9, 400, 1500}) {
    std::vector<Id> ids;
    for (Id id = every / 2; id < 1500; id += every) ids.push_back(id);
    expect_same(queries.view(), base.view(), 10, {.filter = RowFilter::of_ids(ids, 1500)},
                "every " + std::to_string(every));
  }
  for (std::int64_t samples : {10, 1000, 5000})
    expect_same(queries.view(), base.view(), 10,
                {.method = {.threshold_heap = {.samples = samples}}},
                "samples " + std::to_string(samples));
}

// As an index has it: segments, removed rows, and each row its own id.
TEST(DeviceThresholdHeapSearch, SegmentsAndLiveRows) {
  const AnyMatrix base = gaussians(900, 8, 61), queries = gaussians(7, 8, 62);
  const auto view = base.view();
  detail::PreparedRows first(view.rows(0, 350), Metric::l2,
                             find_value_range(view, Metric::l2, "base", 1)),
      second(view.rows(350, 900), Metric::l2, find_value_range(view, Metric::l2, "base", 1));
  RowSet live(350);
  std::vector<Id> allowed;
  for (Id id = 0; id < 350; ++id) {
    if (id % 5 == 2)
      live.remove(id);
    else
      allowed.push_back(id);
  }
  for (Id id = 350; id < 900; ++id) allowed.push_back(id);
  const detail::SearchSegment segments[] = {{.rows = &first, .live = &live},
                                            {.rows = &second, .ids = {.first = 350}}};
  const KnnOptions options = heap_options({.device = "cuda"});
  for (std::int64_t k : {1, 10, 100}) {
    const Neighbors truth =
        knn(queries.view(), view, k, {.filter = RowFilter::of_ids(allowed, 900)});
    EXPECT_TRUE(same(search_on_device(HostQueue(3), segments, queries.view(), k, options,
                                      detail::Reuse::expected, nullptr),
                     truth));
  }
}

// The rows that an exact search left on the device serve this method, and the other way round.
TEST(DeviceThresholdHeapSearch, RowsStayOnTheDevice) {
  const AnyMatrix base = gaussians(900, 8, 71), queries = gaussians(7, 8, 72);
  detail::PreparedRows rows(base.view(), Metric::l2,
                            find_value_range(base.view(), Metric::l2, "base", 1));
  const detail::SearchSegment segment{&rows};
  const KnnOptions exact{.device = "cuda"}, heap = heap_options(exact);
  const Neighbors truth = knn(queries.view(), base.view(), 7);
  KnnReport first, second;
  EXPECT_TRUE(same(search_on_device(HostQueue(3), {&segment, 1}, queries.view(), 7, exact,
                                    detail::Reuse::expected, &first),
                   truth));
  EXPECT_GT(first.prepare_seconds, 0);
  EXPECT_TRUE(same(search_on_device(HostQueue(3), {&segment, 1}, queries.view(), 7, heap,
                                    detail::Reuse::expected, &second),
                   truth));
  EXPECT_EQ(second.prepare_seconds, 0);
}

TEST(DeviceThresholdHeapSearch, TheReportSaysWhatWasDoneWhere) {
  const AnyMatrix base = typed(ElementType::u8, 2000, 12, 81),
                  queries = typed(ElementType::u8, 60, 12, 82);
  KnnReport there, here;
  const KnnOptions options{.threads = 2,
                           .first_pass = FirstPass::integer,
                           .method = {.threshold_heap = {.samples = 100, .query_batch = 8}}};
  across(queries.view(), base.view(), 10, options, &there);
  knn(queries.view(), base.view(), 10, heap_options(options), &here);
  EXPECT_EQ(there.device.name, "cuda");
  EXPECT_GT(there.device.bytes, 2000 * 12);
  EXPECT_EQ(there.method, "threshold-heap");
  EXPECT_EQ(there.scan.first_pass, "integer");
  EXPECT_EQ(there.threshold_heap.samples, 100);
  EXPECT_GT(there.threshold_heap.sampling_seconds, 0);
  EXPECT_GT(there.threshold_heap.sorting_seconds, 0);
  // Both use the same keys, so that these figures are equal.
  EXPECT_EQ(there.threshold_heap.compression_ratio, here.threshold_heap.compression_ratio);
  EXPECT_EQ(there.threshold_heap.threshold_ratio, here.threshold_heap.threshold_ratio);
  EXPECT_EQ(there.scan.expected_hits, here.scan.expected_hits);
  EXPECT_LE(there.scan.hits_per_query, here.scan.hits_per_query);
  EXPECT_GT(there.scan.hits_per_query, 10);
  EXPECT_EQ(there.scan.multiply_adds, here.scan.multiply_adds);
  EXPECT_EQ(there.scan.fallback_queries, 0);
  EXPECT_EQ(there.promise.certified_queries, 60);
  EXPECT_GT(there.memory_bytes, 0);
  KnnReport floats;
  across(gaussians(5, 8, 83).view(), gaussians(500, 8, 84).view(), 3, {.metric = Metric::ip},
         &floats);
  EXPECT_EQ(floats.scan.first_pass, "int8");
  EXPECT_EQ(floats.threshold_heap.threshold_ratio, 0);
  EXPECT_GE(floats.scan.survivors_per_query, 3);
}

TEST(DeviceThresholdHeapSearch, MemoryMakesChunksAndSendsQueriesBack) {
  const AnyMatrix base = gaussians(5000, 16, 91), queries = gaussians(150, 16, 92);
  const Neighbors truth = knn(queries.view(), base.view(), 4);
  KnnReport report;
  EXPECT_TRUE(same(across(queries.view(), base.view(), 4, {}, &report, 900 << 10), truth));
  EXPECT_GT(report.scan.chunks, 1);
  EXPECT_EQ(report.scan.fallback_queries, 0);
  EXPECT_TRUE(same(across(queries.view(), base.view(), 4, {}, &report, 20 << 10), truth));
  EXPECT_EQ(report.scan.fallback_queries, 150);
  EXPECT_EQ(report.method, "threshold-heap");
  const AnyMatrixView some = queries.view().rows(0, 9);
  EXPECT_TRUE(same(across(some, base.view(), 4, {.threads = 2, .memory = 5 << 20}, &report),
                   knn(some, base.view(), 4)));
  EXPECT_LE(report.memory_bytes, 5 << 20);
  EXPECT_THROW(across(queries.view(), base.view(), 4, {.memory = 1 << 10}), MemoryBudgetError);
}

// A filter, and a device without memory for its rows.
TEST(DeviceThresholdHeapSearch, TheProcessorKeepsToTheFilter) {
  const AnyMatrix base = gaussians(3000, 16, 93), queries = gaussians(40, 16, 94);
  std::vector<Id> ids;
  for (Id id = 1; id < 3000; id += 2) ids.push_back(id);
  expect_same(queries.view(), base.view(), 9, {.filter = RowFilter::of_ids(ids, 3000)}, "filter",
              40, 20 << 10);
}

TEST(DeviceThresholdHeapSearch, ZeroQueriesAndNoRows) {
  const AnyMatrix base = gaussians(300, 8, 95);
  AnyMatrix queries = gaussians(3, 8, 96);
  for (std::int64_t i = 0; i < 8; ++i) test::set(queries, i, 0);
  const AnyMatrix none(ElementType::f32, 0, 8), nobody(ElementType::f32, 0, 8);
  for (Metric metric : metrics) {
    expect_same(queries.view(), base.view(), 4, {.metric = metric}, "zero");
    expect_same(queries.view(), none.view(), 4, {.metric = metric}, "no rows");
    expect_same(nobody.view(), base.view(), 4, {.metric = metric}, "no queries");
  }
}

TEST(DeviceThresholdHeapSearch, NothingIsIgnored) {
  const AnyMatrix x = gaussians(100, 8, 97);
  const auto refused = [&](KnnOptions options, const std::string& words) {
    expect_refused<InvalidArgument>([&] { across(x.view(), x.view(), 3, options); }, words);
  };
  refused({.first_pass = FirstPass::fp32}, "first_pass is fp32");
  refused({.first_pass = FirstPass::direct}, "first_pass is direct");
  refused({.tuning = {.group = 4}}, "group=4");
  refused({.tuning = {.tile = 16}}, "tile=16");
  refused({.method = {.threshold_heap = {.samples = 2}}},
          "samples must be at least k = 3, but are 2");
  for (const char* number : {"98", "99"})
    expect_refused<DeviceUnavailable>(
        [&] {
          knn(x.view(), x.view(), 3, heap_options({.device = std::string("cuda:") + number}));
        },
        number);
  expect_refused<InvalidArgument>(
      [&] { knn(x.view(), x.view(), 3, heap_options({.device = "gpu"})); },
      "device must be cpu, cuda or cuda:N");
}

}  // namespace
}  // namespace knear
