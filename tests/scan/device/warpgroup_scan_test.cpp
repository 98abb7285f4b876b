// The scan by products of warpgroups on the emulated GPU: it leaves the very pairs in the lists of
// the queries that the scan by mma.sync leaves, whatever the shape.
#include "knear/scan/device/warpgroup_scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/scan/device/device_problem.hpp"

namespace knear::detail {
namespace {

using Pairs = std::vector<std::pair<std::uint32_t, std::int32_t>>;  // slots and scores
struct Lists {
  std::vector<int> counts;
  std::vector<Pairs> of_query;  // sorted; empty where the list has lost some
};

struct Case {
  std::int64_t rows, dim, queries;
  std::int64_t rank;  // of the key that is the threshold of a query; -1: of the first two alone
  std::int64_t begin = 0, end = 1 << 20;  // panels
  std::int64_t room = 1 << 20;            // of a list
};

Lists lists_of(Problem& problem, const Case& shape, bool by_warpgroups,
               const RowFilter* filter = nullptr) {
  DeviceScan<HostQueue>& scan = problem.scan;
  HostQueue& queue = problem.queue;
  const auto which = all_of(problem.queries.rows());
  const DeviceQueries coded =
      device_queries(scan.packed(), problem.queries, which, problem.found, 1);
  auto queries = scan.upload_queries(coded, scan.thresholds_for(coded, problem.upper_bounds));
  DeviceBaseView base = scan.base();
  DeviceScan<HostQueue>::Limited limited;
  if (filter) {
    scan.limit(limited, {.filter = filter});
    base.allowed = limited.bits.data();
  }
  const auto count = static_cast<std::size_t>(coded.count);
  const std::int64_t end = std::min(base.panels, shape.end);
  const auto room = std::min(shape.room, base.panels * panel_rows);
  auto entries = queue.allocate<Entry>(count * static_cast<std::size_t>(room));
  auto counts = queue.allocate<int>(count);
  queue.fill_bytes(counts.data(), 0, count);
  queue.use_warpgroups(by_warpgroups);
  launch_scan(queue, base, queries.view(0, coded.count),
              {entries.data(), nullptr, counts.data(), nullptr, static_cast<int>(room)},
              shape.begin, end);
  queue.wait();
  Lists out = {{counts.data(), counts.data() + count}, std::vector<Pairs>(count)};
  for (std::size_t q = 0; q < count; ++q) {
    if (out.counts[q] > room) continue;
    for (int i = 0; i < out.counts[q]; ++i) {
      const Entry entry =
          entries.data()[q * static_cast<std::size_t>(room) + static_cast<std::size_t>(i)];
      out.of_query[q].emplace_back(entry.slot, entry.score);
    }
    std::sort(out.of_query[q].begin(), out.of_query[q].end());
  }
  return out;
}

// Returns how many pairs passed.
template <class T>
std::int64_t expect_same_pairs(const Case& shape, Metric metric, std::uint64_t seed,
                               const RowFilter* filter = nullptr) {
  const auto base = vectors<T>(shape.rows, shape.dim, seed);
  const auto queries = vectors<T>(shape.queries, shape.dim, seed + 1);
  Problem problem(base.view(), queries.view(), metric, seed);
  problem.set_upper_bounds(std::max<std::int64_t>(shape.rank, 1));
  for (std::size_t q = 2; shape.rank < 0 && q < problem.upper_bounds.size(); ++q)
    problem.upper_bounds[q] = -1e12;  // nothing passes
  const Lists got = lists_of(problem, shape, true, filter),
              wanted = lists_of(problem, shape, false, filter);
  std::int64_t sum = 0;
  for (std::size_t q = 0; q < wanted.counts.size(); ++q) {
    const std::string what = std::to_string(shape.rows) + " x " + std::to_string(shape.dim) +
                             ", query " + std::to_string(q) + " of " +
                             std::to_string(shape.queries) + ", seed " + std::to_string(seed);
    EXPECT_EQ(got.counts[q], wanted.counts[q]) << what;
    EXPECT_EQ(got.of_query[q], wanted.of_query[q]) << what;
    if (testing::Test::HasFailure()) return 0;
    sum += wanted.counts[q];
  }
  return sum;
}

// Rows of one slice to more than a stage has, and of more than all stages; queries that fill a
// block of the second half or leave it empty.
TEST(WarpgroupScan, RowsOfAllLengths) {
  std::uint64_t seed = 1;
  for (const Case& shape : {Case{300, 7, 129, 5}, Case{300, 33, 256, 5}, Case{300, 96, 300, 5},
                            Case{420, 128, 385, 5}, Case{300, 129, 200, 5}, Case{300, 200, 200, 5},
                            Case{200, 384, 200, 5}, Case{130, 640, 200, 5}}) {
    for (const Metric metric : metrics)
      EXPECT_GE(expect_same_pairs<float>(shape, metric, ++seed), 5 * shape.queries);
    for (const Metric metric : {Metric::l2, Metric::ip}) {
      EXPECT_GE(expect_same_pairs<std::uint8_t>(shape, metric, ++seed), 5 * shape.queries);
      EXPECT_GE(expect_same_pairs<std::int8_t>(shape, metric, ++seed), 5 * shape.queries);
    }
    if (HasFailure()) return;
  }
}

// Many items for a block, whose last panels are no whole tile, and ranges of panels.
TEST(WarpgroupScan, RangesAndItems) {
  std::uint64_t seed = 100;
  for (const Case& shape :
       {Case{1500, 20, 1100, 3}, Case{1500, 20, 700, 3, 1}, Case{1500, 20, 300, 3, 2, 3},
        Case{1500, 20, 300, 3, 5, 46}, Case{31, 20, 300, 3}, Case{1500, 20, 700, -1}}) {
    EXPECT_GT(expect_same_pairs<float>(shape, Metric::l2, ++seed), 0);
    EXPECT_GT(expect_same_pairs<std::uint8_t>(shape, Metric::l2, ++seed), 0);
    if (HasFailure()) return;
  }
}

// All pairs pass, more than are kept in shared memory and more than lists have room for.
TEST(WarpgroupScan, WhereAllPass) {
  std::uint64_t seed = 200;
  const Case all{700, 12, 270, 1 << 20}, lost{700, 12, 270, 1 << 20, 0, 1 << 20, 100};
  EXPECT_EQ(expect_same_pairs<float>(all, Metric::l2, ++seed), 700 * 270);
  EXPECT_EQ(expect_same_pairs<std::uint8_t>(all, Metric::l2, ++seed), 700 * 270);
  EXPECT_EQ(expect_same_pairs<float>(lost, Metric::ip, ++seed), 700 * 270);
  EXPECT_EQ(expect_same_pairs<std::int8_t>(lost, Metric::ip, ++seed), 700 * 270);
}

TEST(WarpgroupScan, RowsThatMayBeFound) {
  std::vector<Id> ids;
  for (Id id = 0; id < 900; id += 3) ids.push_back(id);
  const RowFilter filter = RowFilter::of_ids(ids, 900);
  EXPECT_EQ(expect_same_pairs<float>({900, 12, 200, 1 << 20}, Metric::l2, 300, &filter), 300 * 200);
}

// What a multiprocessor has: 227 KiB, and no row is so long that two stages do not fit.
TEST(WarpgroupScan, SharedMemory) {
  const auto check = [](auto whole) {
    using Kernel = ScanByWarpgroups<HostThread, whole.value, 4>;
    for (int slices = 1; slices <= Kernel::most_slices; ++slices) {
      const int stages = Kernel::stages_for(slices);
      EXPECT_GE(stages, Kernel::fewest_stages) << slices;
      EXPECT_LE(Kernel::shared_bytes(slices, stages), Kernel::most_shared_bytes);
      if (stages < Kernel::most_stages) {
        EXPECT_GT(Kernel::shared_bytes(slices, stages + 1), Kernel::most_shared_bytes);
      }
    }
    EXPECT_EQ(Kernel::stages_for(4), Kernel::most_stages);
    EXPECT_EQ(Kernel::stages_for(Kernel::most_slices + 1), 0);
  };
  check(std::true_type{});
  check(std::false_type{});
}

}  // namespace
}  // namespace knear::detail
