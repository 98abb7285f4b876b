// The scan on the emulated GPU: the same bits as the reference, whatever the data, and each kernel
// by itself against plain arithmetic.
#include "knear/scan/device/device_scan.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/cost/device_cost_model.hpp"
#include "knear/cost/device_plan.hpp"
#include "knear/distance/reference.hpp"
#include "tests/scan/device/vector_kinds.hpp"
#include "tests/simt/emulated_launches.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

struct Shape {
  std::int64_t rows, queries, dim, k;
};

// Searches on the emulated device and compares with the reference; returns how many queries were
// not answered.
std::int64_t expect_exact(AnyMatrixView base, AnyMatrixView queries, std::int64_t k, Metric metric,
                          std::uint64_t seed, const std::string& what) {
  const ValueRange of_base = find_value_range(base, Metric::l2, "base", 1),
                   of_queries = find_value_range(queries, Metric::l2, "queries", 1);
  const bool integer = metric != Metric::cosine && of_base.integer && of_queries.integer &&
                       (of_base.low >= 0 || of_base.high <= 127) &&
                       (of_queries.low >= 0 || of_queries.high <= 127);
  const BaseRows rows = base;
  HostQueue queue(seed);
  DeviceScan<HostQueue> scan(queue, coding_of(rows, metric, integer, of_base, 3 + 5 * (seed % 3)),
                             upload_rows(queue, rows, {}, 1, 4096), 1);
  ExactNeighbors out(queries.rows(), k);
  std::vector<std::int64_t> which(static_cast<std::size_t>(queries.rows()));
  std::iota(which.begin(), which.end(), 0);
  DeviceStats stats;
  const auto left = scan.run(queries, which, of_queries, k, out, stats, 200, {});
  std::vector<bool> answered(which.size(), true);
  for (const std::int64_t query : left) answered[static_cast<std::size_t>(query)] = false;
  const Neighbors truth = reference_knn(queries, base, k, metric);
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    if (!answered[static_cast<std::size_t>(q)]) continue;
    for (std::int64_t j = 0; j < k; ++j) {
      EXPECT_EQ(out.ids.row(q)[j], truth.ids.row(q)[j])
          << what << ", query " << q << ", place " << j;
      if (out.ids.row(q)[j] != no_id) {
        EXPECT_EQ(static_cast<float>(distance_of_key(metric, out.keys.row(q)[j])),
                  truth.distances.row(q)[j])
            << what << ", query " << q << ", place " << j;
      }
      if (testing::Test::HasFailure()) return 0;
    }
  }
  return std::ssize(left);
}

// Every kind by every metric, or where each takes long one metric, in turn.
void expect_exact_floats(Shape s, std::uint64_t seed, bool every_metric = true) {
  for (Kind kind : {Kind::uniform, Kind::clustered, Kind::sorted, Kind::copies, Kind::sizes,
                    Kind::outlier, Kind::zeros})
    for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      if (!every_metric && static_cast<int>(kind) % 3 != static_cast<int>(metric)) continue;
      Random random(seed);
      const auto base = vectors<float>(kind, s.rows, s.dim, random);
      const auto queries = vectors<float>(kind, s.queries, s.dim, random);
      const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + ", " +
                               std::string(name_of(metric)) + ", seed " + std::to_string(seed);
      const std::int64_t left =
          expect_exact(base.view(), queries.view(), s.k, metric, seed++, what);
      EXPECT_EQ(left, 0) << what;
      if (testing::Test::HasFailure()) return;
    }
}
TEST(DeviceScan, FloatsOfAllKindsAndMetrics) { expect_exact_floats({500, 5, 33, 10}, 1); }
TEST(DeviceScan, FloatsInSeveralBlocks) { expect_exact_floats({700, 130, 17, 3}, 101, false); }

// More queries than a block, which the device codes, in batches of 200: so the last one is of less
// than a block where there are 300. Each pair of types has one metric, in turn.
TEST(DeviceScan, EveryElementTypeInSeveralBlocks) {
  std::uint64_t seed = 31;
  const auto check = [&](auto of_base, auto of_queries) {
    Random random(seed);
    const auto base =
        vectors<std::remove_cvref_t<decltype(of_base)>>(Kind::uniform, 260, 21, random);
    const auto queries =
        vectors<std::remove_cvref_t<decltype(of_queries)>>(Kind::uniform, 300, 21, random);
    const Metric metric = std::array{Metric::l2, Metric::ip, Metric::cosine}[++seed % 3];
    EXPECT_EQ(expect_exact(base.view(), queries.view(), 5, metric, seed, "type"), 0);
  };
  check(float{}, double{});
  check(float{}, f16{});
  check(std::uint8_t{}, float{});
  check(std::int8_t{}, bf16{});
  check(bf16{}, bf16{});
  check(double{}, float{});
  check(double{}, double{});
  check(f16{}, std::uint8_t{});
  check(std::uint8_t{}, std::uint8_t{});
  check(std::uint8_t{}, std::int8_t{});
  check(std::int8_t{}, std::uint8_t{});
  check(std::int8_t{}, std::int8_t{});
}

TEST(DeviceScan, EveryElementType) {
  Random random(3);
  const auto check = [&](auto element) {
    using T = decltype(element);
    const auto base = vectors<T>(Kind::uniform, 500, 40, random);
    const auto queries = vectors<float>(Kind::uniform, 7, 40, random);
    for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      EXPECT_EQ(expect_exact(base.view(), queries.view(), 10, metric, 5, "type"), 0);
  };
  check(float{});
  check(f16{});
  check(bf16{});
  check(std::uint8_t{});
  check(std::int8_t{});
}

TEST(DeviceScan, WholeNumbersWithAndWithoutSign) {
  std::uint64_t seed = 1;
  for (Kind kind : {Kind::uniform, Kind::copies, Kind::sorted, Kind::zeros})
    for (Metric metric : {Metric::l2, Metric::ip}) {
      Random random(seed);
      const auto u8 = vectors<std::uint8_t>(kind, 900, 50, random);
      const auto i8 = vectors<std::int8_t>(kind, 900, 50, random);
      const auto u8_queries = vectors<std::uint8_t>(kind, 9, 50, random);
      const auto i8_queries = vectors<std::int8_t>(kind, 9, 50, random);
      EXPECT_EQ(expect_exact(u8.view(), u8_queries.view(), 10, metric, ++seed, "u8 u8"), 0);
      EXPECT_EQ(expect_exact(u8.view(), i8_queries.view(), 10, metric, ++seed, "u8 i8"), 0);
      EXPECT_EQ(expect_exact(i8.view(), u8_queries.view(), 10, metric, ++seed, "i8 u8"), 0);
      EXPECT_EQ(expect_exact(i8.view(), i8_queries.view(), 10, metric, ++seed, "i8 i8"), 0);
    }
}

// Sizes around those of warps, panels, tiles, slices and lists; more neighbours than rows.
TEST(DeviceScan, ShapesAroundTheEdges) {
  std::uint64_t seed = 100;
  for (Shape s :
       {Shape{1, 1, 1, 1}, Shape{31, 2, 4, 40}, Shape{32, 128, 32, 5}, Shape{33, 129, 31, 1},
        Shape{127, 3, 64, 127}, Shape{128, 127, 65, 33}, Shape{129, 1, 96, 128},
        Shape{260, 32, 70, 3}, Shape{260, 33, 70, 3}, Shape{640, 257, 8, 2},
        Shape{3000, 2, 5, 1000}, Shape{200, 4, 3, 1024}, Shape{400, 3, 900, 10}}) {
    Random random(seed);
    const auto base = vectors<float>(Kind::uniform, s.rows, s.dim, random);
    const auto queries = vectors<float>(Kind::uniform, s.queries, s.dim, random);
    const auto whole = vectors<std::uint8_t>(Kind::uniform, s.rows, s.dim, random);
    const auto whole_queries = vectors<std::uint8_t>(Kind::uniform, s.queries, s.dim, random);
    const std::string what = std::to_string(s.rows) + " x " + std::to_string(s.dim) + ", " +
                             std::to_string(s.queries) + " queries, k " + std::to_string(s.k);
    EXPECT_EQ(expect_exact(base.view(), queries.view(), s.k, Metric::l2, ++seed, what), 0);
    EXPECT_EQ(expect_exact(whole.view(), whole_queries.view(), s.k, Metric::l2, ++seed, what), 0);
    if (HasFailure()) return;
  }
}

// More neighbours than a warp has registers for, up to more than all rows; ties and copies.
TEST(DeviceScan, AnyNumberOfNeighbours) {
  std::uint64_t seed = 300;
  for (Kind kind : {Kind::uniform, Kind::copies, Kind::zeros})
    for (Shape s : {Shape{4000, 2, 7, 1025}, Shape{4000, 2, 7, 2500}, Shape{2600, 2, 7, 2600},
                    Shape{1500, 2, 7, 4000}, Shape{3000, 2, 7, 257}}) {
      if (kind == Kind::zeros && s.k > 1025) continue;
      Random random(seed);
      const auto base = vectors<float>(kind, s.rows, s.dim, random);
      const auto queries = vectors<float>(kind, s.queries, s.dim, random);
      const auto whole = vectors<std::uint8_t>(kind, s.rows, s.dim, random);
      const auto whole_queries = vectors<std::uint8_t>(kind, s.queries, s.dim, random);
      const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + ", " +
                               std::to_string(s.rows) + " rows, k " + std::to_string(s.k);
      const Metric metric = seed % 2 ? Metric::l2 : Metric::ip;
      EXPECT_EQ(expect_exact(base.view(), queries.view(), s.k, metric, ++seed, what), 0) << what;
      EXPECT_EQ(expect_exact(whole.view(), whole_queries.view(), s.k, metric, ++seed, what), 0)
          << what;
      if (HasFailure()) return;
    }
}

// Lists as a scan leaves them, of every length around those of warps, blocks and tiles: the
// threshold, which is the k-th of the certain ends, and the remaining entries, against sorting.
TEST(DeviceScan, LongListsAreBroughtUpToDate) {
  Random random(14);
  constexpr int room = 3000;
  const std::uint32_t no_row = DeviceBaseView::no_row;
  std::vector<std::uint32_t> ids(room), squares(room);
  std::vector<std::int32_t> sums(room);
  for (int slot = 0; slot < room; ++slot)
    ids[slot] = random.below(9) == 0 ? no_row : static_cast<std::uint32_t>(slot);
  DeviceBaseView base{};
  base.ids = ids.data(), base.row_squares = squares.data(), base.row_sums = sums.data();
  base.integer = base.l2 = true;
  const double infinity = std::numeric_limits<double>::infinity();
  for (int count : {0, 1, 31, 33, 511, 512, 513, 2047, 2048, 2049, 3000, 3001})
    for (int k : {1, 20, 500, 2500, -1, 0})  // the last: as many as there are, one more
      for (int spread : {1, 50, 100000, 0}) {
        // The last case: keys at which buckets of the digits begin.
        const double start = spread == 0 ? 0 : 1000;
        for (std::uint32_t& x : squares)
          x = static_cast<std::uint32_t>(spread == 0 ? (1 + random.below(6)) << 14
                                                     : random.below(100000));
        std::vector<int> order(room);
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t i = room; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
        std::vector<Entry> entries(room);
        std::vector<double> keys(room), rows;
        const int held = std::min(count, room);
        for (int i = 0; i < held; ++i) {
          const auto slot = static_cast<std::uint32_t>(order[static_cast<std::size_t>(i)]);
          entries[i] = {slot, static_cast<std::int32_t>(random.below(spread + 1))};

          if (ids[slot] != no_row) rows.push_back(start + squares[slot] - 2.0 * entries[i].score);
        }
        const int wanted = k > 0 ? k : std::max<int>(1, static_cast<int>(rows.size()) + 1 + k);
        const DeviceQuery query{0, 0, start, 0, 0};
        const double scale = 1;
        double threshold = random.below(2) ? infinity : 40000;
        int counts = count, lost = 0;
        std::sort(rows.begin(), rows.end());
        double bound = threshold;
        if (std::ssize(rows) >= wanted)
          bound = std::min(bound, rows[static_cast<std::size_t>(wanted - 1)]);
        const std::vector<Entry> before = entries;
        const DeviceQueryView queries{nullptr, &scale, &query, &threshold, 1, 1, false};
        const DeviceLists lists{entries.data(), keys.data(), &counts, &lost, room};
        HostQueue queue(random.below(1000));
        using Kernel = UpdateLongLists<HostThread>;
        launch(queue, Grid{1, Kernel::shared_bytes}, Kernel{base, queries, lists, wanted});
        const std::string what = std::to_string(count) + " entries, k " + std::to_string(wanted) +
                                 ", spread " + std::to_string(spread);
        ASSERT_EQ(threshold, bound) << what;
        ASSERT_EQ(lost, count > room) << what;
        int kept = 0;
        for (int i = 0; i < held; ++i) {
          if (ids[before[i].slot] == no_row ||
              start + squares[before[i].slot] - 2.0 * before[i].score > bound)
            continue;
          ASSERT_LT(kept, counts) << what;
          ASSERT_EQ(entries[kept].slot, before[i].slot) << what;
          ASSERT_EQ(entries[kept++].score, before[i].score) << what;
        }
        ASSERT_EQ(counts, kept) << what;
      }
}

// The thread that writes the new threshold and count waits for those that read them.
TEST(DeviceScan, EmptyListsKeepTheirThresholds) {
  DeviceBaseView base{};
  base.integer = base.l2 = true;
  const DeviceQuery query[2] = {};
  const double scale[2] = {1, 1};
  for (int k : {1, 100, 2000}) {
    double thresholds[2] = {40000, std::numeric_limits<double>::infinity()};
    int counts[2] = {0, 0}, lost[2] = {0, 0};
    HostQueue queue(static_cast<std::uint64_t>(k));
    launch_update(queue, base, {nullptr, scale, query, thresholds, 2, 1, false},
                  {nullptr, nullptr, counts, lost, 100}, k);
    EXPECT_EQ(thresholds[0], 40000);
    EXPECT_EQ(thresholds[1], std::numeric_limits<double>::infinity());
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(counts[i], 0);
      EXPECT_EQ(lost[i], 0);
    }
  }
}

// Keys of both signs, many of them equal, and ids of all sizes.
TEST(DeviceScan, LongListsAreSortedByKeyAndId) {
  Random random(15);
  constexpr int room = 2100, count = 7;
  std::vector<std::uint32_t> ids(room);
  for (int slot = 0; slot < room; ++slot)
    ids[slot] = static_cast<std::uint32_t>((slot * 2654435761u) >> 1);
  DeviceBaseView base{};
  base.ids = ids.data();
  for (int k : {300, 2500})
    for (double step : {0.0, 1.0, 1e-3}) {
      std::vector<Entry> entries(room * count), spare_entries(room * 2);
      std::vector<double> keys(room * count), spare_keys(room * 2);
      std::vector<int> counts{0, 1, 32, 513, 2048, 2049, 2100};
      std::vector<std::vector<std::pair<double, std::int64_t>>> truth(count);
      for (int place = 0; place < count; ++place) {
        for (int i = 0; i < counts[place]; ++i) {
          const double key = step == 0 ? 7 : step * (static_cast<double>(random.below(400)) - 200);
          entries[place * room + i].slot = static_cast<std::uint32_t>(room - 1 - i);
          keys[place * room + i] = random.below(50) == 0 && key == 0 ? -0.0 : key;
          truth[place].emplace_back(key, ids[room - 1 - i]);
        }
        std::sort(truth[place].begin(), truth[place].end());
      }
      const DeviceLists lists{entries.data(), keys.data(), counts.data(), nullptr, room};
      const SpareLists spare{spare_keys.data(), spare_entries.data(), 2};
      std::vector<double> out_keys(static_cast<std::size_t>(k * count), -5);
      std::vector<std::int64_t> out_ids(out_keys.size(), -5);
      HostQueue queue(random.below(1000));
      using Kernel = SortLists<HostThread>;
      launch(queue, Grid{2, Kernel::shared_bytes},
             Kernel{base, lists, spare, out_keys.data(), out_ids.data(), k, count});
      for (int place = 0; place < count; ++place)
        for (int i = 0; i < k; ++i) {
          const bool has = i < counts[place];
          ASSERT_EQ(out_keys[place * k + i],
                    has ? truth[place][i].first : std::numeric_limits<double>::infinity())
              << k << ", " << step << ", " << place << ", " << i;
          ASSERT_EQ(out_ids[place * k + i], has ? truth[place][i].second : -1)
              << k << ", " << step << ", " << place << ", " << i;
        }
    }
}

// More rows tie with the k-th than fit a list of a large batch of queries.
TEST(DeviceScan, EveryRowTies) {
  Random random(9);
  const auto one = vectors<float>(Kind::uniform, 1, 6, random);
  Matrix<float> base(2500, 6);
  for (std::int64_t i = 0; i < base.rows(); ++i) std::copy_n(one.row(0), 6, base.row(i));
  const auto queries = vectors<float>(Kind::uniform, 3, 6, random);
  EXPECT_EQ(expect_exact(base.view(), queries.view(), 5, Metric::l2, 1, "copies"), 0);
}

// Thresholds are stored as floats: rounded to the side that keeps more.
TEST(DeviceScan, ThresholdsAreRoundedToTheSafeSide) {
  Random random(12);
  for (int i = 0; i < 100000; ++i) {
    const double x = (random.uniform() - 0.5) * std::pow(10.0, 60 * random.uniform() - 30);
    const float above = float_not_below(x);
    ASSERT_GE(static_cast<double>(above), x);
    ASSERT_LT(static_cast<double>(std::nextafter(above, -INFINITY)), x);
  }
  EXPECT_EQ(float_not_below(1e300), INFINITY);
  EXPECT_EQ(float_not_below(-1e300), -std::numeric_limits<float>::max());
  EXPECT_EQ(float_not_below(0.0), 0.0f);
}

TEST(DeviceScan, KeysOfNumbersAreInTheirOrder) {
  const double numbers[] = {-INFINITY, -1e300, -2, -1.5,  -1e-320, 0,
                            1e-320,    1.5,    2,  1e300, INFINITY};
  for (std::size_t i = 1; i < std::size(numbers); ++i)
    EXPECT_LT(ordered_key(numbers[i - 1]), ordered_key(numbers[i]));
  EXPECT_EQ(ordered_key(-0.0), ordered_key(0.0));
  for (float x : {-INFINITY, -1e30f, -1.0f, 0.0f, 1e-40f, 3.25f, INFINITY})
    EXPECT_EQ(number_of_key(ordered_key(x, 0)), x);
}

// Fragments of the tensor cores: each place holds one step of one row, and each step has one place.
TEST(DeviceScan, PlacesOfCodesAreThoseOfTheFragments) {
  std::vector<int> used(3 * panel_slice_bytes / 4);
  for (std::int64_t step = 0; step < 3 * slice_steps; ++step)
    for (int row = 0; row < panel_rows; ++row) {
      const std::int64_t place = panel_place(step, row);
      ASSERT_EQ(place % 4, 0);
      ++used.at(static_cast<std::size_t>(place / 4));
      // PTX: a0, a1 are columns 0 to 15 of rows g and g + 8, a2, a3 columns 16 to 31.
      const int lane = static_cast<int>(place % 512 / 16), word = static_cast<int>(place % 16 / 4);
      EXPECT_EQ(lane / 4 + word % 2 * 8 + place % panel_slice_bytes / 512 * 16, row);
      EXPECT_EQ(lane % 4 + word / 2 * 4 + place / panel_slice_bytes * slice_steps, step);
    }
  for (int count : used) ASSERT_EQ(count, 1);
  used.assign(3 * block_slice_bytes / 4, 0);
  for (std::int64_t step = 0; step < 3 * slice_steps; ++step)
    for (int query = 0; query < block_queries; ++query) {
      const std::int64_t place = block_place(step, query);
      ++used.at(static_cast<std::size_t>(place / 4));
      const int lane = static_cast<int>(place % 512 / 16), word = static_cast<int>(place % 16 / 4);
      EXPECT_EQ(lane / 4 + word / 2 * 8 + place % block_slice_bytes / 512 * 16, query);
      EXPECT_EQ(lane % 4 + word % 2 * 4 + place / block_slice_bytes * slice_steps, step);
    }
  for (int count : used) ASSERT_EQ(count, 1);
}

// A limited search finds what the processor finds with the same filter, with proportionally more
// panels in its first step.
TEST(DeviceScan, LimitedToSomeRows) {
  constexpr std::int64_t n = 9600, k = 10, count = 129;  // more than a block of queries
  Random random(13);
  const auto rows = vectors<float>(Kind::uniform, n, 12, random);
  const auto queries = vectors<float>(Kind::uniform, count, 12, random);
  const BaseRows base = rows.view();
  const Coding coding = coding_of(base, Metric::l2, false, {}, 100);
  ASSERT_EQ(coding.panels(), 300);
  HostQueue queue(1);
  DeviceScan<HostQueue> scan(queue, coding, upload_rows(queue, base, {}, 1), 1);
  std::vector<std::int64_t> which(count);
  std::iota(which.begin(), which.end(), 0);
  const auto steps_of = [&](std::int64_t every) {
    std::vector<Id> ids;
    for (Id id = 0; id < n; id += every) ids.push_back(id);
    const RowFilter filter = RowFilter::of_ids(ids, n);
    const AllowedRows allowed{.filter = &filter};
    ExactNeighbors out(count, k);
    DeviceStats stats;
    const auto left =
        scan.run(queries.view(), which, find_value_range(queries.view(), Metric::l2, "queries", 1),
                 k, out, stats, 256, {}, {}, allowed);
    EXPECT_TRUE(left.empty());
    Matrix<float> some(std::ssize(ids), 12);
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::copy_n(rows.row(ids[i]), 12, some.row(static_cast<std::int64_t>(i)));
    const Neighbors truth = reference_knn(queries.view(), some.view(), k, Metric::l2);
    for (std::int64_t q = 0; q < count; ++q)
      for (std::int64_t j = 0; j < k; ++j)
        EXPECT_EQ(out.ids.row(q)[j], ids[static_cast<std::size_t>(truth.ids.row(q)[j])])
            << "every " << every << ", query " << q;
    return stats.steps;
  };
  EXPECT_EQ(steps_of(1), 4);  // 16, 64, 256, 300 panels
  EXPECT_EQ(steps_of(3), 3);  // 48, 192, 300
  EXPECT_EQ(steps_of(8), 2);  // 128, 300
}

// Full lists are made as long as necessary: for some queries and not for others, for more of them
// than a block, together or one by one, with upper bounds from elsewhere, with allowed rows only;
// also for whole numbers that are alike. Queries for which there is no memory are returned.
TEST(DeviceScan, FullListsAreMadeAgain) {
  constexpr std::int64_t n = 2400, dim = 5, count = 135, k = 4;
  Random random(15);
  // Most rows are so close together that their codes are alike; some queries are near them.
  Matrix<float> rows(n, dim), queries(count, dim);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      rows.row(i)[j] =
          static_cast<float>(i % 16 == 0 ? 300 * random.uniform() : 100 + 1e-4 * random.uniform());
  Matrix<std::uint8_t> alike(n, dim), whole(count, dim);
  for (std::int64_t i = 0; i < n; ++i) alike.row(i)[0] = i % 16 == 0 ? 9 : 1;
  std::vector<Id> ids;
  for (Id id = 0; id < n; ++id)
    if (id % 40 > 0) ids.push_back(id);
  const RowFilter filter = RowFilter::of_ids(ids, n);
  std::vector<std::int64_t> which(count);
  std::iota(which.begin(), which.end(), 0);
  constexpr std::size_t any = std::size_t{1} << 40;

  struct Case {
    std::int64_t every;  // how many queries are not near for one that is
    bool integer;
    bool upper_bounds, limited;
    std::size_t most_bytes;
    std::int64_t left;
  };
  for (const Case& c :
       {Case{40, false, false, true, 100 << 10, 0}, Case{40, false, true, false, 60 << 10, 4},
        Case{40, true, false, false, any, 0}, Case{1, false, true, true, any, 0}}) {
    const std::int64_t near = (count + c.every - 1) / c.every;
    // About where the mean is, too: then a threshold that was reached is far from any key.
    const float centre = c.every == 1 ? 103 : 100;
    for (std::int64_t q = 0; q < count; ++q) {
      for (std::int64_t j = 0; j < dim; ++j)
        queries.row(q)[j] = q % c.every == 0 ? centre + 1e-3f * static_cast<float>(q)
                                             : 300 + static_cast<float>(q + j);
      whole.row(q)[0] = q % c.every == 0 ? 2 : 9;
    }
    const AnyMatrixView base = c.integer ? AnyMatrixView(alike.view()) : rows.view();
    const AnyMatrixView asked = c.integer ? AnyMatrixView(whole.view()) : queries.view();
    const std::string what = std::string(c.integer ? "integer, " : "") + "every " +
                             std::to_string(c.every) + ", bytes " + std::to_string(c.most_bytes);
    const Neighbors truth = reference_knn(asked, base, 2 * k, Metric::l2);
    HostQueue queue(2);
    DeviceScan<HostQueue> scan(
        queue,
        coding_of(base, Metric::l2, c.integer, find_value_range(base, Metric::l2, "base", 1), 20),
        upload_rows(queue, base, {}, 1), 1);
    std::vector<double> upper_bounds;
    for (std::int64_t q = 0; q < count && c.upper_bounds; ++q)
      upper_bounds.push_back(double{truth.distances.row(q)[k - 1]} * 1.001);
    const AllowedRows allowed = c.limited ? AllowedRows{.filter = &filter} : AllowedRows{};
    ExactNeighbors out(count, k);
    DeviceStats stats;
    const auto left = scan.run(asked, which, find_value_range(asked, Metric::l2, "queries", 1), k,
                               out, stats, 256, {}, upper_bounds, allowed, c.most_bytes);
    EXPECT_EQ(stats.repeated, near) << what;
    EXPECT_EQ(std::ssize(left), c.left) << what;
    for (std::int64_t q = 0; q < count; ++q) {
      if (std::count(left.begin(), left.end(), q) > 0) continue;
      for (std::int64_t j = 0, at = 0; j < k; ++j, ++at) {
        while (!allowed(truth.ids.row(q)[at])) ++at;
        EXPECT_EQ(out.ids.row(q)[j], truth.ids.row(q)[at]) << what << ", query " << q;
        EXPECT_EQ(static_cast<float>(distance_of_key(Metric::l2, out.keys.row(q)[j])),
                  truth.distances.row(q)[at])
            << what << ", query " << q;
      }
    }
  }
}

// A queue that has no pinned memory once, after so many arrays of it.
struct OnceWithoutPinned : HostQueue {
  using HostQueue::HostQueue;
  int before = -1;  // below 0: it always has

  template <class T>
  HostArray<T> allocate_host(std::size_t size) {
    if (before-- == 0) throw MemoryBudgetError("no pinned memory");
    return HostQueue::allocate_host<T>(size);
  }
};

// Then a batch is searched anew, in smaller ones. What was noted of it does not count twice, and a
// query whose list was full is not searched twice for that.
TEST(DeviceScan, WithoutPinnedMemoryNothingIsDoneTwice) {
  constexpr std::int64_t n = 3200, dim = 2, count = 260, k = 20, near = 13;
  Matrix<std::uint8_t> rows(n, dim), queries(count, dim);
  for (std::int64_t i = 0; i < n; ++i) rows.row(i)[0] = i % 4 == 0 ? 9 : 1;
  for (std::int64_t q = 0; q < count; ++q) queries.row(q)[0] = q % 20 == 0 ? 2 : 9;
  const BaseRows base = rows.view();
  const ValueRange found = find_value_range(rows.view(), Metric::l2, "rows", 1);
  const Neighbors truth = reference_knn(queries.view(), rows.view(), k, Metric::l2);
  OnceWithoutPinned queue(3);
  DeviceScan<OnceWithoutPinned> scan(queue, coding_of(base, Metric::l2, true, found, 20),
                                     upload_rows(queue, base, {}, 1), 1);
  std::vector<std::int64_t> which(count);
  std::iota(which.begin(), which.end(), 0);
  std::int64_t survivors = 0;
  // Never; instead of the heads of the answers; instead of the second piece of them.
  for (const int before : {-1, 1, 3}) {
    queue.before = before;
    ExactNeighbors out(count, k);
    DeviceStats stats;
    const auto left = scan.run(queries.view(), which, found, k, out, stats, count, {}, {}, {},
                               std::size_t{1} << 40, 4096);
    EXPECT_LT(queue.before, 0);  // it did happen
    EXPECT_TRUE(left.empty());
    EXPECT_EQ(stats.repeated, near) << before;
    if (before < 0) survivors = stats.survivors;
    EXPECT_EQ(stats.survivors, survivors) << before;
    for (std::int64_t q = 0; q < count; ++q)
      for (std::int64_t j = 0; j < k; ++j)
        ASSERT_EQ(out.ids.row(q)[j], truth.ids.row(q)[j]) << before << ", query " << q;
  }
}

// By what a query is reckoned to take the number at a time is chosen.
TEST(DeviceScan, TakesTheMemoryThatItReckonsWith) {
  constexpr std::int64_t count = 300, dim = 160, k = 2;
  Random random(19);
  const auto check = [&](const auto& rows, const auto& queries, Metric metric) {
    const BaseRows base = rows.view();
    HostQueue queue(7);
    DeviceScan<HostQueue> scan(queue, coding_of(base, metric, false, {}, 1),
                               upload_rows(queue, base, {}, 1), 1);
    const std::size_t free = queue.free_bytes();
    const std::size_t before = (std::size_t{1} << 40) - free;
    ASSERT_LT(queue.most_bytes_in_use(), before + (100 << 10));
    std::vector<std::int64_t> which(count);
    std::iota(which.begin(), which.end(), 0);
    const std::vector<double> upper_bounds(count, std::numeric_limits<double>::infinity());
    ExactNeighbors out(count, k);
    DeviceStats stats;
    scan.run(queries.view(), which, {}, k, out, stats, count, {}, upper_bounds);
    EXPECT_EQ(queue.free_bytes(), free);
    const auto most = static_cast<std::int64_t>(queue.most_bytes_in_use() - before);
    const std::int64_t each = scan.bytes_for_query(k, scan.room_for(k), false);
    EXPECT_LE(most, count * each + 8 * dim) << name_of(metric);
    EXPECT_GE(most, count * each / 2) << name_of(metric);
  };
  for (Metric metric : {Metric::l2, Metric::cosine}) {
    check(vectors<float>(Kind::uniform, 32, dim, random),
          vectors<double>(Kind::uniform, count, dim, random), metric);
    check(vectors<float>(Kind::uniform, 32, dim, random),
          vectors<float>(Kind::uniform, count, dim, random), metric);
  }
}

// Few queries have longer lists and fewer steps, where there is memory for that.
TEST(DeviceScan, FewQueries) {
  constexpr std::int64_t n = 6400, k = 10, count = 3;
  Random random(16);
  const auto rows = vectors<float>(Kind::uniform, n, 12, random);
  const auto queries = vectors<float>(Kind::uniform, count, 12, random);
  const BaseRows base = rows.view();
  const Neighbors truth = reference_knn(queries.view(), rows.view(), k, Metric::l2);
  HostQueue queue(3, 4 << 20);
  DeviceScan<HostQueue> scan(queue, coding_of(base, Metric::l2, false, {}, 100),
                             upload_rows(queue, base, {}, 1), 1);
  std::vector<std::int64_t> which(count);
  std::iota(which.begin(), which.end(), 0);
  const auto steps = [&](std::size_t most_bytes) {
    ExactNeighbors out(count, k);
    DeviceStats stats;
    const auto left =
        scan.run(queries.view(), which, find_value_range(queries.view(), Metric::l2, "queries", 1),
                 k, out, stats, 128, {}, {}, {}, most_bytes);
    EXPECT_TRUE(left.empty());
    for (std::int64_t q = 0; q < count; ++q)
      for (std::int64_t j = 0; j < k; ++j) EXPECT_EQ(out.ids.row(q)[j], truth.ids.row(q)[j]);
    return stats.steps;
  };
  EXPECT_EQ(steps(1 << 20), 2);    // 16, 200 panels, with lists of 6400
  EXPECT_EQ(steps(160 << 10), 3);  // 16, 64, 200, with lists of 2128
  const auto filler = queue.allocate<char>(queue.free_bytes() - (160 << 10));
  EXPECT_EQ(steps(1 << 20), 3);
}

// The model of costs (knear/cost/device_plan.hpp) reckons with these shapes, and foresees the
// steps.
TEST(DeviceScan, ThePlanKnowsItsShapeAndSteps) {
  using Many = ScanPanels<HostThread, true, false>;
  using Few = ScanFew<HostThread, few_queries, true, false>;
  using Fewest = ScanFew<HostThread, fewest_queries, true, false>;
  EXPECT_EQ(ScanForm::tile_rows, Many::tile_rows);
  EXPECT_EQ(ScanForm::warps, Many::threads / warp_size);
  EXPECT_EQ(ScanForm::kept_slices, Many::stage_slices);
  EXPECT_EQ(ScanForm::resident_blocks, Many::resident_blocks);
  EXPECT_EQ(ScanForm::few_warps, Few::warps);
  EXPECT_EQ(ScanForm::tile_rows, Few::warps * panel_rows);
  EXPECT_EQ(ScanForm::resident_few_blocks, Few::resident_blocks);
  EXPECT_EQ(ScanForm::few_queries, few_queries);
  EXPECT_EQ(ScanForm::fewest_queries, fewest_queries);
  EXPECT_EQ(ScanForm::block_queries, block_queries);
  EXPECT_EQ(ScanForm::slice_columns, slice_bytes);
  EXPECT_EQ(ScanForm::most_kept_bytes, most_kept_bytes);
  EXPECT_EQ(ScanForm::few_ring_bytes, Few::shared_bytes(0));
  EXPECT_EQ(ScanForm::few_ring_bytes + 7 * 32 * few_queries, Few::shared_bytes(7));
  EXPECT_EQ(ScanForm::few_ring_bytes + 7 * 32 * fewest_queries, Fewest::shared_bytes(7));
  // A warp's products are those of its pairs, 32 columns at a time.
  const double tile_pairs = Many::tile_rows * block_queries;
  EXPECT_EQ(scan_loop(90, 128, true, false).products * ScanForm::warps * 16 * 8, tile_pairs);
  EXPECT_EQ(scan_loop(90, 32, true, false).products * ScanForm::few_warps * 16 * 8, tile_pairs / 4);
  EXPECT_EQ(scan_loop(90, 8, true, false).products * ScanForm::few_warps * 16 * 8, tile_pairs / 16);

  constexpr std::int64_t n = 6400, k = 10;
  Random random(16);
  const auto rows = vectors<float>(Kind::uniform, n, 12, random);
  const auto queries = vectors<float>(Kind::uniform, 130, 12, random);
  HostQueue queue(3, 64 << 20);
  const BaseRows base = rows.view();
  DeviceScan<HostQueue> scan(queue, coding_of(base, Metric::l2, false, {}, 100),
                             upload_rows(queue, base, {}, 1), 1);
  const DevicePeaks gpu = peaks_of({"some", 8, 0, 100, 1e9, 1e12, 1e10});
  for (const std::int64_t count : {3, 130}) {
    std::vector<std::int64_t> which(static_cast<std::size_t>(count));
    std::iota(which.begin(), which.end(), 0);
    ExactNeighbors out(130, k);
    DeviceStats stats;
    scan.run(queries.view(), which, find_value_range(queries.view(), Metric::l2, "queries", 1), k,
             out, stats, 256, {});
    const DeviceCost cost =
        predict_on_device({.rows = n, .dim = 12, .queries = count, .k = k, .resident = true}, gpu,
                          estimated_peaks(Isa::avx2, 2));
    EXPECT_EQ(cost.steps, stats.steps) << count << " queries";
  }
}

// All pairs as they are stored for few queries, beside those that pass where no threshold is known:
// the same scores of the same rows, in whatever order.
TEST(DeviceScan, AllPairsOfTheFirstStep) {
  Random random(37);
  const auto whole = vectors<std::int8_t>(Kind::uniform, 700, 70, random);
  const auto floats = vectors<float>(Kind::uniform, 700, 70, random);
  for (const bool integer : {true, false})
    for (const std::int64_t count : {1, 8, 9, 32}) {
      if (test::small() && integer != (count % 2 == 0)) continue;
      const AnyMatrixView rows = integer ? AnyMatrixView(whole.view()) : floats.view();
      const ValueRange found = find_value_range(rows, Metric::l2, "rows", 1);
      HostQueue queue(static_cast<std::uint64_t>(41 + count));
      DeviceScan<HostQueue> scan(queue, coding_of(BaseRows(rows), Metric::l2, integer, found, 2),
                                 upload_rows(queue, BaseRows(rows), {}, 1), 1);
      const DeviceBaseView base = scan.base();
      std::vector<std::int64_t> which(static_cast<std::size_t>(count));
      std::iota(which.begin(), which.end(), 11);
      const DeviceQueries coded = device_queries(scan.packed(), rows, which, found, 1);
      auto queries =
          scan.upload_queries(coded, std::vector<double>(which.size(), integer ? 1e30 : -1e30));
      for (const std::int64_t panels : {std::int64_t{1}, std::int64_t{6}, base.panels}) {
        const std::int64_t room = base.panels * panel_rows;
        const auto pairs = [&](auto scan_into) {
          auto entries = queue.allocate<Entry>(which.size() * static_cast<std::size_t>(room));
          auto counts = queue.allocate<int>(which.size());
          queue.fill_bytes(counts.data(), 0, which.size());
          scan_into(
              DeviceLists{entries.data(), nullptr, counts.data(), nullptr, static_cast<int>(room)});
          queue.wait();
          std::vector<std::vector<std::pair<std::uint32_t, std::int32_t>>> out(which.size());
          for (std::size_t q = 0; q < which.size(); ++q) {
            for (int i = 0; i < counts.data()[q]; ++i) {
              const Entry& entry =
                  entries.data()[q * static_cast<std::size_t>(room) + static_cast<std::size_t>(i)];
              if (base.ids[entry.slot] != DeviceBaseView::no_row)
                out[q].emplace_back(entry.slot, entry.score);
            }
            std::sort(out[q].begin(), out[q].end());
          }
          return out;
        };
        const auto passed = pairs([&](const DeviceLists& lists) {
          launch_scan(queue, base, queries.view(0, count), lists, 0, panels);
        });
        const auto stored = pairs([&](const DeviceLists& lists) {
          launch_scan_of_all(queue, base, queries.view(0, count), lists, panels);
        });
        // By one block, so that a warp has many panels.
        const auto by_few_warps = pairs([&](const DeviceLists& lists) {
          with_scan_form<HostThread, false>(base, count, [&](auto form) {
            using Kernel = typename decltype(form)::type;
            Kernel kernel{};
            kernel.base = base, kernel.queries = queries.view(0, count), kernel.lists = lists;
            kernel.end = static_cast<int>(panels), kernel.splits = 1;
            launch(queue, Grid{1, Kernel::shared_bytes(base.slices)}, kernel);
          });
        });
        ASSERT_EQ(stored, passed) << count << " queries, " << panels << " panels";
        ASSERT_EQ(by_few_warps, passed) << count << " queries, " << panels << " panels";
        ASSERT_GT(passed[0].size(), 0u);
      }
    }
}

// What the scan's inner loop takes of shared memory, where no row passes: wavefronts of a warp for
// each tile, of few queries for each panel. A multiprocessor has one a cycle, and of many queries
// that is what limits the scan (docs/measurements/gpu.md): so this fails where it takes more.
template <class Kernel>
double wavefronts_of_warp(const DeviceBaseView& base, const DeviceQueryView& queries,
                          std::uint64_t seed) {
  constexpr int fewer = 16, more = 48;  // panels: 4 tiles or 12
  std::int64_t taken[2];
  for (const int panels : {fewer, more}) {
    HostQueue queue(seed);
    std::vector<int> counts(static_cast<std::size_t>(queries.count));
    Kernel kernel{};
    kernel.base = base, kernel.queries = queries;
    kernel.lists = {nullptr, nullptr, counts.data(), nullptr, 0};
    kernel.end = panels, kernel.splits = 1;
    const CountSharedAccesses counted;
    launch(queue, Grid{1, Kernel::shared_bytes(base.slices)}, kernel);
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 0), std::ssize(counts));
    taken[panels == more] = counted.all();
  }
  const bool tiles = Kernel::threads == 256;
  return static_cast<double>(taken[1] - taken[0]) / ((more - fewer) / 4. * (tiles ? 8 : 4));
}

// Few queries that are in the memory of the device, of which an index knows keys from rows
// elsewhere: a quarter of the rows is the first step then, more than a list has room for.
TEST(DeviceScan, FewQueriesThereOfWhichKeysAreKnown) {
  constexpr std::int64_t rows = 8'600, dim = 8, k = 4, count = 5;
  Random random(77);
  const auto base = vectors<float>(Kind::uniform, rows, dim, random);
  const auto queries = vectors<float>(Kind::uniform, count, dim, random);
  const Neighbors truth = reference_knn(queries.view(), base.view(), k, Metric::l2);
  const ValueRange found = find_value_range(queries.view(), Metric::l2, "queries", 1);
  const BaseRows all = AnyMatrixView(base.view());
  HostQueue queue(5);
  DeviceScan<HostQueue> scan(queue, coding_of(all, Metric::l2, false, found, 8),
                             upload_rows(queue, all, {}, 1), 1);
  ASSERT_GT(scan.packed().panels() / 4 * panel_rows, scan.room_for(k));
  DeviceRowData<HostQueue> asked;
  asked.borrowed = queries.data(), asked.count = count, asked.dim = dim;
  std::vector<double> bounds;
  for (std::int64_t q = 0; q < count; ++q)
    bounds.push_back(2 * double{truth.distances.row(q)[k - 1]});
  DeviceStats stats;
  std::int64_t answered = 0;
  // Within so few bytes that lists are of the usual length.
  const auto left = scan.run_on_device(
      asked, found, k, stats, 128, {}, bounds.data(), {}, 1, [&](const FoundOnDevice& there) {
        for (std::int64_t place = 0; place < there.count; ++place) {
          if (there.lost[place] != 0) continue;
          const std::int64_t q = there.first + (there.order ? there.order[place] : place);
          ++answered;
          for (std::int64_t j = 0; j < k; ++j)
            EXPECT_EQ(there.rows[place * k + j], truth.ids.row(q)[j]) << q << ", " << j;
        }
      });
  EXPECT_EQ(left, std::vector<std::int64_t>{});
  EXPECT_EQ(answered, count);
}

TEST(DeviceScan, WavefrontsOfSharedMemory) {
  Random random(43);
  for (const std::int64_t dim : {96, 128, 160}) {
    const auto whole = vectors<std::int8_t>(Kind::uniform, 48 * panel_rows, dim, random);
    const auto floats = vectors<float>(Kind::uniform, 48 * panel_rows, dim, random);
    const auto count = [&](bool integer, std::int64_t queries, auto form) {
      const AnyMatrixView rows = integer ? AnyMatrixView(whole.view()) : floats.view();
      const ValueRange found = find_value_range(rows, Metric::l2, "rows", 1);
      HostQueue queue(5);
      DeviceScan<HostQueue> scan(queue, coding_of(BaseRows(rows), Metric::l2, integer, found, 4),
                                 upload_rows(queue, BaseRows(rows), {}, 1), 1);
      std::vector<std::int64_t> which(static_cast<std::size_t>(queries));
      std::iota(which.begin(), which.end(), 0);
      const DeviceQueries coded = device_queries(scan.packed(), rows, which, found, 1);
      auto there =
          scan.upload_queries(coded, std::vector<double>(which.size(), integer ? -1e9 : 1e9));
      queue.wait();
      return wavefronts_of_warp<typename decltype(form)::type>(scan.base(), there.view(0, queries),
                                                               7);
    };
    const auto many = [&](auto keep, auto integer) {
      return count(integer, 128,
                   std::type_identity<ScanPanels<HostThread, keep.value, integer.value>>{});
    };
    const auto held = [&](auto integer) {
      return count(integer, 128,
                   std::type_identity<ScanPanels<HostThread, true, integer.value, false, true>>{});
    };
    const auto few = [&](auto queries, auto integer) {
      return count(integer, queries,
                   std::type_identity<ScanFew<HostThread, queries.value, true, integer.value>>{});
    };
    constexpr std::integral_constant<int, 8> eight;
    constexpr std::integral_constant<int, 32> thirty_two;
    // Of many queries: 6 fragments of 512 bytes and a copy of as many for each slice of 32 columns,
    // two of these where queries pass through the ring too, and 34 for all else of a tile. What an
    // H100's profiler counted of 128 columns was 146.
    const double slices = static_cast<double>(dim) / 32, ring = (24 + 8) * slices + 34;
    if (dim <= 128) {
      EXPECT_NEAR(many(std::true_type{}, std::false_type{}), (24 + 4) * slices + 34, 0.5) << dim;
      EXPECT_NEAR(many(std::true_type{}, std::true_type{}), (24 + 4) * slices + 17.5, 0.5) << dim;
    }
    // With the queries in registers 4 of the 6 fragments, and limits by four at a time.
    if (dim <= 128) {
      EXPECT_NEAR(held(std::false_type{}), (16 + 4) * slices + 22, 0.5) << dim;
      EXPECT_NEAR(held(std::true_type{}), (16 + 4) * slices + 13.5, 0.5) << dim;
    }
    EXPECT_NEAR(many(std::false_type{}, std::false_type{}), ring, 0.5) << dim;
    EXPECT_NEAR(many(std::false_type{}, std::true_type{}), ring - 16.5, 0.5) << dim;
    // Of few queries, for a panel: its copies and fragments, and those of 8 queries or 32.
    EXPECT_EQ(few(eight, std::false_type{}), (8 + 8 + 2) * slices) << dim;
    EXPECT_EQ(few(eight, std::true_type{}), (8 + 8 + 2) * slices) << dim;
    EXPECT_EQ(few(thirty_two, std::false_type{}), (8 + 8 + 8) * slices) << dim;
    EXPECT_EQ(few(thirty_two, std::true_type{}), (8 + 8 + 8) * slices) << dim;
  }
}

// The form that holds queries in registers lets the same pairs pass as the usual one.
TEST(DeviceScan, QueriesHeldInRegisters) {
  Random random(47);
  for (const std::int64_t dim : {20, 64, 96, 128})
    for (const bool integer : {true, false}) {
      if (test::small() && integer != (dim == 20 || dim == 128)) continue;
      const auto whole = vectors<std::int8_t>(Kind::uniform, 700, dim, random);
      const auto floats = vectors<float>(Kind::uniform, 700, dim, random);
      const AnyMatrixView rows = integer ? AnyMatrixView(whole.view()) : floats.view();
      const ValueRange found = find_value_range(rows, Metric::l2, "rows", 1);
      HostQueue queue(static_cast<std::uint64_t>(dim));
      DeviceScan<HostQueue> scan(queue, coding_of(BaseRows(rows), Metric::l2, integer, found, 2),
                                 upload_rows(queue, BaseRows(rows), {}, 1), 1);
      const DeviceBaseView base = scan.base();
      constexpr std::int64_t count = 150;
      std::vector<std::int64_t> which(count);
      std::iota(which.begin(), which.end(), 0);
      const DeviceQueries coded = device_queries(scan.packed(), rows, which, found, 1);
      // About one row in seven is as near.
      const Neighbors near = reference_knn(rows.rows(0, count), rows, 100, Metric::l2);
      std::vector<double> bounds(static_cast<std::size_t>(rows.rows()));
      for (std::int64_t q = 0; q < count; ++q) {
        const double distance = near.distances.row(q)[99];
        bounds[static_cast<std::size_t>(q)] = order_key(Metric::l2, distance);
      }
      auto queries = scan.upload_queries(coded, scan.thresholds_for(coded, bounds));
      const std::int64_t room = base.panels * panel_rows;
      const auto pairs = [&](auto scan_into) {
        auto entries = queue.allocate<Entry>(static_cast<std::size_t>(count * room));
        auto counts = queue.allocate<int>(count);
        queue.fill_bytes(counts.data(), 0, count);
        scan_into(
            DeviceLists{entries.data(), nullptr, counts.data(), nullptr, static_cast<int>(room)});
        queue.wait();
        std::vector<std::tuple<std::int64_t, std::uint32_t, std::int32_t>> out;
        for (std::int64_t q = 0; q < count; ++q)
          for (int i = 0; i < counts.data()[q]; ++i)
            out.emplace_back(q, entries.data()[q * room + i].slot,
                             entries.data()[q * room + i].score);
        std::sort(out.begin(), out.end());
        return out;
      };
      const auto usual = pairs([&](const DeviceLists& lists) {
        launch_scan(queue, base, queries.view(0, count), lists, 0, base.panels);
      });
      const auto held = pairs([&](const DeviceLists& lists) {
        const auto with = [&](auto of) {
          using Kernel = ScanPanels<HostThread, true, of.value, false, true>;
          Kernel kernel{};
          kernel.base = base, kernel.queries = queries.view(0, count), kernel.lists = lists;
          kernel.end = static_cast<int>(base.panels), kernel.splits = 2;
          launch(queue, Grid{2 * kernel.queries.blocks, Kernel::shared_bytes(base.slices)}, kernel);
        };
        if (integer)
          with(std::true_type{});
        else
          with(std::false_type{});
      });
      ASSERT_EQ(held, usual) << dim << " columns";
      ASSERT_GE(usual.size(), 100u * count);
      ASSERT_LT(usual.size(), 500u * count);
    }
}

// Rounds of few queries: all blocks of a round have as much to do, and warps have no panels only
// where there are too few.
TEST(DeviceScan, FewQueriesInWholeRounds) {
  for (const std::int64_t resident : {15, 660})
    for (const std::int64_t panels : {1, 3, 4, 128, 6528, 100000, 312500, 10000000}) {
      const std::int64_t splits = few_scan_splits(panels, resident, 4);
      ASSERT_GE(splits, 1);
      EXPECT_LE(splits, std::max<std::int64_t>(1, panels / 4));
      if (panels >= 4 * resident) {
        EXPECT_EQ(splits % resident, 0);
      }
      if (splits > resident) {
        EXPECT_GE(panels, splits * 4 * 8);
      }
      EXPECT_LE(splits, 8 * resident);
    }
  EXPECT_EQ(few_scan_splits(312500, 660, 4), 8 * 660);
}

// Slots without a row, of which each tile may have 31, are not pairs: as whole numbers they would
// be nearer than all rows, and fill the lists of a long base.
TEST(DeviceScan, SlotsWithoutARowAreNoPairs) {
  Random random(17);
  const auto whole = vectors<std::int8_t>(Kind::uniform, 70, 4, random);
  const auto floats = vectors<float>(Kind::uniform, 70, 4, random);
  for (const bool integer : {true, false}) {
    const AnyMatrixView rows = integer ? AnyMatrixView(whole.view()) : floats.view();
    const ValueRange found = find_value_range(rows, Metric::l2, "rows", 1);
    HostQueue queue(5);
    DeviceScan<HostQueue> scan(queue, coding_of(BaseRows(rows), Metric::l2, integer, found, 2),
                               upload_rows(queue, BaseRows(rows), {}, 1), 1);
    ASSERT_EQ(scan.base().panels, 4);  // 128 slots
    const std::vector<std::int64_t> which{3, 5};
    const DeviceQueries coded = device_queries(scan.packed(), rows, which, found, 1);
    const double all = integer ? 1e30 : -1e30;  // every pair passes
    const std::vector<double> thresholds{all, all};
    auto queries = scan.upload_queries(coded, thresholds);
    auto entries = queue.allocate<Entry>(2 * 200);
    auto counts = queue.allocate<int>(2);
    queue.fill_bytes(counts.data(), 0, 2);
    launch_scan(queue, scan.base(), queries.view(0, 2),
                {entries.data(), nullptr, counts.data(), nullptr, 200}, 0, 4);
    queue.wait();
    EXPECT_EQ(counts.data()[0], 70);
    EXPECT_EQ(counts.data()[1], 70);
  }
}

// Each block of queries has panels of its own, as the queries of inverted lists have; one launch
// does them all.
TEST(DeviceScan, TheLastRoundOfBlocksIsFull) {
  for (const std::int64_t resident : {6, 264, 396})
    for (const std::int64_t blocks : {1, 2, 7, 79, 264, 300, 1000, 5000})
      for (const std::int64_t most : {1, 2, 9, 100, 40000}) {
        const std::int64_t splits = scan_splits(blocks, resident, most, 5);
        ASSERT_GE(splits, 1);
        ASSERT_LE(splits, most);
        const double rounds = double(blocks * splits) / double(resident);
        if (splits > 1) {
          EXPECT_LE(rounds, 12);
        }
        if (rounds < 4 && blocks * most >= 5 * resident)
          ADD_FAILURE() << blocks << " " << resident << " " << most << ": " << rounds;
        // With room for any number of splits the last round is nearly full.
        if (most == 40000 && blocks <= 79 && resident > 100) {
          EXPECT_GT(rounds / std::ceil(rounds), 0.97) << blocks << " " << resident;
        }
      }
  EXPECT_EQ(scan_splits(79, 264, 1000, 5), 20);  // 5.98 rounds, where 27 would take 8.08
}

TEST(DeviceScan, TasksOfATable) {
  Random random(23);
  const auto rows = vectors<std::int8_t>(Kind::uniform, 1500, 12, random);
  const auto asked = vectors<std::int8_t>(Kind::uniform, 300, 12, random);
  const BaseRows base = rows.view();
  const ValueRange found = find_value_range(rows.view(), Metric::l2, "rows", 1);
  for (const bool integer : {true, false}) {
    HostQueue queue(29);
    DeviceScan<HostQueue> scan(queue, coding_of(base, Metric::l2, integer, found, 2),
                               upload_rows(queue, base, {}, 1), 1);
    const DeviceBaseView view = scan.base();
    std::vector<std::int64_t> which(300);
    std::iota(which.begin(), which.end(), 0);
    const DeviceQueries coded = device_queries(scan.packed(), asked.view(), which, found, 1);
    // Every pair passes.
    auto queries = scan.upload_queries(coded, std::vector<double>(300, integer ? 1e30 : -1e30));
    const int panels = static_cast<int>(view.panels), blocks = static_cast<int>(queries.blocks);
    ASSERT_GE(blocks, 3);
    std::vector<DeviceTask> table;
    for (int block = 0; block < blocks; ++block)
      for (int place = 0; place < panels;) {
        const int end = std::min(panels, place + 1 + static_cast<int>(random.below(9)));
        if (random.below(3) > 0) table.push_back({block, place, end});
        place = end;
      }
    for (std::size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[random.below(i)]);
    table.push_back({0, 5, 5});  // one without panels
    const std::int64_t room = panels * panel_rows;
    auto entries = queue.allocate<Entry>(static_cast<std::size_t>(300 * room));
    auto counts = queue.allocate<int>(300);
    queue.fill_bytes(counts.data(), 0, 300);
    std::vector<std::int32_t> places(static_cast<std::size_t>(blocks) * block_queries, -1);
    std::iota(places.begin(), places.begin() + 300, 0);
    launch_scan_tasks(queue, view, queries.view(0, 300),
                      {entries.data(), nullptr, counts.data(), nullptr, static_cast<int>(room)},
                      {table.data(), std::ssize(table), places.data(), block_queries});
    queue.wait();
    for (std::int64_t q = 0; q < 300; ++q) {
      std::vector<std::uint32_t> wanted, got;
      for (const DeviceTask& task : table)
        for (int place = task.begin; task.query_block == q / block_queries && place < task.end;
             ++place)
          for (int r = 0; r < panel_rows; ++r) {
            const std::uint32_t slot = view.order[place] * panel_rows + static_cast<unsigned>(r);
            if (view.counts(slot)) wanted.push_back(slot);
          }
      for (int i = 0; i < counts.data()[q]; ++i) got.push_back(entries.data()[q * room + i].slot);
      std::sort(wanted.begin(), wanted.end());
      std::sort(got.begin(), got.end());
      ASSERT_EQ(got, wanted) << "query " << q;
    }
  }
}

TEST(DeviceScan, ReportsItsStages) {
  Random random(11);
  const auto rows = vectors<float>(Kind::uniform, 3000, 20, random);
  const auto queries = vectors<float>(Kind::uniform, 300, 20, random);
  const BaseRows base = rows.view();
  HostQueue queue(1);
  DeviceScan<HostQueue> scan(queue, coding_of(base, Metric::l2, false, {}, 128),
                             upload_rows(queue, base, {}, 1), 1);
  ExactNeighbors out(300, 3);
  std::vector<std::int64_t> which(300);
  std::iota(which.begin(), which.end(), 0);
  std::vector<std::string> stages;
  DeviceStats stats;
  stats.at_stage = [&](const char* stage) { stages.emplace_back(stage ? stage : "end"); };
  scan.run(queries.view(), which, find_value_range(queries.view(), Metric::l2, "queries", 1), 3,
           out, stats, 150, {});
  std::vector<std::string> of_a_batch{"queries in"};
  for (std::int64_t step = 0; step < stats.steps; ++step)
    of_a_batch.insert(of_a_batch.end(), {"scan", "thresholds"});
  of_a_batch.insert(of_a_batch.end(), {"measure", "rank", "answers out", "end"});
  std::vector<std::string> expected = of_a_batch;
  expected.insert(expected.end(), of_a_batch.begin(), of_a_batch.end());
  EXPECT_EQ(stages, expected);
}

}  // namespace
}  // namespace knear::detail
