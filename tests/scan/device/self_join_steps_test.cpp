// A self-join on the emulated GPU that scores each pair of rows once: every pair comes to both
// lists, with the product of the codes of its own query; and answers are the reference's.
#include "knear/scan/device/self_join_steps.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "knear/cost/device_cost_model.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/device/device_scan.hpp"
#include "tests/scan/device/vector_kinds.hpp"
#include "tests/simt/emulated_launches.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}
bool whole(AnyMatrixView rows, Metric metric, const ValueRange& found) {
  return metric != Metric::cosine && rows.type() != ElementType::f32 && found.integer &&
         (found.low >= 0 || found.high <= 127);
}

// The answers of all rows, by tiles of so many panels, compared with the reference.
DeviceStats expect_joined(AnyMatrixView base, std::int64_t k, Metric metric, std::int64_t panels,
                          std::uint64_t seed, const std::string& what) {
  const ValueRange found = find_value_range(base, Metric::l2, "base", 1);
  HostQueue queue(seed);
  const BaseRows rows = base;
  DeviceScan<HostQueue> scan(queue,
                             coding_of(rows, metric, whole(base, metric, found), found, panels),
                             upload_rows(queue, rows, {}, 1), 1);
  ExactNeighbors out(base.rows(), k);
  DeviceStats stats;
  const auto left = scan.run(base, all_of(base.rows()), found, k, out, stats, base.rows(), {}, {},
                             {}, std::numeric_limits<std::size_t>::max(), usual_piece, {}, true);
  EXPECT_TRUE(left.empty()) << what;
  const Neighbors truth = reference_knn(base, base, k, metric);
  for (std::int64_t q = 0; q < base.rows() && left.empty(); ++q)
    for (std::int64_t j = 0; j < k; ++j) {
      EXPECT_EQ(out.ids.row(q)[j], truth.ids.row(q)[j]) << what << ", row " << q << ", place " << j;
      EXPECT_EQ(static_cast<float>(distance_of_key(metric, out.keys.row(q)[j])),
                truth.distances.row(q)[j])
          << what << ", row " << q << ", place " << j;
      if (testing::Test::HasFailure()) return stats;
    }
  return stats;
}

// Nothing is known of any query and nothing is learnt, so that every pair passes.
template <class T>
void expect_every_pair(std::int64_t rows, std::int64_t dim, std::int64_t panels, Metric metric) {
  Random random(5);
  const auto base = vectors<T>(Kind::uniform, rows, dim, random);
  const ValueRange found = find_value_range(base.view(), Metric::l2, "base", 1);
  HostQueue queue(7);
  const Coding coding =
      coding_of(BaseRows(base.view()), metric, whole(base.view(), metric, found), found, panels);
  DeviceScan<HostQueue> scan(queue, coding, upload_rows(queue, BaseRows(base.view()), {}, 1), 1);
  SelfJoinSteps<HostQueue> steps(queue, scan.base());
  ASSERT_TRUE((SelfJoinSteps<HostQueue>::fits(queue, scan.base(), dim, 8)));
  const std::int64_t places = steps.queries();
  ASSERT_EQ(places, coding.panels() * panel_rows);
  auto order = queue.allocate<std::int32_t>(static_cast<std::size_t>(places));
  steps.place_rows(order.data());

  DeviceScan<HostQueue>::Queries coded;
  DeviceScan<HostQueue>::Vectors elements;
  PiecewiseUpload<HostQueue> pieces(queue, 1, usual_piece,
                                    scan.sent_bytes(AnyMatrixView(base.view()).type(), rows),
                                    dim * std::int64_t{sizeof(T)});
  const std::vector<std::int64_t> which = all_of(rows);
  scan.code_on_device(coded, elements, pieces, base.view(), which, found, {}, false, order.data(),
                      0, {nullptr, nullptr, places});
  const DeviceQueryView view = coded.view(0, places);
  const int room = static_cast<int>(rows);
  auto entries = queue.allocate<Entry>(static_cast<std::size_t>(places * room));
  auto counts = queue.allocate<int>(static_cast<std::size_t>(places));
  queue.fill_bytes(counts.data(), 0, static_cast<std::size_t>(places));
  const DeviceLists lists = {entries.data(), nullptr, counts.data(), nullptr, room};
  std::int64_t met = 0;
  steps.scan(view, lists, 8, 2, [&](std::int64_t work, auto step) {
    met += work;
    step();
  });
  queue.wait();
  EXPECT_EQ(met, coding.panels());

  // Kernels of the tests work in the memory of the processor.
  const DeviceBaseView on_device = steps.base();
  const auto code_of_row = [&](std::uint32_t slot, int step) {
    std::uint32_t word;
    std::memcpy(&word,
                on_device.codes +
                    std::int64_t{slot / panel_rows} * on_device.slices * panel_slice_bytes +
                    panel_place(step, static_cast<int>(slot % panel_rows)),
                4);
    return word;
  };
  const auto code_of_query = [&](std::int64_t place, int step) {
    std::uint32_t word;
    std::memcpy(&word,
                view.codes + place / block_queries * on_device.slices * block_slice_bytes +
                    block_place(step, static_cast<int>(place % block_queries)),
                4);
    return word;
  };
  std::int64_t real = 0;
  for (std::int64_t place = 0; place < places; ++place) {
    const std::int32_t row = order.data()[place];
    ASSERT_EQ(counts.data()[place], row < 0 ? 0 : rows) << "place " << place;
    if (row < 0) continue;
    ++real;
    std::vector<int> seen(static_cast<std::size_t>(rows));
    for (int i = 0; i < room; ++i) {
      const Entry entry = entries.data()[place * room + i];
      ASSERT_LT(entry.slot, static_cast<std::uint32_t>(places)) << "place " << place;
      const std::uint32_t id = on_device.ids[entry.slot];
      ASSERT_LT(id, static_cast<std::uint32_t>(rows));
      ++seen[id];
      std::int32_t product = 0;
      for (int step = 0; step < on_device.slices * slice_steps; ++step) {
        const std::uint32_t a = code_of_row(entry.slot, step), b = code_of_query(place, step);
        for (int byte = 0; byte < 4; ++byte)
          product +=
              static_cast<std::uint8_t>(a >> 8 * byte) * static_cast<std::int8_t>(b >> 8 * byte);
      }
      ASSERT_EQ(entry.score, product) << "rows " << row << " and " << id;
    }
    for (std::int64_t id = 0; id < rows; ++id)
      ASSERT_EQ(seen[static_cast<std::size_t>(id)], 1) << "rows " << row << " and " << id;
  }
  EXPECT_EQ(real, rows);
}
// Odd and even numbers of blocks, panels that are not full, one slice and several, and rows that do
// not fit a stage of the ring.
TEST(SelfJoinSteps, EveryPairComesToBothLists) {
  expect_every_pair<float>(8 * 128, 20, 8, Metric::l2);
  expect_every_pair<std::uint8_t>(8 * 128 - 1, 40, 4, Metric::l2);
  if (test::small()) return;
  expect_every_pair<std::int8_t>(9 * 128 - 37, 140, 4, Metric::ip);
  expect_every_pair<float>(9 * 128 - 37, 33, 4, Metric::cosine);
  expect_every_pair<float>(12 * 128 - 130, 150, 8, Metric::ip);
}

// Rings of seven blocks to nine, and panels of which some slots have no row.
TEST(SelfJoinSteps, FloatsOfAllKindsAndMetrics) {
  std::uint64_t seed = 1;
  for (const Kind kind : {Kind::clustered, Kind::sorted, Kind::copies, Kind::sizes, Kind::outlier})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      if (static_cast<int>(kind) % 3 != static_cast<int>(metric)) continue;
      if (test::small() && kind != Kind::copies) continue;
      Random random(seed);
      // Of sizes that differ most pairs pass, and their lists are long.
      const std::int64_t rows = kind == Kind::sizes
                                    ? 780
                                    : 780 + static_cast<std::int64_t>(seed % 3) * 123,
                         dim = seed % 4 == 0 ? 135 : 5 + static_cast<std::int64_t>(seed % 30);
      const auto base = vectors<float>(kind, rows, dim, random);
      const std::string what = "kind " + std::to_string(static_cast<int>(kind)) + ", " +
                               std::string(name_of(metric)) + ", seed " + std::to_string(seed);
      const DeviceStats stats = expect_joined(base.view(), 2, metric, 4, ++seed, what);
      EXPECT_TRUE(stats.once) << what;
      if (testing::Test::HasFailure()) return;
    }
}
TEST(SelfJoinSteps, WholeNumbersAndOtherTypes) {
  std::uint64_t seed = 50;
  const auto check = [&](auto element, Kind kind, Metric metric) {
    Random random(++seed);
    const auto base = vectors<decltype(element)>(kind, 780, 30, random);
    EXPECT_TRUE(expect_joined(base.view(), 2, metric, 4, seed, "whole").once);
  };
  check(std::uint8_t{}, Kind::uniform, Metric::l2);
  if (test::small()) return;
  check(std::int8_t{}, Kind::uniform, Metric::ip), check(f16{}, Kind::uniform, Metric::ip);
  check(std::uint8_t{}, Kind::copies, Metric::ip), check(std::int8_t{}, Kind::zeros, Metric::l2);
  check(bf16{}, Kind::clustered, Metric::l2), check(double{}, Kind::sizes, Metric::cosine);
}
// More than a warp selects; the first step is then of more rows.
TEST(SelfJoinSteps, ManyNeighbours) {
  Random random(9);
  const auto base = vectors<float>(Kind::clustered, 780, 24, random);
  EXPECT_TRUE(expect_joined(base.view(), 33, Metric::l2, 4, 3, "k").once);
}

// To a row that lies far off, and to those of its block, which have its scale, all others seem
// equally near: their lists are full, and they are searched for again.
TEST(SelfJoinSteps, ListsThatFillAreMadeAgain) {
  if (test::small()) GTEST_SKIP();
  Random random(11);
  auto base = vectors<float>(Kind::uniform, 2090, 4, random);
  for (std::int64_t j = 0; j < 4; ++j) base.row(1500)[j] += 20'000;
  const DeviceStats stats = expect_joined(base.view(), 1, Metric::l2, 4, 3, "far");
  EXPECT_TRUE(stats.once);
  EXPECT_GE(stats.repeated, 1);
  EXPECT_LE(stats.repeated, 128);
}

// What the inner loop takes of shared memory, where no row passes: wavefronts of a warp for each
// tile of 128 columns (docs/measurements/gpu.md). So this fails where it takes more.
template <class T>
double wavefronts_of_pairs() {
  constexpr std::int64_t rows = 2048, dim = 128;
  constexpr bool whole_numbers = std::is_same_v<T, std::uint8_t>;
  Random random(3);
  const auto base = vectors<T>(Kind::uniform, rows, dim, random);
  const AnyMatrixView view_of_rows = base.view();
  const ValueRange found = find_value_range(view_of_rows, Metric::l2, "base", 1);
  HostQueue queue(7);
  const Coding coding = coding_of(BaseRows(view_of_rows), Metric::l2, whole_numbers, found, 8);
  DeviceScan<HostQueue> scan(queue, coding, upload_rows(queue, BaseRows(view_of_rows), {}, 1), 1);
  SelfJoinSteps<HostQueue> steps(queue, scan.base());
  auto order = queue.allocate<std::int32_t>(rows);
  steps.place_rows(order.data());
  DeviceScan<HostQueue>::Queries coded;
  DeviceScan<HostQueue>::Vectors elements;
  PiecewiseUpload<HostQueue> pieces(queue, 1, usual_piece,
                                    scan.sent_bytes(view_of_rows.type(), rows),
                                    dim * std::int64_t{sizeof(T)});
  // Nothing is near enough, for any query or row.
  const std::vector<double> known(rows, whole_numbers ? -1e9 : 1e9);
  const std::vector<std::int64_t> which = all_of(rows);
  scan.code_on_device(coded, elements, pieces, view_of_rows, which, found, known, true,
                      order.data(), 0, {nullptr, nullptr, rows});
  queue.wait();
  const DeviceBaseView on_device = steps.base();
  const DeviceQueryView view = coded.view(0, rows);
  auto reach = queue.allocate<std::int32_t>(rows);
  auto tops = queue.allocate<float>(rows), most = queue.allocate<float>(rows / block_queries);
  const SelfJoinPairs join = {static_cast<int>(on_device.panels), true, reach.data(), tops.data(),
                              most.data()};
  if (!whole_numbers) launch_find_tops(queue, on_device, view, join);
  launch_find_reach(queue, on_device, view, join);
  auto counts = queue.allocate<int>(rows);
  queue.fill_bytes(counts.data(), 0, rows);
  queue.wait();
  std::int64_t taken[2];
  for (const int panels : {16, 48}) {
    using Kernel = ScanPanels<HostThread, true, whole_numbers, false, false, true>;
    Kernel kernel{};
    kernel.base = on_device, kernel.queries = coded.view(0, block_queries), kernel.join = join;
    kernel.lists = {nullptr, nullptr, counts.data(), nullptr, 0};
    kernel.begin = 4, kernel.end = 4 + panels, kernel.splits = 1;
    const CountSharedAccesses counted;
    launch(queue, Grid{1, Kernel::shared_bytes(on_device.slices)}, kernel);
    taken[panels == 48] = counted.all();
  }
  EXPECT_EQ(std::count(counts.data(), counts.data() + rows, 0), rows);
  return static_cast<double>(taken[1] - taken[0]) / 8 / 8;  // tiles, warps
}
// A reach is over the scale of its panel, so that rows may lie as far apart as in other scans; what
// is no float is NaN, for which everything is kept.
TEST(SelfJoinSteps, TheReachOfLargeNumbers) {
  EXPECT_NEAR(pair_reach(5e23, 1e10), 5e13f, 5e13f * 0x1p-19f);
  EXPECT_GE(pair_reach(5e23, 1e10), 5e13f);
  EXPECT_GE(pair_reach(-5e23, 1e10), -5e13f);
  EXPECT_TRUE(std::isnan(pair_reach(std::numeric_limits<double>::infinity(), 1)));
}

// The model of costs (knear/cost/device_plan.hpp) reckons with these.
TEST(SelfJoinSteps, ThePlanKnowsItsSharedMemory) {
  for (const bool whole : {false, true})
    for (const int slices : {1, 4, 5, 20})
      EXPECT_NEAR(static_cast<double>(shared_bytes_of_pairs<HostThread>(whole, slices)),
                  (whole ? ScanForm::whole_pair_bytes : ScanForm::pair_bytes) +
                      (slices <= ScanForm::kept_slices ? 4096.0 * slices : 0),
                  0)
          << slices;
}
TEST(SelfJoinSteps, WavefrontsOfSharedMemory) {
  EXPECT_NEAR(wavefronts_of_pairs<float>(), 161, 0.5);
  EXPECT_NEAR(wavefronts_of_pairs<std::uint8_t>(), 136, 0.5);
}

}  // namespace
}  // namespace knear::detail
