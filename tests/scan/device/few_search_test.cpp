// A search of few queries in one launch on the emulated GPU: the bits of the search by several
// launches, which other tests compare with the reference.
#include "knear/scan/device/few_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/device/device_scan.hpp"
#include "tests/scan/device/vector_kinds.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::detail {
namespace {

struct Asked {
  std::int64_t k = 10;
  std::span<const double> bounds = {};
  AllowedRows allowed = {};
  Progress progress = {};
  std::size_t free_bytes = 6 << 20;  // of the device, of 8 MiB
};
struct Answer {
  ExactNeighbors found;
  DeviceStats stats;
  std::int64_t launches;
};

// A base on an emulated device of its own.
class FewSearch : public testing::Test {
 protected:
  Answer search(AnyMatrixView base, AnyMatrixView queries, Metric metric, bool one_launch,
                const Asked& asked) {
    const ValueRange of_base = find_value_range(base, Metric::l2, "base", 1),
                     of_queries = find_value_range(queries, Metric::l2, "queries", 1);
    const bool integer = metric != Metric::cosine && of_base.integer && of_queries.integer;
    const auto device = std::make_shared<HostDevice>();
    HostQueue queue(++seed_, 8 << 20, device);
    queue.use_one_launch(one_launch);
    DeviceScan<HostQueue> scan(queue, coding_of(BaseRows(base), metric, integer, of_base, 4),
                               upload_rows(queue, BaseRows(base), {}, 1), 1);
    const auto filler = queue.allocate<char>(queue.free_bytes() - asked.free_bytes);
    std::vector<std::int64_t> which(static_cast<std::size_t>(queries.rows()));
    std::iota(which.begin(), which.end(), 0);
    Answer out{ExactNeighbors(queries.rows(), asked.k), {}, -device->launches()};
    const auto left = scan.run(queries, which, of_queries, asked.k, out.found, out.stats,
                               block_queries, asked.progress, asked.bounds, asked.allowed);
    EXPECT_TRUE(left.empty());
    out.launches += device->launches();
    return out;
  }

  // Compares both; one: whether the second should be one launch, but for queries that are searched
  // again. Returns how many these are.
  std::int64_t expect_same(AnyMatrixView base, AnyMatrixView queries, Metric metric,
                           const std::string& what, const Asked& asked = {}, bool one = true) {
    const Answer usual = search(base, queries, metric, false, asked),
                 together = search(base, queries, metric, true, asked);
    EXPECT_EQ(together.stats.steps, usual.stats.steps) << what;
    EXPECT_EQ(together.stats.repeated, usual.stats.repeated) << what;
    EXPECT_EQ(together.stats.survivors, usual.stats.survivors) << what;
    EXPECT_EQ(together.stats.one_launch, one && usual.stats.repeated == 0) << what;
    EXPECT_FALSE(usual.stats.one_launch) << what;
    if (usual.stats.repeated == 0) {
      EXPECT_GE(usual.launches, 4) << what;
      EXPECT_EQ(together.launches, one ? 1 : usual.launches) << what;
    } else {
      EXPECT_LT(together.launches, usual.launches) << what;
    }
    for (std::int64_t q = 0; q < queries.rows(); ++q)
      for (std::int64_t j = 0; j < asked.k; ++j) {
        EXPECT_EQ(together.found.ids.row(q)[j], usual.found.ids.row(q)[j])
            << what << ", query " << q << ", place " << j;
        EXPECT_EQ(together.found.keys.row(q)[j], usual.found.keys.row(q)[j])
            << what << ", query " << q << ", place " << j;
        if (HasFailure()) return -1;
      }
    return usual.stats.repeated;
  }

  std::uint64_t seed_ = 0;
};

template <class T>
Matrix<T> uniform(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  return vectors<T>(Kind::uniform, rows, dim, random);
}

TEST_F(FewSearch, EveryElementTypeAndMetric) {
  const auto check = [&](auto element, const std::string& type, bool whole) {
    using T = decltype(element);
    const auto base = uniform<T>(300, 40, 3);
    const auto alike = uniform<T>(2, 40, 4);
    const auto floats = uniform<float>(9, 40, 5);
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      expect_same(base.view(), alike.view(), metric, type + ", " + std::string(name_of(metric)));
    if (!whole) return;
    expect_same(base.view(), floats.view(), Metric::l2, type + ", queries of floats");
  };
  check(float{}, "f32", false);
  check(f16{}, "f16", false);
  check(bf16{}, "bf16", false);
  check(double{}, "f64", false);
  check(std::uint8_t{}, "u8", true);
  check(std::int8_t{}, "i8", true);
}

// In two steps. Without any one of the barriers of the grid the thread sanitiser reports a race.
TEST_F(FewSearch, StepsOfAShortSearch) {
  const auto floats = uniform<float>(600, 12, 21);
  const auto whole = uniform<std::uint8_t>(600, 12, 22);
  expect_same(floats.view(), floats.view().rows(0, 2), Metric::l2, "floats", {.k = 3});
  expect_same(whole.view(), whole.view().rows(0, 2), Metric::l2, "whole numbers", {.k = 3});
  EXPECT_EQ(search(whole.view(), whole.view().rows(0, 2), Metric::l2, true, {.k = 3}).stats.steps,
            2);
}

TEST_F(FewSearch, NumbersOfQueriesRowsAndNeighbours) {
  const auto check = [&](std::int64_t rows, std::int64_t count, std::int64_t k) {
    const auto base = uniform<float>(rows, 20, 7);
    const auto queries = uniform<float>(count, 20, 8);
    expect_same(base.view(), queries.view(), Metric::l2,
                std::to_string(rows) + " rows, " + std::to_string(count) + " queries, k " +
                    std::to_string(k),
                {.k = k});
  };
  check(1, 1, 1);
  check(31, 8, 70);  // more than there are
  check(300, 9, 70);
  check(700, 32, 2);
  check(6000, 1, 1);
  check(6000, 2, 256);
  check(3000, 1, 200);  // several blocks measure the rows of one query
  // Whole numbers of more queries than there are blocks.
  const auto base = uniform<std::uint8_t>(500, 20, 7);
  for (const std::int64_t count : {9, 32})
    expect_same(base.view(), uniform<std::uint8_t>(count, 20, 8).view(), Metric::l2,
                std::to_string(count) + " queries of whole numbers");
}

// Copies and zeros, rows in an order, of very different lengths.
TEST_F(FewSearch, RowsOfAllKinds) {
  const auto check = [&](Kind kind, Metric metric) {
    Random random(9);
    const auto base = vectors<float>(kind, 1500, 70, random);
    const auto queries = vectors<float>(kind, 2, 70, random);
    expect_same(
        base.view(), queries.view(), metric,
        "kind " + std::to_string(static_cast<int>(kind)) + ", " + std::string(name_of(metric)));
  };
  check(Kind::clustered, Metric::l2);
  check(Kind::sorted, Metric::ip);
  check(Kind::copies, Metric::l2);
  check(Kind::sizes, Metric::l2);
  check(Kind::sizes, Metric::cosine);
  check(Kind::zeros, Metric::cosine);
}

TEST_F(FewSearch, SomeRowsAndKnownBounds) {
  const auto base = uniform<float>(1500, 24, 11);
  const auto queries = uniform<float>(2, 24, 12);
  const Neighbors truth = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  std::vector<double> bounds;
  for (std::int64_t q = 0; q < queries.rows(); ++q)
    bounds.push_back(1.5 * double{truth.distances.row(q)[9]});
  std::vector<Id> ids;
  for (Id id = 0; id < base.rows(); id += 3) ids.push_back(id);
  const RowFilter filter = RowFilter::of_ids(ids, base.rows());
  const AllowedRows thirds{.filter = &filter};
  expect_same(base.view(), queries.view(), Metric::l2, "bounds", {.bounds = bounds});
  expect_same(base.view(), queries.view(), Metric::l2, "a third", {.allowed = thirds});
  const RowFilter one = RowFilter::of_ids(std::vector<Id>{1234}, base.rows());
  expect_same(base.view(), queries.view(), Metric::l2, "one row", {.allowed = {.filter = &one}});
  expect_same(base.view(), queries.view(), Metric::l2, "both",
              {.bounds = bounds, .allowed = thirds});
}

// Lists of the usual length that fill with copies of one row. What is lost is searched again by
// several launches.
TEST_F(FewSearch, ListsThatFill) {
  Matrix<float> base(6000, 4);
  for (std::int64_t i = 0; i < base.rows(); ++i)
    for (std::int64_t j = 0; j < 4; ++j) base.row(i)[j] = i % 5 == 0 ? 1e4f : 1.0f;
  const auto queries = uniform<float>(2, 4, 13);
  EXPECT_EQ(expect_same(base.view(), queries.view(), Metric::l2, "copies",
                        {.k = 3, .free_bytes = 180 << 10}),
            2);
}

// Progress is reported, and may stop a search.
TEST_F(FewSearch, Progress) {
  const auto base = uniform<float>(600, 12, 17);
  const auto queries = uniform<float>(3, 12, 18);
  double done = 0;
  const auto told = [&](std::string_view, double fraction) {
    done = std::max(done, fraction);
    return true;
  };
  expect_same(base.view(), queries.view(), Metric::l2, "progress", {.progress = told});
  EXPECT_EQ(done, 1);
  const auto stops = [](std::string_view, double) { return false; };
  EXPECT_THROW(search(base.view(), queries.view(), Metric::l2, true, {.progress = stops}),
               Cancelled);
}

// Counts how often the processor waits for all work.
struct CountsWaits : HostQueue {
  using HostQueue::HostQueue;
  int waits = 0;
  void wait() {
    ++waits;
    HostQueue::wait();
  }
};

// For progress, which Python and the program always report, the steps of few queries are not waited
// for: in one launch or in several.
TEST_F(FewSearch, StepsAreNotWaitedForToReportProgress) {
  const auto base = uniform<float>(600, 12, 23);
  const AnyMatrixView rows = base.view();
  const auto queries = uniform<float>(2, 12, 24);
  const ValueRange found = find_value_range(queries.view(), Metric::l2, "queries", 1);
  CountsWaits queue(5);
  DeviceScan<CountsWaits> scan(queue, coding_of(BaseRows(rows), Metric::l2, false, found, 4),
                               upload_rows(queue, BaseRows(rows), {}, 1), 1);
  const std::int64_t which[] = {0, 1};
  const auto waits = [&](const Progress& progress) {
    ExactNeighbors out(2, 3);
    DeviceStats stats;
    const int before = queue.waits;
    EXPECT_TRUE(
        scan.run(queries.view(), which, found, 3, out, stats, block_queries, progress).empty());
    EXPECT_GE(stats.steps, 2);
    return queue.waits - before;
  };
  for (const bool one_launch : {false, true}) {
    queue.use_one_launch(one_launch);
    EXPECT_EQ(waits([](std::string_view, double) { return true; }), waits({}));
  }
}

// Queries that are in device memory.
TEST_F(FewSearch, DeviceQuerySearch) {
  const auto base = uniform<float>(1500, 16, 15);
  const auto queries = uniform<float>(9, 16, 16);
  constexpr std::int64_t k = 8;
  const Neighbors truth = reference_knn(queries.view(), base.view(), k, Metric::cosine);
  const ValueRange found = find_value_range(queries.view(), Metric::l2, "queries", 1);
  HostQueue queue(3);
  queue.use_one_launch(true);
  const BaseRows rows = AnyMatrixView(base.view());
  DeviceScan<HostQueue> scan(queue, coding_of(rows, Metric::cosine, false, found, 4),
                             upload_rows(queue, rows, {}, 1), 1);
  DeviceRowData<HostQueue> asked;
  asked.borrowed = queries.data(), asked.count = queries.rows(), asked.dim = queries.cols();
  DeviceStats stats;
  std::int64_t answered = 0;
  const auto left = scan.run_on_device(
      asked, found, k, stats, block_queries, {}, nullptr, {},
      std::numeric_limits<std::size_t>::max(), [&](const FoundOnDevice& there) {
        for (std::int64_t place = 0; place < there.count; ++place, ++answered) {
          const std::int64_t q = there.first + (there.order ? there.order[place] : place);
          for (std::int64_t j = 0; j < k; ++j)
            EXPECT_EQ(there.rows[place * k + j], truth.ids.row(q)[j]) << q << ", " << j;
        }
      });
  EXPECT_TRUE(left.empty());
  EXPECT_EQ(answered, queries.rows());
}

// What is not one launch though it was asked for: more queries than the form takes, so many
// neighbours that lists are sorted, and rows so long that a multiprocessor has no shared memory for
// the codes of the queries.
TEST_F(FewSearch, OtherSearchesAreLaunchedAsBefore) {
  const auto base = uniform<float>(700, 12, 17);
  const auto expect = [&](AnyMatrixView rows, std::int64_t count, const std::string& what,
                          const Asked& asked) {
    const auto queries = uniform<float>(count, rows.cols(), 18);
    expect_same(rows, queries.view(), Metric::l2, what, asked, false);
  };
  expect(base.view(), 33, "33 queries", {});
  expect(base.view(), 3, "257 neighbours", {.k = 257});
  const auto longer = uniform<float>(70, 32 * 90, 19);
  expect(longer.view(), 9, "long rows", {});
}

}  // namespace
}  // namespace knear::detail
