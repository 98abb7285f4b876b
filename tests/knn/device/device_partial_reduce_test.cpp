// partial-reduce by a GPU, on the emulated one: the answer of the processor, to the bit, and what
// is said of it, whatever the bins drop.
#include "knear/knn/segment_search.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/scan/packing/interleaving.hpp"
#include "tests/knn/device/on_device.hpp"

namespace knear::detail {
namespace {

using test::search_on_device;

Matrix<float> gaussian(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                                       std::cos(6.283185307179586 * random.uniform()));
  return out;
}
Matrix<std::uint8_t> whole_numbers(std::int64_t rows, std::int64_t dim, int below,
                                   std::uint64_t seed) {
  Random random(seed);
  Matrix<std::uint8_t> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = static_cast<std::uint8_t>(random.below(static_cast<std::uint64_t>(below)));
  return out;
}

// Compares the device with the processor; returns the report of the device.
KnnReport expect_same(std::span<const SearchSegment> segments, AnyMatrixView queries,
                      std::int64_t k, Metric metric, const MethodOptions& method,
                      const std::string& what, Reuse reuse = Reuse::expected,
                      std::size_t device_bytes = std::size_t{1} << 40) {
  KnnOptions options{.metric = metric, .method = method};
  options.method.kind = Method::partial_reduce;
  KnnReport report, wanted;
  const Neighbors truth = search_segments(
      SearchRequest(SearchKind::nearest, segments, queries, k, options, reuse), &wanted);
  options.device = "cuda";
  const Neighbors found =
      search_on_device(HostQueue(7, device_bytes), segments, queries, k, options, reuse, &report);
  for (std::int64_t q = 0; q < queries.rows() && !testing::Test::HasFailure(); ++q)
    for (std::int64_t j = 0; j < k; ++j) {
      EXPECT_EQ(found.ids.row(q)[j], truth.ids.row(q)[j])
          << what << ", query " << q << ", place " << j;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(found.distances.row(q)[j]),
                std::bit_cast<std::uint32_t>(truth.distances.row(q)[j]))
          << what << ", query " << q << ", place " << j;
    }
  EXPECT_EQ(report.device.name, "cuda");
  EXPECT_EQ(report.method, "partial-reduce");
  EXPECT_EQ(report.promise.promised_recall, wanted.promise.promised_recall) << what;
  EXPECT_EQ(report.promise.expected_recall, wanted.promise.expected_recall) << what;
  EXPECT_EQ(report.promise.recall_argument, wanted.promise.recall_argument) << what;
  EXPECT_EQ(report.partial_reduce.bins, wanted.partial_reduce.bins) << what;
  EXPECT_EQ(report.partial_reduce.kept_per_bin, wanted.partial_reduce.kept_per_bin) << what;
  EXPECT_EQ(report.promise.certified_queries, wanted.promise.certified_queries) << what;
  EXPECT_EQ(report.partial_reduce.repaired_queries, wanted.partial_reduce.repaired_queries) << what;
  EXPECT_EQ(report.promise.uncertified, wanted.promise.uncertified) << what;
  EXPECT_EQ(report.queries, wanted.queries);
  EXPECT_EQ(report.allowed_rows, wanted.allowed_rows);
  return report;
}

constexpr double recalls[] = {0.5, 0.9, 0.95, 1};

TEST(DevicePartialReduce, FloatsAndWholeNumbers) {
  const auto floats = gaussian(4500, 12, 1), float_queries = gaussian(18, 12, 2);
  const auto whole = whole_numbers(4500, 12, 9, 3), whole_queries = whole_numbers(18, 12, 9, 4);
  for (const bool integer : {false, true})
    for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      const AnyMatrixView base = integer ? AnyMatrixView(whole.view()) : floats.view();
      const AnyMatrixView queries =
          integer ? AnyMatrixView(whole_queries.view()) : float_queries.view();
      PreparedRows rows(base, metric, find_value_range(base, metric, "base", 1));
      const SearchSegment segment{&rows};
      for (const double recall : recalls)
        for (std::int64_t k : {1, 30}) {
          const std::string what = std::string(name_of(metric)) + (integer ? ", integer" : "") +
                                   ", recall " + std::to_string(recall) + ", k " +
                                   std::to_string(k);
          const KnnReport report =
              expect_same({&segment, 1}, queries, k, metric, {.recall = recall}, what);
          EXPECT_EQ(report.scan.fallback_queries, 0) << what;
          EXPECT_EQ(report.partial_reduce.bins, 71) << what;
          if (HasFailure()) return;
        }
    }
}

// A base in which one bin holds so many of each query's nearest rows: query q has them in bin 5 q +
// 1 of the packed rows, which are one row in `every`.
Matrix<float> crowded(const Matrix<float>& queries, const Interleaving& interleaving,
                      std::int64_t every, std::int64_t together) {
  Matrix<float> out = gaussian(interleaving.rows * every, queries.cols(), 5);
  Random random(6);
  for (std::int64_t q = 0; q < queries.rows(); ++q)
    for (std::int64_t j = 0; j < together; ++j)
      for (std::int64_t c = 0; c < queries.cols(); ++c)
        out.row(every * interleaving.row(5 * q + 1, 2 * j))[c] =
            queries.row(q)[c] + static_cast<float>(0.1 * random.uniform());
  return out;
}

TEST(DevicePartialReduce, BinsThatDropRows) {
  constexpr std::int64_t n = 4096, bins = 64, count = 12;
  const auto queries = gaussian(count, 8, 7);
  int uncertified = 0;
  for (std::int64_t every : {1, 3})
    for (std::int64_t together : {3, 5, 7, 20}) {
      const auto base = crowded(queries, {n, bins}, every, together);
      PreparedRows rows(base.view(), Metric::l2,
                        find_value_range(base.view(), Metric::l2, "base", 1));
      std::vector<Id> ids;
      for (Id id = 0; id < n; ++id) ids.push_back(every * id);
      SearchSegment segment{&rows};
      if (every > 1) segment.filter = RowFilter::of_ids(ids, n * every);
      for (const double recall : {0.5, 0.95, 1.0})
        for (std::int64_t k : {4, 10}) {
          const std::string what = std::to_string(together) + " together, recall " +
                                   std::to_string(recall) + ", k " + std::to_string(k);
          const KnnReport report =
              expect_same({&segment, 1}, queries.view(), k, Metric::l2, {.recall = recall}, what);
          EXPECT_EQ(report.partial_reduce.bins, bins);
          // The device finds k and 8 more; all of them but the few that are kept are dropped.
          EXPECT_EQ(report.scan.fallback_queries, together == 20 ? count : 0) << what;
          if (report.partial_reduce.kept_per_bin < std::min(together, k)) {
            EXPECT_EQ(recall < 1 ? count - report.promise.certified_queries
                                 : report.partial_reduce.repaired_queries,
                      count)
                << what;
            ++uncertified;
          }
          if (HasFailure()) return;
        }
    }
  EXPECT_GE(uncertified, 24);
}

// Two segments with copies of the query in one bin, of which each keeps as many as the other: all
// of them are the k nearest, and what was dropped, at the same distance, comes after them by its
// id.
TEST(DevicePartialReduce, TiesBetweenSegments) {
  constexpr std::int64_t n = 4096;
  const Interleaving interleaving{n, 64};
  auto base = gaussian(n, 6, 18);
  const auto queries = gaussian(3, 6, 19);
  for (std::int64_t q = 0; q < 3; ++q)
    for (std::int64_t j = 9; j < 14; ++j)
      std::copy_n(queries.row(q), 6, base.row(interleaving.row(q, j)));
  PreparedRows rows(base.view(), Metric::l2, find_value_range(base.view(), Metric::l2, "base", 1));
  std::vector<Id> names[2];
  for (Id id = 0; id < n; ++id)
    for (int segment = 0; segment < 2; ++segment) names[segment].push_back(5 * id + segment);
  const SearchSegment segments[] = {{&rows, {0, names[0].data()}}, {&rows, {0, names[1].data()}}};
  const auto search = [&](std::int64_t k) {
    return expect_same(segments, queries.view(), k, Metric::l2, {.recall = 0.5}, std::to_string(k));
  };
  const std::int64_t all = 2 * search(4).partial_reduce.kept_per_bin;
  EXPECT_EQ(search(all).partial_reduce.kept_per_bin, all / 2);
  EXPECT_EQ(search(all).scan.fallback_queries, 0);
  EXPECT_EQ(search(all).promise.certified_queries, 3);
  EXPECT_EQ(search(all + 1).promise.certified_queries, 0);
}

// Segments of several sizes, one of them measured without codes, with ids of their own; rows that
// were removed; filters that make the processor pack all rows, or those that are allowed.
TEST(DevicePartialReduce, SegmentsFiltersAndRemovedRows) {
  const auto queries = gaussian(15, 10, 8);
  const std::int64_t sizes[] = {3000, 200, 2300};
  std::vector<Matrix<float>> bases;
  std::vector<std::unique_ptr<PreparedRows>> rows;
  std::vector<std::vector<Id>> names;
  for (int segment = 0; segment < 3; ++segment) {
    bases.push_back(gaussian(sizes[segment], 10, 20 + static_cast<std::uint64_t>(segment)));
    rows.push_back(std::make_unique<PreparedRows>(
        bases.back().view(), Metric::cosine,
        find_value_range(bases.back().view(), Metric::cosine, "base", 1)));
    names.emplace_back();
    for (std::int64_t i = 0; i < sizes[segment]; ++i) names.back().push_back(3 * i + segment);
  }
  for (const int every : {1, 2, 3, 20})
    for (const bool removed : {false, true}) {
      Random random(30);
      std::vector<SearchSegment> segments;
      std::vector<RowSet> live(3);
      for (int segment = 0; segment < 3; ++segment) {
        const std::int64_t n = sizes[segment];
        SearchSegment one{rows[segment].get(), {0, names[segment].data()}};
        if (removed) {
          live[segment] = RowSet(n);
          for (std::int64_t row = 0; row < n; ++row)
            if (every > 1 && random.below(static_cast<std::uint64_t>(every)) != 0)
              live[segment].remove(row);
          one.live = &live[segment];
        } else if (every > 1) {
          std::vector<Id> ids;
          for (Id id = segment; id < n; id += every) ids.push_back(id);
          one.filter = RowFilter::of_ids(ids, n);
        }
        segments.push_back(one);
      }
      for (const double recall : {0.5, 1.0})
        for (std::int64_t k : {10, 100}) {
          const std::string what = "every " + std::to_string(every) + (removed ? ", removed" : "") +
                                   ", recall " + std::to_string(recall) + ", k " +
                                   std::to_string(k);
          expect_same(segments, queries.view(), k, Metric::cosine, {.recall = recall}, what);
          if (HasFailure()) return;
        }
    }
  expect_same({}, queries.view(), 3, Metric::cosine, {.recall = 0.9}, "no segments");
}

TEST(DevicePartialReduce, FewRowsAndManyNeighbours) {
  for (std::int64_t n : {1, 255, 256, 2100}) {
    const auto base = gaussian(n, 5, 9), queries = gaussian(3, 5, 10);
    PreparedRows rows(base.view(), Metric::l2,
                      find_value_range(base.view(), Metric::l2, "base", 1));
    const SearchSegment segment{&rows};
    for (const double recall : {0.5, 0.99})
      for (std::int64_t k : {1, 40, 2050})
        for (std::int64_t logical : {std::int64_t{0}, 50 * n}) {
          expect_same({&segment, 1}, queries.view(), k, Metric::l2,
                      {.recall = recall, .partial_reduce = {.logical_rows = logical}},
                      std::to_string(n) + " rows, k " + std::to_string(k));
          if (HasFailure()) return;
        }
  }
}

// Equal rows in bins of their own, zero queries, and a base for one search.
TEST(DevicePartialReduce, CopiesAndZeroQueries) {
  auto base = gaussian(3000, 6, 11);
  for (std::int64_t i = 0; i < 3000; ++i) std::copy_n(base.row(i % 37), 6, base.row(i));
  auto queries = gaussian(5, 6, 12);
  std::fill_n(queries.row(2), 6, 0.0f);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const Reuse reuse : {Reuse::expected, Reuse::none}) {
      PreparedRows rows(base.view(), metric, find_value_range(base.view(), metric, "base", 1));
      const SearchSegment segment{&rows};
      for (const double recall : recalls)
        expect_same({&segment, 1}, queries.view(), 10, metric, {.recall = recall},
                    std::string(name_of(metric)) + ", recall " + std::to_string(recall), reuse);
    }
}

TEST(DevicePartialReduce, ADeviceWithoutMemory) {
  const auto base = gaussian(3000, 16, 13), queries = gaussian(9, 16, 14);
  PreparedRows rows(base.view(), Metric::l2, find_value_range(base.view(), Metric::l2, "base", 1));
  const SearchSegment segment{&rows};
  const KnnReport report = expect_same({&segment, 1}, queries.view(), 10, Metric::l2,
                                       {.recall = 0.9}, "no memory", Reuse::expected, 50 << 10);
  EXPECT_EQ(report.scan.fallback_queries, 9);
}

// The rows that stay on a device serve partial-reduce and exact searches.
TEST(DevicePartialReduce, RowsStayOnTheDevice) {
  const auto base = gaussian(3000, 6, 15), queries = gaussian(4, 6, 16);
  PreparedRows rows(base.view(), Metric::l2, find_value_range(base.view(), Metric::l2, "base", 1));
  const SearchSegment segment{&rows};
  const KnnOptions options{.device = "cuda"};
  KnnReport report;
  search_on_device(HostQueue(7), {&segment, 1}, queries.view(), 5, options, Reuse::expected,
                   &report);
  EXPECT_GT(report.prepare_seconds, 0);
  report = expect_same({&segment, 1}, queries.view(), 5, Metric::l2, {.recall = 0.9}, "kept");
  EXPECT_EQ(report.prepare_seconds, 0);
  EXPECT_EQ(report.scan.first_pass, "int8");
  EXPECT_GT(report.scan.survivors_per_query, 4);
}

TEST(DevicePartialReduce, NothingIsIgnored) {
  const auto base = gaussian(600, 4, 17);
  PreparedRows rows(base.view(), Metric::l2, find_value_range(base.view(), Metric::l2, "base", 1));
  const SearchSegment segment{&rows};
  const auto expect_refused = [&](KnnOptions options, const std::string& words) {
    options.device = "cuda:3";
    options.method.kind = Method::partial_reduce;
    for (const std::size_t segments : {std::size_t{0}, std::size_t{1}}) try {
        search_on_device(HostQueue(7), {&segment, segments}, base.view(), 3, options,
                         Reuse::expected);
        ADD_FAILURE() << "not refused: " << words;
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()), words);
      }
  };
  expect_refused({.method = {.partial_reduce = {.aggregate = false}}},
                 "aggregate is off, but device is cuda:3, which keeps no bins");
  expect_refused(
      {.memory = 1 << 30},
      "memory is limited to 1073741824 bytes, but method is partial-reduce and device is "
      "cuda:3, where it has bins of whole chunks alone");
  expect_refused({.first_pass = FirstPass::fp32},
                 "first_pass is fp32, but device is cuda:3, which has auto, integer and int8");
  expect_refused({.tuning = {.group = 4}},
                 "choices say group=4, but device is cuda:3, which makes none");
}

}  // namespace
}  // namespace knear::detail
