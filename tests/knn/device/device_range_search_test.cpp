// Range searches by a GPU, on the emulated one: the answers of the processor to the bit, whatever
// is asked for, and a report that says what was done where.
#include "knear/knn/device/device_search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "knear/knn/device/device_base.hpp"
#include "tests/knn/device/on_device.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/knn/refused.hpp"

namespace knear {
namespace {

using detail::PreparedRows;
using detail::SearchSegment;
using test::expect_refused;
using test::gaussians;
using test::metrics;
using test::range_search_on_device;
using test::search_on_device;

constexpr std::size_t plenty = std::size_t{1} << 40;

testing::AssertionResult same(const RangeNeighbors& got, const RangeNeighbors& expected) {
  if (got.begin != expected.begin)
    return testing::AssertionFailure()
           << got.ids.size() << " rows in " << got.begin.size() << " places, expected "
           << expected.ids.size() << " in " << expected.begin.size() << ", or cut elsewhere";
  for (std::size_t i = 0; i < expected.ids.size(); ++i)
    if (got.ids[i] != expected.ids[i] || std::bit_cast<std::uint32_t>(got.distances[i]) !=
                                             std::bit_cast<std::uint32_t>(expected.distances[i]))
      return testing::AssertionFailure()
             << "place " << i << ": id " << got.ids[i] << " distance " << got.distances[i]
             << ", expected id " << expected.ids[i] << " distance " << expected.distances[i];
  return testing::AssertionSuccess();
}

RangeNeighbors over_segments(const HostQueue& queue, std::span<const SearchSegment> segments,
                             AnyMatrixView queries, double radius, KnnOptions options,
                             detail::Reuse reuse, KnnReport* report = nullptr) {
  options.device = "cuda";
  return range_search_on_device(queue, segments, queries, radius, options, reuse, report);
}

// range_search() on the emulated device.
RangeNeighbors there(AnyMatrixView queries, AnyMatrixView base, double radius,
                     const KnnOptions& options, KnnReport* report = nullptr,
                     std::size_t device_bytes = plenty) {
  PreparedRows rows(base, options.metric, find_value_range(base, options.metric, "base", 1));
  const SearchSegment segment{&rows, {}, options.filter};
  return over_segments(HostQueue(7, device_bytes), {&segment, 1}, queries, radius, options,
                       detail::Reuse::none, report);
}

void expect_same(AnyMatrixView queries, AnyMatrixView base, double radius, KnnOptions options,
                 const std::string& what, std::int64_t fallback = 0,
                 std::size_t device_bytes = plenty) {
  SCOPED_TRACE(what + ", " + std::string(name_of(options.metric)) + ", radius " +
               std::to_string(radius));
  KnnReport report;
  const RangeNeighbors found = there(queries, base, radius, options, &report, device_bytes);
  options.memory = 0, options.first_pass = FirstPass::automatic;
  EXPECT_TRUE(same(found, range_search(queries, base, radius, options)));
  EXPECT_EQ(report.scan.fallback_queries, fallback);
}

// The distance, in float64, that so many rows of the base do not exceed for one of the queries (for
// ip: that so many reach).
double distance_of(AnyMatrixView queries, AnyMatrixView base, std::int64_t rank, Metric metric,
                   std::int64_t query = 0) {
  std::vector<double> keys;
  visit(queries, [&](auto x) {
    visit(base, [&](auto y) {
      for (std::int64_t i = 0; i < y.rows(); ++i)
        keys.push_back(
            order_key(metric, reference_distance(metric, x.row(query), y.row(i), y.cols())));
    });
  });
  std::sort(keys.begin(), keys.end());
  return distance_of_key(metric, keys[static_cast<std::size_t>(rank)]);
}

AnyMatrix typed(ElementType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                double most = 100) {
  Random random(seed);
  return test::make(type, rows, cols, [&](auto, auto) { return most * random.uniform(); });
}

RowFilter every(std::int64_t step, std::int64_t first, std::int64_t rows) {
  std::vector<Id> ids;
  for (Id id = first; id < rows; id += step) ids.push_back(id);
  return RowFilter::of_ids(ids, rows);
}

TEST(DeviceRangeSearch, AnswersAreThoseOfTheProcessor) {
  std::uint64_t seed = 1;
  for (ElementType type :
       {ElementType::f32, ElementType::f16, ElementType::bf16, ElementType::u8, ElementType::i8})
    for (Metric metric : metrics) {
      const AnyMatrix base = typed(type, 450, 15, ++seed), queries = typed(type, 7, 15, ++seed);
      for (std::int64_t rank : {0, 30, 449})
        expect_same(queries, base, distance_of(queries, base, rank, metric), {.metric = metric},
                    "type " + std::string(name_of(type)));
      // Types mix.
      expect_same(gaussians(5, 15, ++seed), base, distance_of(queries, base, 50, metric),
                  {.metric = metric}, "floats in " + std::string(name_of(type)));
    }
  const AnyMatrix bytes = typed(ElementType::u8, 500, 20, ++seed);
  for (Metric metric : {Metric::l2, Metric::ip})
    expect_same(bytes.view().rows(0, 9), bytes, distance_of(bytes, bytes, 40, metric),
                {.metric = metric, .first_pass = FirstPass::int8}, "codes of whole numbers");
}

// The very distance of a row, which is within the radius, and the next number below, which excludes
// it; where many rows have that distance, all of them.
TEST(DeviceRangeSearch, ExactlyAtTheRadius) {
  const AnyMatrix floats = gaussians(400, 9, 21), asked = gaussians(6, 9, 22);
  const AnyMatrix whole = typed(ElementType::u8, 400, 4, 23, 5),
                  whole_asked = typed(ElementType::u8, 6, 4, 24, 5);
  const auto check = [](AnyMatrixView queries, AnyMatrixView base, const std::string& what) {
    for (Metric metric : metrics)
      for (std::int64_t rank : {0, 150}) {
        const double at = distance_of(queries, base, rank, metric, 3);
        const double outwards = metric == Metric::ip ? -HUGE_VAL : HUGE_VAL;
        std::int64_t counts[3];
        int i = 0;
        for (const double radius :
             {std::nextafter(at, -outwards), at, std::nextafter(at, outwards)}) {
          const RangeNeighbors found = there(queries, base, radius, {.metric = metric});
          EXPECT_TRUE(same(found, range_search(queries, base, radius, {.metric = metric})))
              << what << ", " << name_of(metric) << ", rank " << rank;
          counts[i++] = found.begin[4] - found.begin[3];
        }
        EXPECT_LE(counts[0], rank) << what << ", " << name_of(metric);
        EXPECT_GT(counts[1], rank) << what << ", " << name_of(metric);
      }
  };
  check(asked, floats, "floats");
  check(whole_asked, whole, "whole numbers");
}

TEST(DeviceRangeSearch, NothingAndEverything) {
  const AnyMatrix floats = gaussians(600, 8, 31), whole = typed(ElementType::i8, 600, 8, 32);
  for (const AnyMatrix* base : {&floats, &whole})
    for (Metric metric : metrics) {
      const AnyMatrixView queries = base->view().rows(0, 5);
      const double far = std::numeric_limits<double>::max();
      const double none = metric == Metric::ip ? far : -far;
      for (const double radius : {none, -0.5, -0.0, 0.0, 0.5, -none}) {
        expect_same(queries, *base, radius, {.metric = metric}, "radius");
      }
      EXPECT_EQ(there(queries, *base, none, {.metric = metric}).ids.size(), 0u);
      EXPECT_EQ(there(queries, *base, -none, {.metric = metric}).ids.size(), 3000u);
      // A buffer for a few thousand pairs gets seven thousand.
      expect_same(base->view().rows(0, 12), *base, -none,
                  {.metric = metric, .threads = 2, .memory = 3 << 20}, "in pieces");
    }
}

TEST(DeviceRangeSearch, ZeroVectorsAndNoRows) {
  AnyMatrix base = gaussians(140, 8, 41), queries = gaussians(4, 8, 42);
  for (std::int64_t i = 0; i < 8; ++i) {
    test::set(queries, i, 0), test::set(queries, 2 * 8 + i, i % 2 ? 0 : -0.0);
    for (std::int64_t row : {0, 17, 139}) test::set(base, row * 8 + i, 0);
  }
  const AnyMatrix none(ElementType::f32, 0, 8),
      zeros = test::make(ElementType::f32, 130, 8, [](auto, auto) { return 0; });
  for (Metric metric : metrics) {
    for (const double radius : {-1.0, 0.0, 0.999, 1.0, 7.5}) {
      expect_same(queries, base, radius, {.metric = metric}, "zero");
      expect_same(zeros, base, radius, {.metric = metric}, "all queries are zero");
      expect_same(queries, zeros, radius, {.metric = metric}, "all rows are zero");
    }
    expect_same(queries, none, 1, {.metric = metric}, "no rows");
    expect_same(none, base, 1, {.metric = metric}, "no queries");
  }
}

// More queries than are coded in a block, on several threads, also with memory for a few.
TEST(DeviceRangeSearch, ManyQueries) {
  const AnyMatrix base = gaussians(600, 12, 51), queries = gaussians(300, 12, 52);
  const double radius = distance_of(queries, base, 40, Metric::l2);
  expect_same(queries, base, radius, {.threads = 2}, "threads");
  expect_same(queries, base, radius, {.threads = 2, .memory = 9 << 20}, "memory");
}

TEST(DeviceRangeSearch, CopiesOfRows) {
  const AnyMatrix base = test::make(ElementType::f32, 900, 4, [](std::int64_t row, auto column) {
    return std::sin(static_cast<double>(row % 30 * 7 + column));
  });
  const AnyMatrix one = test::make(ElementType::f32, 900, 4, [](auto, auto) { return 0.7; });
  for (Metric metric : metrics) {
    expect_same(base.view().rows(0, 12), base, distance_of(base, base, 100, metric),
                {.metric = metric}, "thirty vectors");
    expect_same(one.view().rows(0, 12), one, distance_of(one, one, 0, metric), {.metric = metric},
                "one vector");
  }
}

TEST(DeviceRangeSearch, FiltersOfAllSizes) {
  constexpr std::int64_t n = 1500;
  const AnyMatrix floats = gaussians(n, 10, 61), asked = gaussians(6, 10, 62);
  const AnyMatrix whole = typed(ElementType::u8, n, 10, 63, 20),
                  whole_asked = typed(ElementType::u8, 6, 10, 64, 20);
  for (const bool integer : {false, true}) {
    const AnyMatrixView base = integer ? whole.view() : floats.view();
    const AnyMatrixView queries = integer ? whole_asked.view() : asked.view();
    const double radius = distance_of(queries, base, 300, Metric::l2);
    PreparedRows rows(base, Metric::l2, find_value_range(base, Metric::l2, "base", 1));
    const SearchSegment all{&rows};
    KnnReport report;
    over_segments(HostQueue(3), {&all, 1}, queries, radius, {}, detail::Reuse::expected, &report);
    ASSERT_GT(report.prepare_seconds, 0);
    for (std::int64_t step : {1, 2, 9, 16, 17, 400, 1500}) {
      const std::string what = "one in " + std::to_string(step);
      expect_same(queries, base, radius, {.filter = every(step, step / 2, n)}, what);
      // Row 0 of the segment is row 41 of the filter; what is on the device serves if it may.
      const SearchSegment segment{&rows, {}, every(step, 41 + step / 2, n + 41), 41};
      EXPECT_TRUE(same(over_segments(HostQueue(3), {&segment, 1}, queries, radius, {},
                                     detail::Reuse::expected, &report),
                       range_search(queries, base, radius, {.filter = every(step, step / 2, n)})))
          << what;
      EXPECT_EQ(report.scan.fallback_queries, 0) << what;
      EXPECT_EQ(report.prepare_seconds == 0, step <= 16) << what;
    }
  }
}

// As an index has it: segments, removed rows, and ids of their own.
TEST(DeviceRangeSearch, SegmentsAndLiveRows) {
  const AnyMatrix base = gaussians(900, 8, 71), queries = gaussians(7, 8, 72);
  const AnyMatrixView view = base.view();
  for (Metric metric : metrics) {
    PreparedRows first(view.rows(0, 350), metric, find_value_range(view, metric, "base", 1)),
        second(view.rows(350, 900), metric, find_value_range(view, metric, "base", 1));
    RowSet live(350);
    std::vector<Id> allowed, names;
    for (Id id = 0; id < 350; ++id) {
      names.push_back(3 * id + 1);
      if (id % 5 == 2)
        live.remove(id);
      else
        allowed.push_back(id);
    }
    for (Id id = 350; id < 900; ++id) allowed.push_back(id);
    const SearchSegment segments[] = {{.rows = &first, .ids = {0, names.data()}, .live = &live},
                                      {.rows = &second, .ids = {.first = 5000}}};
    const double radius = distance_of(queries, base, 90, metric);
    RangeNeighbors truth = range_search(
        queries, view, radius, {.metric = metric, .filter = RowFilter::of_ids(allowed, 900)});
    for (Id& id : truth.ids) id = id < 350 ? 3 * id + 1 : id - 350 + 5000;
    KnnReport report;
    EXPECT_TRUE(same(over_segments(HostQueue(3), segments, queries, radius, {.metric = metric},
                                   detail::Reuse::expected, &report),
                     truth));
    EXPECT_EQ(report.scan.fallback_queries, 0);
    // And where the device has no memory.
    EXPECT_TRUE(same(over_segments(HostQueue(3, 9000), segments, queries, radius,
                                   {.metric = metric}, detail::Reuse::none, &report),
                     truth));
    EXPECT_EQ(report.scan.fallback_queries, 7);
  }
}

// The rows that an exact search left on the device serve this one, and the other way round, for any
// number of threads.
TEST(DeviceRangeSearch, RowsStayOnTheDevice) {
  const AnyMatrix base = gaussians(900, 8, 81), queries = gaussians(7, 8, 82);
  PreparedRows rows(base.view(), Metric::l2, find_value_range(base.view(), Metric::l2, "base", 1));
  const SearchSegment segment{&rows};
  const double radius = distance_of(queries, base, 60, Metric::l2);
  const KnnOptions options{.device = "cuda"};
  KnnReport report;
  search_on_device(HostQueue(3), {&segment, 1}, queries, 7, options, detail::Reuse::expected,
                   &report);
  EXPECT_GT(report.prepare_seconds, 0);
  const RangeNeighbors truth = range_search(queries, base, radius);
  EXPECT_TRUE(same(over_segments(HostQueue(3), {&segment, 1}, queries, radius, {},
                                 detail::Reuse::expected, &report),
                   truth));
  EXPECT_EQ(report.prepare_seconds, 0);
  std::vector<RangeNeighbors> found(3);
  std::vector<std::thread> threads;
  for (RangeNeighbors& one : found)
    threads.emplace_back([&] {
      one = over_segments(HostQueue(3), {&segment, 1}, queries, radius, {.threads = 1},
                          detail::Reuse::expected);
    });
  for (std::thread& thread : threads) thread.join();
  for (const RangeNeighbors& one : found) EXPECT_TRUE(same(one, truth));
}

TEST(DeviceRangeSearch, ChunksOfABaseThatDoesNotFit) {
  const AnyMatrix base = gaussians(5000, 16, 91), queries = gaussians(5, 16, 92);
  const AnyMatrix whole = typed(ElementType::u8, 40000, 16, 93, 9),
                  asked = typed(ElementType::u8, 3, 16, 94, 9);
  const double radius = distance_of(queries, base, 200, Metric::l2);
  const RangeNeighbors truth = range_search(queries, base, radius);
  KnnReport report;
  EXPECT_TRUE(same(there(queries, base, radius, {}, &report, 640 << 10), truth));
  EXPECT_GT(report.scan.chunks, 1);
  EXPECT_EQ(report.scan.fallback_queries, 0);
  EXPECT_TRUE(
      same(there(queries, base, radius, {.threads = 2, .memory = 3 << 20}, &report), truth));
  EXPECT_LE(report.memory_bytes, 3 << 20);
  EXPECT_EQ(report.scan.fallback_queries, 0);
  // A filter of few rows, which are uploaded by themselves, chunk by chunk.
  const KnnOptions few{.filter = every(33, 5, 5000)};
  EXPECT_TRUE(same(there(queries, base, radius, few, &report, 640 << 10),
                   range_search(queries, base, radius, few)));
  EXPECT_GT(report.scan.chunks, 1);
  const double near = distance_of(asked, whole, 10, Metric::l2);
  EXPECT_TRUE(same(there(asked, whole, near, {.threads = 2, .memory = 3 << 20}, &report),
                   range_search(asked, whole, near)));
  EXPECT_GT(report.scan.chunks, 1);
  EXPECT_LE(report.memory_bytes, 3 << 20);
}

// Where the device has no memory for the rows or for lists, the processor answers, and the report
// says so.
TEST(DeviceRangeSearch, ADeviceWithoutMemory) {
  const AnyMatrix base = gaussians(3000, 16, 101), queries = gaussians(200, 16, 102);
  const double radius = distance_of(queries, base, 30, Metric::l2);
  expect_same(queries, base, radius, {}, "rows", 200, 50 << 10);
  expect_same(queries, base, radius, {.filter = every(2, 1, 3000)}, "rows, filter", 200, 20 << 10);
  expect_same(queries, base, radius, {}, "plenty", 0, 10 << 20);
}

// A queue that has memory for lists only at the second attempt.
struct ScarceQueue : HostQueue {
  std::shared_ptr<int> attempts = std::make_shared<int>(0);

  ScarceQueue(HostQueue queue) : HostQueue(std::move(queue)) {}
  template <class T>
  Array<T> allocate(std::size_t size) {
    if constexpr (std::is_same_v<T, detail::Entry>)
      if (++*attempts != 2) throw MemoryBudgetError("no memory for {} entries", size);
    return HostQueue::allocate<T>(size);
  }
};

// Memory that becomes scarce during the search: device and processor answer some queries each.
TEST(DeviceRangeSearch, SomeQueriesOfTheProcessor) {
  const AnyMatrix floats = gaussians(300, 16, 103), asked = gaussians(300, 16, 104);
  const AnyMatrix whole = typed(ElementType::u8, 300, 16, 105),
                  whole_asked = typed(ElementType::u8, 300, 16, 106);
  for (const bool integer : {false, true}) {
    const AnyMatrixView base = integer ? whole.view() : floats.view();
    const AnyMatrixView queries = integer ? whole_asked.view() : asked.view();
    const double radius = distance_of(queries, base, 20, Metric::l2);
    PreparedRows rows(base, Metric::l2, find_value_range(base, Metric::l2, "base", 1));
    std::vector<Id> names;
    for (Id id = 0; id < 300; ++id) names.push_back(2 * id + 9);
    const SearchSegment segment{&rows, {0, names.data()}};
    const KnnOptions options{.device = "cuda"};
    KnnReport report;
    RangeNeighbors truth = range_search(queries, base, radius);
    for (Id& id : truth.ids) id = 2 * id + 9;
    EXPECT_TRUE(same(range_search_on_device(ScarceQueue(HostQueue(5)), {&segment, 1}, queries,
                                            radius, options, detail::Reuse::none, &report),
                     truth));
    EXPECT_EQ(report.scan.fallback_queries, 300 - 128);  // one block was taken
    EXPECT_EQ(report.device.name, "cuda");
  }
}

// The message is the processor's, whatever is on the device.
TEST(DeviceRangeSearch, MoreWithinTheRadiusThanMemoryHolds) {
  const AnyMatrix floats = gaussians(3000, 8, 111);
  const AnyMatrix bytes = typed(ElementType::u8, 3000, 8, 112, 9);
  for (const AnyMatrix* base : {&floats, &bytes}) {
    const AnyMatrixView queries = base->view().rows(0, 100);
    const KnnOptions options{.threads = 2, .memory = 8 << 20};
    expect_refused<MemoryBudgetError>([&] { there(queries, *base, 1e9, options); },
                                      "rows lie within the radius, and memory holds no more");
    expect_refused<MemoryBudgetError>(
        [&] { there(queries, *base, 1e9, options, nullptr, 20 << 10); },
        "rows lie within the radius, and memory holds no more");
    KnnReport report;
    EXPECT_TRUE(same(there(queries.rows(0, 9), *base, 1e-3, options, &report),
                     range_search(queries.rows(0, 9), *base, 1e-3)));
    EXPECT_LE(report.memory_bytes, options.memory);
  }
  expect_refused<MemoryBudgetError>(
      [&] { there(floats.view().rows(0, 5), floats, 1, {.memory = 1 << 10}); }, "memory is 1024");
}

// The buffers into which pairs are copied are part of the memory: an eighth, beside the pieces in
// which rows are uploaded, which are a quarter.
TEST(DeviceRangeSearch, BuffersAreWithinTheMemory) {
  const AnyMatrix base = gaussians(3000, 8, 113);
  const KnnOptions options{.threads = 2, .memory = 8 << 20, .first_pass = FirstPass::int8};
  const auto most = [](auto search) {
    try {
      search();
    } catch (const MemoryBudgetError& error) {
      return std::stol(std::string(error.what()).substr(std::strlen("more than ")));
    }
    return 0l;
  };
  const AnyMatrixView queries = base.view().rows(0, 100);
  const long here = most([&] { range_search(queries, base, 1e9, options); });
  const long device = most([&] { there(queries, base, 1e9, options); });
  EXPECT_GT(device, 0);
  EXPECT_GE(here - device, (8 << 20) / 8 * 3 / 64);
}

TEST(DeviceRangeSearch, TheReportSaysWhatWasDoneWhere) {
  const AnyMatrix whole = typed(ElementType::u8, 1500, 12, 121), floats = gaussians(1500, 12, 122);
  KnnReport report;
  const RangeNeighbors integers = there(whole.view().rows(0, 20), whole,
                                        distance_of(whole, whole, 30, Metric::l2), {}, &report);
  EXPECT_EQ(report.device.name, "cuda");
  EXPECT_EQ(report.method, "exact");
  EXPECT_EQ(report.scan.first_pass, "integer");
  EXPECT_EQ(report.k, 0);
  EXPECT_EQ(report.queries, 20);
  EXPECT_GT(report.device.bytes, 1500 * 12);
  EXPECT_EQ(report.scan.multiply_adds, 20.0 * 1500 * 12);
  EXPECT_EQ(report.scan.hits_per_query * 20, static_cast<double>(integers.ids.size()));
  EXPECT_EQ(report.scan.survivors_per_query, 0);
  EXPECT_EQ(report.promise.certified_queries, 20);
  EXPECT_GT(report.memory_bytes, 64 * std::ssize(integers.ids));
  const RangeNeighbors certified = there(floats.view().rows(0, 20), floats,
                                         distance_of(floats, floats, 30, Metric::l2), {}, &report);
  EXPECT_EQ(report.scan.first_pass, "int8");
  EXPECT_GE(report.scan.survivors_per_query * 20, static_cast<double>(certified.ids.size()));
  EXPECT_LT(report.scan.survivors_per_query * 20,
            3.0 * static_cast<double>(certified.ids.size()) + 100);
  EXPECT_EQ(report.scan.hits_per_query, report.scan.survivors_per_query);
}

TEST(DeviceRangeSearch, StopsOnRequest) {
  const AnyMatrix base = gaussians(1500, 4, 131), queries = gaussians(128, 4, 132);
  std::vector<double> fractions;
  std::int64_t last = 1000;
  KnnOptions options{.progress = [&](std::string_view stage, double fraction) {
    if (stage == "search") fractions.push_back(fraction);
    return std::ssize(fractions) < last;
  }};
  there(queries, base, 1e-3, options, nullptr, 1 << 20);
  ASSERT_GE(fractions.size(), 2u);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1);
  fractions.clear(), last = 2;
  EXPECT_THROW(there(queries, base, 1e-3, options, nullptr, 1 << 20), Cancelled);
  EXPECT_EQ(fractions.size(), 2u);
}

// Rows and queries that are already in the memory of the device.
TEST(DeviceRangeSearch, DeviceMemory) {
  const AnyMatrix floats = gaussians(1100, 20, 141), asked = gaussians(9, 20, 142);
  const AnyMatrix whole = typed(ElementType::u8, 1100, 20, 143),
                  whole_asked = typed(ElementType::u8, 9, 20, 144);
  const auto lent = [](HostQueue& queue, HostQueue::Array<unsigned char>& memory,
                       AnyMatrixView matrix) {
    const auto bytes =
        static_cast<std::size_t>(matrix.rows() * matrix.cols() * size_of(matrix.type()));
    memory = queue.allocate<unsigned char>(bytes);
    queue.upload(memory.data(), static_cast<const unsigned char*>(matrix.row(0)), bytes);
    queue.wait();
    detail::DeviceRowData<HostQueue> out;
    out.borrowed = memory.data(), out.type = matrix.type();
    out.count = matrix.rows(), out.dim = matrix.cols();
    return out;
  };
  for (const bool integer : {false, true})
    for (Metric metric : metrics) {
      const AnyMatrixView base = integer ? whole.view() : floats.view();
      const AnyMatrixView queries = integer ? whole_asked.view() : asked.view();
      const double radius = distance_of(queries, base, 25, metric);
      HostQueue lender(4);
      HostQueue::Array<unsigned char> rows_memory, queries_memory;
      const auto rows_on_device = lent(lender, rows_memory, base),
                 device_query_search = lent(lender, queries_memory, queries);
      const auto check = [&](KnnOptions options, std::int64_t fallback, std::size_t left,
                             const std::string& what) {
        SCOPED_TRACE(what + ", " + std::string(name_of(metric)) + (integer ? ", whole" : ""));
        auto borrowed = detail::DeviceRowData<HostQueue>{};
        borrowed.borrowed = rows_on_device.borrowed, borrowed.type = rows_on_device.type;
        borrowed.count = rows_on_device.count, borrowed.dim = rows_on_device.dim;
        HostQueue queue(3, 8 << 20);
        detail::DeviceBase<HostQueue> rows(queue, std::move(borrowed), metric);
        const auto filler = queue.allocate<char>(queue.free_bytes() - left);
        options.metric = metric;
        KnnOptions here = options;
        here.memory = 0;
        const RangeNeighbors truth = range_search(queries, base, radius, here);
        options.device = "cuda";
        for (int time = 0; time < 2; ++time) {
          KnnReport report;
          EXPECT_TRUE(same(rows.range_search(device_query_search, radius, options,
                                             detail::Reuse::expected, &report),
                           truth));
          EXPECT_EQ(report.scan.fallback_queries, fallback);
          EXPECT_EQ(report.device.name, "cuda");
          if (time == 1 && fallback == 0 && report.scan.chunks == 1) {
            EXPECT_EQ(report.prepare_seconds, 0);
          }
        }
      };
      check({}, 0, 4 << 20, "all");
      if (metric == Metric::ip) continue;
      check({.filter = every(3, 1, 1100)}, 0, 4 << 20, "filter");
      // Few rows are searched in a copy of all of them; so is everything where there is no room for
      // codes.
      check({.filter = every(40, 1, 1100)}, 9, 4 << 20, "few rows");
      check({}, 9, 1 << 10, "no room");
      check({.filter = every(3, 1, 1100)}, 9, 1 << 10, "no room, filter");
    }
  // A copy that comes in pieces, of rows whose ids are not their places in it.
  HostQueue lender(4);
  HostQueue::Array<unsigned char> rows_memory, queries_memory;
  const AnyMatrix many = gaussians(30000, 10, 145), some = gaussians(5, 10, 146);
  detail::DeviceBase<HostQueue> rows(HostQueue(3, 8 << 20), lent(lender, rows_memory, many),
                                     Metric::l2);
  const auto device_query_search = lent(lender, queries_memory, some);
  const double radius = distance_of(some, many, 4000, Metric::l2);
  int stages = 0;
  const KnnOptions options{.threads = 2,
                           .memory = 4 << 20,
                           .filter = every(40, 1, 30000),
                           .progress =
                               [&](std::string_view stage, double) {
                                 stages += stage == "search copy";
                                 return true;
                               },
                           .device = "cuda"};
  EXPECT_TRUE(
      same(rows.range_search(device_query_search, radius, options, detail::Reuse::none, nullptr),
           range_search(some, many, radius, {.filter = every(40, 1, 30000)})));
  EXPECT_GE(stages, 2);
}

TEST(DeviceRangeSearch, NothingIsIgnored) {
  const AnyMatrix x = gaussians(100, 8, 151);
  const auto refused = [&](KnnOptions options, const std::string& words) {
    expect_refused<InvalidArgument>([&] { there(x, x, 1, options); }, words);
  };
  refused({.first_pass = FirstPass::fp32}, "first_pass is fp32");
  refused({.first_pass = FirstPass::prefix}, "first_pass is prefix");
  refused({.first_pass = FirstPass::integer}, "first_pass is integer");
  refused({.tuning = {.group = 4}}, "group=4");
  refused({.tuning = {.guess = false}}, "guess=off");
  refused({.tuning = {.refine = true}}, "refine=on");
  const ExactSearcher searcher(x, {});
  for (const char* number : {"98", "99"}) {
    const KnnOptions options{.device = std::string("cuda:") + number};
    expect_refused<DeviceUnavailable>([&] { range_search(x, x, 1, options); }, number);
    expect_refused<DeviceUnavailable>([&] { searcher.range_search(x, 1, options); }, number);
  }
  expect_refused<InvalidArgument>([&] { range_search(x, x, 1, {.device = "gpu"}); },
                                  "device must be cpu, cuda or cuda:N");
  expect_refused<InvalidArgument>(
      [&] {
        range_search(x, x, 1, {.method = {.kind = Method::threshold_heap}, .device = "cuda:99"});
      },
      "method is threshold-heap, but a range search has only auto and exact");
}

}  // namespace
}  // namespace knear
