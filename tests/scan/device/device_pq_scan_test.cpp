// Codes searched on the emulated device: keys and ids to the bit those of the processor's scan, and
// of a plain loop over CodeBook::sum().
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/core/row_filter.hpp"
#include "knear/core/row_set.hpp"
#include "tests/scan/device/code_problem.hpp"
#include "tests/simt/emulator.hpp"

namespace knear::detail {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

using test::CodeProblem;
using test::CodeShape;
using test::problem_of;
using There = test::CodesThere<HostQueue>;

void expect_same(CodedNeighbors& got, CodedNeighbors& wanted, std::int64_t queries,
                 const std::string& what) {
  EXPECT_EQ(test::first_difference(got, wanted, queries), "") << what;
}

// Both ways, against the processor and the plain loop.
void check(const CodeProblem& problem, std::initializer_list<std::int64_t> ks,
           const std::string& what, std::uint64_t seed = 1) {
  HostQueue queue(seed);
  for (const std::int64_t k : ks)
    EXPECT_EQ(test::difference_of_ways(queue, problem, k), "") << what << ", k = " << k;
}

TEST(DevicePqScan, EveryCodeSize) {
  std::uint64_t seed = 1;
  for (const int bits : {8, 4})
    for (const std::int64_t parts : {1, 2, 3, 4, 7, 16, 33, 64, 127, 128}) {
      if (bits == 8 && parts > 64) continue;
      CodeShape shape{parts, bits};
      shape.width = 1 + static_cast<std::int64_t>(seed % 3);
      shape.metric = seed % 3 == 0 ? Metric::ip : seed % 3 == 1 ? Metric::cosine : Metric::l2;
      shape.squared = shape.metric == Metric::l2 && seed % 2 == 0;
      shape.scalars =
          shape.metric == Metric::cosine || (shape.metric == Metric::l2 && !shape.squared);
      shape.queries = 2, shape.probes = 3, shape.seed = seed++;
      check(problem_of(shape), {10},
            std::to_string(parts) + " parts of " + std::to_string(bits) + " bits", seed);
    }
}

TEST(DevicePqScan, EveryMetric) {
  std::uint64_t seed = 40;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const bool residual : {false, true}) {
      CodeShape shape{6, 8};
      shape.metric = metric, shape.seed = ++seed;
      shape.squared = metric == Metric::l2 && !residual;
      shape.scalars = metric == Metric::cosine || (metric == Metric::l2 && residual);
      shape.sizes = {{130, 1, 0, 64}, {0, 65, 63, 7}};
      check(problem_of(shape), {5, 40}, std::string(name_of(metric)));
    }
}

TEST(DevicePqScan, EveryK) {
  CodeShape shape{4, 4};
  shape.sizes = {{1000, 64, 0, 1, 65}, {63, 300, 1, 0, 2}};
  shape.queries = 2, shape.probes = 5;
  check(problem_of(shape), {1, 31, 32, 33, 100, 256, 1000, 1024, 1025, 1490, 5000}, "lists");
}

// Whole keys, of which many rows have the same: ids decide, also at the k-th.
TEST(DevicePqScan, TiesGoById) {
  for (const std::uint64_t seed : {1, 2}) {
    CodeShape shape{2, 4};
    shape.values = seed == 1 ? 2 : 1;  // 1: all rows are equally far
    shape.sizes = {{300, 64, 90}, {65, 1, 200}};
    shape.probes = 3, shape.seed = seed;
    check(problem_of(shape), {1, 10, 100, 300, 720}, "ties", seed);
    shape.metric = Metric::cosine, shape.squared = false, shape.scalars = true;
    check(problem_of(shape), {10, 100}, "ties of cosine", seed);
  }
}

// One query, whose rows several blocks share, and so many lists that ranges are read in parts.
TEST(DevicePqScan, BlocksShareAQuery) {
  CodeShape shape{3, 8};
  shape.sizes = {{3000, 1}};
  shape.queries = 1, shape.probes = 2;
  check(problem_of(shape), {10, 100}, "one list");
  std::vector<std::int64_t> sizes;
  for (int list = 0; list < 150; ++list) sizes.push_back(list * 7 % 11);
  shape.sizes = {sizes, sizes}, shape.probes = 150, shape.queries = 2, shape.seed = 9;
  check(problem_of(shape), {10}, "many lists");
}

TEST(DevicePqScan, FiltersAndRemovedRows) {
  CodeShape shape{5, 8};
  shape.sizes = {{130, 64, 7}, {3, 65, 40}};
  shape.probes = 3;
  CodeProblem problem = problem_of(shape);
  Random random(3);
  std::vector<Id> rows;
  for (Id row = 0; row < 220; ++row)
    if (random.uniform() < 0.3) rows.push_back(row);
  const RowFilter filter = RowFilter::of_ids(rows, 220);
  problem.allowed[0].filter = &filter, problem.allowed[0].offset = 11;
  RowSet live(problem.lists[1].rows());
  for (std::int64_t row = 0; row < live.rows(); ++row)
    if (random.uniform() < 0.5) live.remove(row);
  problem.allowed[1].live = &live;
  check(problem, {1, 20, 200}, "a filter and removed rows");
  // Those of ids, of which some are beyond the filter.
  const RowFilter ids = RowFilter::of_ids(std::vector<Id>{0, 3, 4, 17, 50, 100, 101}, 102);
  problem.allowed_ids[0] = &ids;
  check(problem, {20}, "ids");
  const RowFilter nothing = RowFilter::of_ids({}, 220);
  problem.allowed[0].filter = &nothing, problem.allowed_ids[1] = &ids;
  check(problem, {20}, "nothing of one segment");
}

// Rows of two segments have the same ids, and of two one may be found: the other was removed, and
// its id given again.
TEST(DevicePqScan, IdsThatWereGivenAgain) {
  CodeShape shape{5, 8};
  shape.sizes = {{130, 64, 7}, {130, 64, 7}};
  shape.probes = 3;
  CodeProblem problem = problem_of(shape);
  problem.ids[1] = problem.ids[0];
  RowSet first(problem.lists[0].rows()), second(problem.lists[1].rows());
  for (std::int64_t row = 0; row < first.rows(); ++row) (row % 3 == 0 ? first : second).remove(row);
  problem.allowed[0].live = &first, problem.allowed[1].live = &second;
  check(problem, {1, 20, 200}, "ids that are there twice");
}

// Where float32 does not reach keys are infinite on the processor too, and such rows come before
// empty places.
TEST(DevicePqScan, KeysThatAreInfinite) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    CodeShape shape{2, 4};
    shape.metric = metric, shape.squared = metric == Metric::l2;
    shape.scalars = metric == Metric::cosine;
    shape.sizes = {{70, 3}}, shape.probes = 2;
    CodeProblem problem = problem_of(shape);
    Matrix<float> large(2 << 4, 2);
    for (std::int64_t c = 0; c < large.rows(); ++c)
      for (std::int64_t j = 0; j < 2; ++j)
        large.row(c)[j] = static_cast<float>(c % 5 - 2) * 1.5e38f;
    problem.book = CodeBook(std::move(large), 2, 4);
    for (std::int64_t q = 0; q < problem.queries.rows(); ++q)
      for (std::int64_t j = 0; j < 4; ++j)
        problem.queries.row(q)[j] *= metric == Metric::l2 ? 1e38 : 3;
    HostQueue queue;
    const There there(queue, problem);
    const CodeProbes probes{problem.probed.view(), problem.terms.view()};
    const CodeScanJob job = problem.job(80);
    CodedNeighbors wanted(problem.queries.rows(), 80);
    ScanStats stats;
    scan_codes(problem.segments(), job, probes, wanted, stats, {});
    DeviceCodeScan<HostQueue> scan(queue, there.book, there.segments, job);
    int infinite = 0;
    for (const CodedNeighbors::Row& row : wanted.rows)
      infinite += row.id != no_id && row.key == infinity;
    EXPECT_GT(infinite, 0) << name_of(metric);
    for (const CodeScanWay way : {CodeScanWay::fused, CodeScanWay::several_passes}) {
      CodedNeighbors got(problem.queries.rows(), 80);
      scan.run(probes, got, {}, way);
      expect_same(got, wanted, problem.queries.rows(), std::string(name_of(metric)));
    }
  }
}

// Codes of scalar quantisers have a part for each column: their tables are in device memory.
TEST(DevicePqScan, TablesThatSharedMemoryDoesNotHold) {
  CodeShape shape{100, 8, 1};
  shape.sizes = {{65, 70}}, shape.probes = 2, shape.queries = 2;
  const CodeProblem problem = problem_of(shape);
  ASSERT_EQ(test::ways_of(problem, 10), std::vector{CodeScanWay::several_passes});
  check(problem, {10}, "100 parts");
}

TEST(DevicePqScan, AsManyQueriesAsMemoryHolds) {
  CodeShape shape{4, 4};
  shape.sizes = {{500, 300, 200}}, shape.probes = 3, shape.queries = 9;
  const CodeProblem problem = problem_of(shape);
  const CodeProbes probes{problem.probed.view(), problem.terms.view()};
  for (const CodeScanWay way : {CodeScanWay::fused, CodeScanWay::several_passes}) {
    const std::int64_t k = 40;
    CodedNeighbors wanted = test::plain_loop(problem, k);
    const CodeScanJob job = problem.job(k);
    bool answered = false;
    // From too little on: what is answered is right, and what is not says so.
    for (std::size_t bytes = 12 << 10; !answered; bytes += 6 << 10) {
      HostQueue queue(1, bytes);
      CodedNeighbors got(shape.queries, k);
      try {
        const There there(queue, problem);
        DeviceCodeScan<HostQueue> scan(queue, there.book, there.segments, job);
        scan.run(probes, got, {}, way);
      } catch (const MemoryBudgetError&) {
        continue;
      }
      answered = true;
      expect_same(got, wanted, shape.queries, std::to_string(bytes) + " bytes");
      EXPECT_GT(bytes, std::size_t{12 << 10});
    }
  }
}

TEST(DevicePqScan, NothingToFind) {
  CodeShape shape{4, 8};
  shape.sizes = {{0, 0, 3}}, shape.probes = 2;
  CodeProblem problem = problem_of(shape);
  std::fill_n(problem.probed.data(), problem.probed.rows() * 2, no_id);
  check(problem, {5}, "no lists");
  for (std::int64_t q = 0; q < 3; ++q) problem.probed.row(q)[0] = 1;
  check(problem, {5}, "empty lists");
  for (std::int64_t q = 0; q < 3; ++q) problem.probed.row(q)[0] = 1000;
  check(problem, {5}, "lists beyond the last one");
  problem = problem_of(CodeShape{4, 8, 2, Metric::l2, true, false, {{}}, 2, 1});
  for (std::int64_t q = 0; q < 2; ++q) problem.probed.row(q)[0] = 0;
  check(problem, {5}, "no rows");
}

TEST(DevicePqScan, IdsOfAListMustAscend) {
  CodeProblem problem = problem_of(CodeShape{4, 8});
  std::swap(problem.ids[0][10], problem.ids[0][11]);
  HostQueue queue;
  EXPECT_THROW(There(queue, problem), InvalidArgument);
}

}  // namespace
}  // namespace knear::detail
