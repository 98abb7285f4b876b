// The selection of the TH-heap: the worked examples of Matsumoto and Yiu (2015), and random batches
// against a partial sort.
#include "knear/select/sort/compressed_batch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "knear/core/random.hpp"
#include "tests/select/select_cases.hpp"

namespace knear {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Examples 1 to 4: eight points and two queries in the plane, k = 3, points 1, 4, 5 and 6 sampled.
// Numbers of points count from 1, as printed.
constexpr int points = 8, queries = 2, k = 3;
constexpr double base[points][2] = {{0.4, 0.0}, {0.7, 0.1}, {1.0, 0.6}, {0.2, 0.7},
                                    {0.8, 0.5}, {0.3, 0.2}, {0.0, 1.0}, {0.9, 0.5}};
constexpr double query[queries][2] = {{0.7, 0.4}, {0.1, 0.5}};
constexpr int sampled[] = {1, 4, 5, 6};

// By a root, whose bits are the same from a compiler and from a library.
double distance(int q, int point) {
  const double x = query[q][0] - base[point - 1][0], y = query[q][1] - base[point - 1][1];
  return std::sqrt(x * x + y * y);
}
std::vector<double> distances(int q) {
  std::vector<double> out;
  for (int point = 1; point <= points; ++point) out.push_back(distance(q, point));
  return out;
}
std::vector<double> sample(int q) {
  std::vector<double> out;
  for (const int point : sampled) out.push_back(distance(q, point));
  return out;
}
// Equal to two decimals, as printed.
void expect_printed(const std::vector<double>& found, const std::vector<double>& printed) {
  ASSERT_EQ(found.size(), printed.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(std::round(found[i] * 100) / 100, printed[i]) << i;
}
std::vector<double> thresholds() {
  std::vector<double> space, out;
  for (int q = 0; q < queries; ++q)
    out.push_back(threshold_of_sample(sample(q).data(), 4, k, space));
  return out;
}
// Example 2, in tiles of so many columns.
CompressedBatch<double> example_batch(int columns) {
  CompressedBatch<double> batch;
  batch.start(queries);
  std::vector<double> all = distances(0);
  for (const double x : distances(1)) all.push_back(x);
  for (int begin = 0; begin < points; begin += columns)
    batch.compress({all.data() + begin, queries, std::min(columns, points - begin), points},
                   thresholds().data(), 1 + begin);
  batch.pad();
  return batch;
}
template <class T>
std::vector<T> row_of(MatrixView<T> matrix, std::int64_t row) {
  return {matrix.row(row), matrix.row(row) + matrix.cols()};
}

TEST(ThresholdHeapExamples, OneDistancesToTheSampleAndThresholds) {
  expect_printed(sample(0), {0.50, 0.58, 0.14, 0.45});
  expect_printed(sample(1), {0.58, 0.22, 0.70, 0.36});
  expect_printed(thresholds(), {0.50, 0.58});
  EXPECT_EQ(thresholds()[0], distance(0, 1));
  EXPECT_EQ(thresholds()[1], distance(1, 1));
}

TEST(ThresholdHeapExamples, TwoPrunedAndCompressed) {
  expect_printed(distances(0), {0.50, 0.30, 0.36, 0.58, 0.14, 0.45, 0.92, 0.22});
  expect_printed(distances(1), {0.58, 0.72, 0.91, 0.22, 0.70, 0.36, 0.51, 0.80});
  for (const int columns : {1, 2, 3, 7, 8}) {
    const CompressedBatch<double> batch = example_batch(columns);
    ASSERT_EQ(batch.rows(), 2);
    ASSERT_EQ(batch.width(), 6);
    EXPECT_EQ(batch.count(0), 6);
    EXPECT_EQ(batch.count(1), 4);
    // The first value of either row equals its threshold.
    expect_printed(row_of(batch.values(), 0), {0.50, 0.30, 0.36, 0.14, 0.45, 0.22});
    expect_printed(row_of(batch.values(), 1), {0.58, 0.22, 0.36, 0.51, infinity, infinity});
    EXPECT_EQ(row_of(batch.ids(), 0), (std::vector<std::int64_t>{1, 2, 3, 5, 6, 8}));
    EXPECT_EQ(row_of(batch.ids(), 1), (std::vector<std::int64_t>{1, 4, 6, 7, -1, -1}));
    EXPECT_EQ(compression_ratio(points, batch.width()), 8.0 / 6.0);
  }
}

// The heaps of the first three of the sample, and of all four.
TEST(ThresholdHeapExamples, ThreeTheHeapOfTheSample) {
  const double first_max[] = {0.58, 0.70};
  const std::vector<double> last[] = {{0.14, 0.45, 0.50}, {0.22, 0.36, 0.58}};
  for (int q = 0; q < queries; ++q) {
    const std::vector<double> row = sample(q);
    MinMaxHeap heap(std::vector<double>(row.begin(), row.begin() + k));
    expect_printed({heap.max()}, {first_max[q]});
    EXPECT_TRUE(heap.insert_replacing_max(row[3]));
    EXPECT_EQ(heap.max(), thresholds()[static_cast<std::size_t>(q)]);
    std::vector<double> kept;
    heap.take_sorted(std::back_inserter(kept));
    expect_printed(kept, last[q]);
  }
}

TEST(ThresholdHeapExamples, FourTheNeighbours) {
  const CompressedBatch<double> batch = example_batch(8);
  const std::vector<std::int64_t> neighbours[] = {{5, 8, 2}, {4, 6, 7}};
  const std::vector<double> printed[] = {{0.14, 0.22, 0.30}, {0.22, 0.36, 0.51}};
  std::vector<std::pair<double, std::int64_t>> space;
  std::vector<double> values(k), kth;
  std::vector<std::int64_t> ids(k);
  for (int q = 0; q < queries; ++q) {
    EXPECT_EQ(partial_heap_sort(batch.values().row(q), batch.ids().row(q), batch.count(q), k, space,
                                values.data(), ids.data()),
              k);
    EXPECT_EQ(ids, neighbours[q]);
    expect_printed(values, printed[q]);
    kth.push_back(values.back());
  }
  EXPECT_NEAR(threshold_ratio(kth.data(), thresholds().data(), 2),
              (std::sqrt(0.09) / 0.5 + std::sqrt(0.26) / std::sqrt(0.34)) / 2, 1e-12);
}

// Distances of a batch: one kind of row each, the same length.
template <class T>
std::vector<T> batch_of_all_kinds(std::int64_t n, std::uint64_t seed) {
  std::vector<T> out;
  for (const test::SelectKind kind : test::all_select_kinds)
    for (const float x : test::select_values(kind, n, seed)) out.push_back(static_cast<T>(x));
  return out;
}
constexpr std::int64_t kinds = std::size(test::all_select_kinds);

// Takes samples, prunes everything, sorts what is left, and expects the k smallest of the row.
template <class T, class Id>
void expect_the_smallest_of_batches(std::int64_t n, std::int64_t tile, std::uint64_t seed,
                                    CompressedBatch<T, Id>& batch) {
  Random random(seed);
  const std::vector<T> rows = batch_of_all_kinds<T>(n, seed);
  std::vector<std::int64_t> places(static_cast<std::size_t>(n));
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t i = places.size(); i-- > 1;) std::swap(places[i], places[random.below(i + 1)]);
  for (const std::int64_t wanted : {std::int64_t{1}, std::int64_t{5}, n / 8, n - 1, n, n + 3}) {
    if (wanted < 1) continue;
    const std::size_t n_sample = static_cast<std::size_t>(std::min(n, 8 * wanted));
    std::vector<T> limits, taken(n_sample), value_space;
    for (std::int64_t row = 0; row < kinds; ++row) {
      for (std::size_t i = 0; i < n_sample; ++i)
        taken[i] = rows[static_cast<std::size_t>(row * n + places[i])];
      limits.push_back(
          threshold_of_sample(taken.data(), std::int64_t(n_sample), wanted, value_space));
    }
    batch.start(kinds);
    for (std::int64_t begin = 0; begin < n; begin += tile)
      batch.compress({rows.data() + begin, kinds, std::min(tile, n - begin), n}, limits.data(),
                     static_cast<Id>(begin));
    batch.pad();
    std::vector<std::pair<T, Id>> space;
    std::vector<T> values(static_cast<std::size_t>(wanted));
    std::vector<Id> ids(values.size());
    std::int64_t longest = 0;
    for (std::int64_t row = 0; row < kinds; ++row) {
      std::vector<std::pair<T, Id>> all;
      std::vector<T> passed;
      for (std::int64_t i = 0; i < n; ++i) {
        const T x = rows[static_cast<std::size_t>(row * n + i)];
        if (x == x) all.emplace_back(x, Id(i));
        if (x <= limits[static_cast<std::size_t>(row)]) passed.push_back(x);
      }
      SCOPED_TRACE(testing::Message() << "n " << n << " tile " << tile << " k " << wanted << ' '
                                      << test::name_of(test::all_select_kinds[row]));
      const std::size_t count = passed.size();
      longest = std::max(longest, std::int64_t(count));
      ASSERT_EQ(batch.count(row), std::int64_t(count));
      const std::vector<T> compressed = row_of(batch.values(), row);
      const std::vector<Id> compressed_ids = row_of(batch.ids(), row);
      ASSERT_TRUE(std::equal(passed.begin(), passed.end(), compressed.begin()));
      for (std::size_t i = 0; i < compressed.size(); ++i) {
        if (i < count)
          ASSERT_EQ(compressed[i], rows[static_cast<std::size_t>(row * n + compressed_ids[i])]);
        else
          ASSERT_EQ(std::pair(compressed[i], compressed_ids[i]), std::pair(T(infinity), Id(-1)));
      }
      const std::size_t kept = std::min(all.size(), values.size());
      std::partial_sort(all.begin(), all.begin() + std::ptrdiff_t(kept), all.end());
      ASSERT_EQ(partial_heap_sort(batch.values().row(row), batch.ids().row(row), batch.count(row),
                                  wanted, space, values.data(), ids.data()),
                std::int64_t(kept));
      all.resize(kept);
      all.resize(values.size(), {T(infinity), Id(-1)});
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(std::pair(values[i], ids[i]), all[i]) << i;
    }
    ASSERT_EQ(batch.width(), longest);
  }
}

template <class T>
class ThresholdHeap : public testing::Test {};
using ValueAndId = testing::Types<std::pair<float, std::int64_t>, std::pair<double, std::int64_t>,
                                  std::pair<float, std::int32_t>>;
TYPED_TEST_SUITE(ThresholdHeap, ValueAndId);

TYPED_TEST(ThresholdHeap, OfRandomBatchesIsAPartialSort) {
  using T = typename TypeParam::first_type;
  using Id = typename TypeParam::second_type;
  CompressedBatch<T, Id> reused;  // longer and shorter rows after each other
  for (const std::int64_t n : {1, 2, 7, 64, 500, 3, 9000, 33})
    for (const std::int64_t tile : {std::int64_t{1}, std::int64_t{13}, n}) {
      if (n / tile > 1000) continue;
      CompressedBatch<T, Id> fresh;
      expect_the_smallest_of_batches<T, Id>(n, tile, std::uint64_t(n + tile), fresh);
      expect_the_smallest_of_batches<T, Id>(n, tile, std::uint64_t(n - tile), reused);
      if (this->HasFatalFailure()) return;
    }
}

TEST(CompressedBatch, KeepsEqualsAndNoNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double row[] = {1.0, 2.0, nan, -infinity, infinity, 1.5, -0.0, 0.0, -nan};
  const std::pair<double, std::vector<std::int64_t>> cases[] = {
      {1.5, {10, 13, 15, 16, 17}},
      {0.0, {13, 16, 17}},
      {-0.0, {13, 16, 17}},
      {-infinity, {13}},
      {infinity, {10, 11, 13, 14, 15, 16, 17}},
      {nan, {}}};
  for (const auto& [threshold, ids] : cases) {
    CompressedBatch<double> batch;
    batch.start(1);
    batch.compress({row, 1, std::size(row)}, &threshold, 10);
    batch.pad();
    EXPECT_EQ(row_of(batch.ids(), 0), ids) << threshold;
  }
}

TEST(CompressedBatch, OfNoRowsOrColumnsOrNothingKept) {
  CompressedBatch<float> batch;
  batch.start(0);
  batch.compress({nullptr, 0, 5}, nullptr, 0);
  batch.pad();
  EXPECT_EQ(batch.rows(), 0);
  EXPECT_EQ(batch.width(), 0);
  const float row[] = {5, 6}, limits[] = {1, 1, 1};
  batch.start(3);
  batch.pad();
  EXPECT_EQ(batch.width(), 0);
  for (int i = 0; i < 3; ++i) batch.compress({row, 3, 2, 0}, limits, 0);
  batch.pad();
  EXPECT_EQ(batch.width(), 0);
  EXPECT_EQ(compression_ratio(6, batch.width()), infinity);
  EXPECT_EQ(compression_ratio(0, 0), 1.0);
}

// Rows are moved apart when one of them grows: nothing of the others may be lost.
TEST(CompressedBatch, GrowsTileByTile) {
  constexpr std::int64_t rows = 5, tiles = 40, columns = 300;
  std::vector<float> tile(rows * columns);
  const std::vector<float> limits{-1, 1e9f, 2, 1e9f, 0};
  CompressedBatch<float> batch;
  batch.start(rows);
  for (std::int64_t t = 0; t < tiles; ++t) {
    for (std::int64_t i = 0; i < rows * columns; ++i) tile[std::size_t(i)] = float(i % columns % 7);
    batch.compress({tile.data(), rows, columns}, limits.data(), t * columns);
  }
  batch.pad();
  ASSERT_EQ(batch.width(), tiles * columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t found = 0;
    for (std::int64_t id = 0; id < tiles * columns; ++id)
      if (float(id % columns % 7) <= limits[std::size_t(row)]) {
        ASSERT_EQ(batch.ids().row(row)[found], id) << row;
        ASSERT_EQ(batch.values().row(row)[found++], float(id % columns % 7));
      }
    ASSERT_EQ(batch.count(row), found);
  }
}

TEST(PartialHeapSort, OrdersEqualsByIdInWhateverOrderTheyCome) {
  const std::vector<float> row(50, 2.0f);
  std::vector<std::int64_t> row_ids(50);
  for (std::int64_t i = 0; i < 50; ++i) row_ids[std::size_t(i)] = i * 37 % 50;
  std::vector<std::pair<float, std::int64_t>> space;
  std::vector<float> values(20);
  std::vector<std::int64_t> ids(20), smallest(20);
  std::iota(smallest.begin(), smallest.end(), 0);
  EXPECT_EQ(partial_heap_sort(row.data(), row_ids.data(), 50, 20, space, values.data(), ids.data()),
            20);
  EXPECT_EQ(ids, smallest);
}

TEST(PartialHeapSort, OfNothingOrNoneWanted) {
  std::vector<std::pair<float, std::int64_t>> space;
  float value = 3;
  std::int64_t id = 4;
  EXPECT_EQ(partial_heap_sort(&value, &id, 1, 0, space, static_cast<float*>(nullptr),
                              static_cast<std::int64_t*>(nullptr)),
            0);
  EXPECT_EQ(partial_heap_sort(static_cast<const float*>(nullptr),
                              static_cast<const std::int64_t*>(nullptr), 0, 1, space, &value, &id),
            0);
  EXPECT_EQ(id, -1);
  EXPECT_EQ(value, std::numeric_limits<float>::infinity());
}

TEST(ThresholdOfSample, IsTheKthNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double row[] = {nan, 4.0, 1.0, nan, 3.0, nan, 3.0, 2.0, nan};
  std::vector<double> space;
  const double expected[] = {1.0, 2.0, 3.0, 3.0, 4.0, infinity, infinity};
  for (std::int64_t wanted = 1; wanted <= 7; ++wanted)
    EXPECT_EQ(threshold_of_sample(row, 9, wanted, space), expected[wanted - 1]) << wanted;
  EXPECT_EQ(threshold_of_sample(row, 0, 1, space), infinity);
}

TEST(ThresholdRatio, IsAMeanAndEqualsCountOne) {
  const double kth[] = {1.0, 0.0, infinity, 3.0}, limits[] = {2.0, 0.0, infinity, 3.0};
  EXPECT_EQ(threshold_ratio(kth, limits, 1), 0.5);
  EXPECT_EQ(threshold_ratio(kth, limits, 4), 3.5 / 4);
  EXPECT_EQ(threshold_ratio(kth, limits, 0), 1.0);
  const double unbounded = infinity;  // too few in the sample for a threshold
  EXPECT_EQ(threshold_ratio(kth, &unbounded, 1), 0.0);
}

}  // namespace
}  // namespace knear
