// Codes searched on the emulated device: keys and ids to the bit those of the processor's scan, and
// of a plain loop over CodeBook::sum().
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/core/row_filter.hpp"
#include "knear/core/row_set.hpp"
#include "knear/distance/exact.hpp"
#include "tests/scan/device/code_problem.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::detail {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

using test::CodeProblem;
using test::CodeShape;
using test::problem_of;
using There = test::CodesOnDevice<HostQueue>;

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

// Products of decoded rows, against the plain loop; all queries are answered.
void check_products(const CodeProblem& problem, std::initializer_list<std::int64_t> ks,
                    const std::string& what, std::uint64_t seed = 1) {
  HostQueue queue(seed);
  std::int64_t left = 0;
  DeviceStats stats;
  for (const std::int64_t k : ks) {
    EXPECT_EQ(test::difference_of_products(queue, problem, k, left, stats), "")
        << what << ", k = " << k;
    EXPECT_EQ(left, 0) << what << ", k = " << k;
  }
}

TEST(DeviceCodeProducts, EveryMetric) {
  std::uint64_t seed = 60;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const bool residuals : {false, true})
      for (const int bits : {8, 4}) {
        CodeShape shape{6, bits, 3};
        shape.sizes = {{130, 1, 0, 64, 33}, {0, 65, 63, 7, 0}};
        shape.queries = 20, shape.probes = 3, shape.seed = ++seed;
        check_products(problem_of(test::shape_of_vectors(shape, metric, residuals)), {5, 40},
                       std::string(name_of(metric)) + (residuals ? ", residuals" : ""), seed);
      }
}

// More queries than a block, which are coded on the device, by lists and one at a time.
TEST(DeviceCodeProducts, ManyQueriesAndFew) {
  for (const std::int64_t queries : {1, 150}) {
    CodeShape shape{4, 8, 2};
    shape.sizes = {{300, 64, 0, 1, 65}};
    shape.queries = queries, shape.probes = 4, shape.seed = 80;
    check_products(problem_of(test::shape_of_vectors(shape, Metric::l2, true)), {1, 10},
                   std::to_string(queries) + " queries");
  }
}

TEST(DeviceCodeProducts, EveryK) {
  CodeShape shape{4, 4, 1};
  shape.sizes = {{1000, 64, 0, 1, 65}, {63, 300, 1, 0, 2}};
  shape.queries = 3, shape.probes = 5;
  check_products(problem_of(test::shape_of_vectors(shape, Metric::ip, true)),
                 {1, 32, 100, 300, 1025, 1490, 5000}, "lists");
}

// Whole keys, which many rows have: ids decide, and these lie in no order among the lists.
TEST(DeviceCodeProducts, TiesGoById) {
  for (const Metric metric : {Metric::l2, Metric::ip})
    for (const bool residuals : {false, true}) {
      CodeShape shape{2, 4};
      shape.values = 2, shape.sizes = {{300, 64, 90}, {65, 1, 200}};
      shape.probes = 3, shape.queries = 4;
      CodeProblem problem = problem_of(test::shape_of_vectors(shape, metric, residuals));
      for (std::int64_t j = 0; j < 4; ++j)  // by ip all rows are equally near to a query of zeros
        for (std::int64_t q = 0; q < 4; ++q) problem.queries.row(q)[j] += metric == Metric::ip;
      make_terms(problem);
      check_products(problem, {1, 10, 100, 300, 720}, "ties");
    }
}

// Of rows that 8 bits tell apart few more than k are measured: what rounding to float32 adds to
// their bounds is little beside what 8 bits leave out.
TEST(DeviceCodeProducts, FewRowsAreMeasured) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    CodeShape shape{8, 8, 2};
    shape.sizes = {{3000, 3000}}, shape.queries = 10, shape.probes = 2, shape.seed = 70;
    const CodeProblem problem = problem_of(test::shape_of_vectors(shape, metric, true));
    HostQueue queue;
    std::int64_t left = 0;
    DeviceStats stats;
    EXPECT_EQ(test::difference_of_products(queue, problem, 10, left, stats), "");
    EXPECT_GE(stats.survivors, 100);
    EXPECT_LE(stats.survivors, 10 * 100) << name_of(metric);
  }
}

// The bound of the distance between the keys of tables and those of vectors holds, and is no more
// than a few hundred times what is seen.
TEST(DeviceCodeProducts, KeysAreNearThoseOfVectors) {
  std::uint64_t seed = 100;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const bool residuals : {false, true})
      for (const std::int64_t parts : {1, 16, 64})
        for (const double away : {0.0, 20.0}) {
          CodeShape shape{parts, 8, 2};
          shape.sizes = {{200, 100}}, shape.queries = 20, shape.probes = 2, shape.seed = ++seed;
          shape.away = residuals ? away : 0;
          const CodeProblem problem = problem_of(test::shape_of_vectors(shape, metric, residuals));
          const CodeScanJob job = problem.job(300);
          const KeyDistance distance =
              KeyDistance::of(job, problem.lists[0], problem.centroids.view(), problem.middle);
          CodedNeighbors keys = test::plain_loop(problem, 300);
          const std::int64_t dim = problem.book.dim();
          Matrix<double> query(1, dim);
          Matrix<float> row(1, dim);
          ExactDistance reference(metric, ElementType::f64);
          double most = 0, bound = 0;
          for (std::int64_t q = 0; q < shape.queries; ++q) {
            for (std::int64_t j = 0; j < dim; ++j)
              query.row(0)[j] = problem.queries.row(q)[j] / table_factor(job);
            const double slack = distance.slack(distance.length_of(query.row(0), dim)) *
                                 (metric == Metric::l2 ? 2 : 1);
            reference.set_query(query.view(), 0);
            for (const CodedNeighbors::Row& found : keys.of(q)) {
              if (found.id == no_id) break;
              const CodedLists::Place place = problem.lists[0].place(found.row);
              problem.book.decode(place.code, place.stride, row.row(0));
              for (std::int64_t j = 0; j < dim; ++j)
                row.row(0)[j] = static_cast<float>(
                    row.row(0)[j] + static_cast<double>(static_cast<float>(test::centroid_of(
                                        problem, problem.lists[0].list_at(found.row), j))));
              Matrix<double> wide(1, dim);
              std::copy_n(row.row(0), dim, wide.row(0));
              const double off = std::abs(double{found.key} - reference.key(wide.row(0)));
              ASSERT_LE(off, slack) << name_of(metric) << ", " << parts << " parts";
              most = std::max(most, off), bound = std::max(bound, slack);
            }
          }
          EXPECT_LE(bound, 1000 * most) << name_of(metric) << ", " << parts << " parts, " << away;
        }
}

// Rows far from zero lose most of what float32 holds to where they are.
TEST(DeviceCodeProducts, RowsFarFromZero) {
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    CodeShape shape{5, 8, 2};
    shape.away = metric == Metric::l2 ? 1000 : 30;
    shape.sizes = {{130, 64, 33}}, shape.queries = 6, shape.probes = 2, shape.seed = 90;
    check_products(problem_of(test::shape_of_vectors(shape, metric, true)), {10}, "far from zero");
  }
}

// Long residuals of centroids that are as far from zero, which is where rows are then: what tables
// give is off by more than what 8 bits leave out of rows, and decides all the same.
TEST(DeviceCodeProducts, KeysThatAreMostlyRounding) {
  constexpr float far = 1e6f;
  CodeShape shape{6, 8, 2};
  shape.away = far, shape.sizes = {{130, 64, 33}}, shape.queries = 12, shape.probes = 3;
  CodeProblem problem = problem_of(test::shape_of_vectors(shape, Metric::ip, true));
  Matrix<float> centroids(6 << 8, 2);
  for (std::int64_t i = 0; i < centroids.rows() * centroids.cols(); ++i)
    centroids.data()[i] = problem.book.centroids().data()[i] - far;
  problem.book = CodeBook(std::move(centroids), 6, 8);
  check_products(problem, {1, 10}, "long residuals");
}

TEST(DeviceCodeProducts, FiltersAndRemovedRows) {
  CodeShape shape{5, 8};
  shape.sizes = {{130, 64, 7}, {3, 65, 40}};
  shape.probes = 3;
  CodeProblem problem = problem_of(test::shape_of_vectors(shape, Metric::l2, true));
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
  check_products(problem, {1, 20, 200}, "a filter and removed rows");
  const RowFilter ids = RowFilter::of_ids(std::vector<Id>{0, 3, 4, 17, 50, 100, 101}, 102);
  problem.allowed_ids[0] = &ids;
  check_products(problem, {20}, "ids");
  const RowFilter nothing = RowFilter::of_ids({}, 220);
  problem.allowed[0].filter = &nothing, problem.allowed_ids[1] = &ids;
  check_products(problem, {20}, "nothing of one segment");
}

TEST(DeviceCodeProducts, ListsThatAreNotThere) {
  CodeShape shape{4, 8};
  shape.sizes = {{0, 0, 3}}, shape.probes = 2;
  CodeProblem problem = problem_of(test::shape_of_vectors(shape, Metric::l2, false));
  std::fill_n(problem.probed.data(), problem.probed.rows() * 2, no_id);
  check_products(problem, {5}, "no lists");
  for (std::int64_t q = 0; q < 3; ++q) problem.probed.row(q)[0] = 1;
  check_products(problem, {5}, "empty lists");
  for (std::int64_t q = 0; q < 3; ++q)
    problem.probed.row(q)[0] = 1000, problem.probed.row(q)[1] = 2;
  check_products(problem, {5}, "lists beyond the last one");
}

// Numbers that float32 hardly holds, or where it says nothing of the difference: left to tables.
TEST(DeviceCodeProducts, WhatTheyLeaveToTables) {
  CodeShape shape{4, 8};
  shape.queries = 4, shape.seed = 5;
  CodeProblem problem = problem_of(test::shape_of_vectors(shape, Metric::l2, false));
  for (std::int64_t j = 0; j < problem.queries.cols(); ++j) problem.queries.row(2)[j] = 1e25;
  HostQueue queue;
  std::int64_t left = 0;
  DeviceStats stats;
  EXPECT_EQ(test::difference_of_products(queue, problem, 10, left, stats), "");
  EXPECT_EQ(left, 1);
  problem = problem_of(test::shape_of_vectors(shape, Metric::cosine, true));
  for (std::int64_t l = 0; l < problem.centroids.rows(); ++l)
    for (std::int64_t j = 0; j < problem.centroids.cols(); ++j) problem.centroids.row(l)[j] *= 1e6f;
  EXPECT_EQ(test::difference_of_products(queue, problem, 10, left, stats), "");
  EXPECT_EQ(left, 4);
}

// What float32 is off by is a part of the length of a query: that of one that is far longer than
// others would have all rows pass for these.
TEST(DeviceCodeProducts, AFarLongerQueryIsAlone) {
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    CodeShape shape{4, 8, 2};
    shape.sizes = {{900}}, shape.queries = 140, shape.probes = 1, shape.seed = 71;
    CodeProblem problem = problem_of(test::shape_of_vectors(shape, metric, false));
    for (std::int64_t j = 0; j < problem.queries.cols(); ++j) problem.queries.row(77)[j] *= 3e5;
    HostQueue queue;
    std::int64_t left = 0;
    DeviceStats stats;
    EXPECT_EQ(test::difference_of_products(queue, problem, 5, left, stats), "");
    EXPECT_EQ(left, 0);
    EXPECT_LE(stats.survivors, 140 * 100 + 900) << name_of(metric);
  }
}

// A row of length 0 has the keys of all by cosine say nothing: no query can be answered by what is
// decoded, which is not made then.
TEST(DeviceCodeProducts, NothingIsDecodedInVain) {
  CodeShape shape{4, 8};
  shape.sizes = {{130, 64}}, shape.probes = 2;
  CodeProblem problem = problem_of(test::shape_of_vectors(shape, Metric::cosine, false));
  HostQueue queue(1, std::size_t{1} << 40, std::make_shared<HostDevice>());
  const There there(queue, problem);
  const std::size_t before = queue.device().bytes_in_use();
  {
    const DeviceDecodedLists<HostQueue> decoded(queue, there.book, there.lists[0],
                                                there.segments[0].here, problem.job(5));
    EXPECT_TRUE(decoded.answers_any());
    EXPECT_GT(queue.device().bytes_in_use(), before);
  }
  std::vector<float> scalars(problem.lists[0].scalars(),
                             problem.lists[0].scalars() + problem.lists[0].rows());
  scalars[17] = 0;
  Matrix<std::uint8_t> codes(problem.lists[0].rows(), problem.book.code_size());
  for (std::int64_t row = 0; row < codes.rows(); ++row)
    for (std::int64_t b = 0; b < codes.cols(); ++b) {
      const CodedLists::Place place = problem.lists[0].place(row);
      codes.row(row)[b] = place.code[b * place.stride];
    }
  problem.lists[0] = CodedLists::of(problem.lists[0].list_of(), codes.view(), scalars);
  const DeviceDecodedLists<HostQueue> decoded(queue, there.book, there.lists[0],
                                              problem.segments()[0], problem.job(5));
  EXPECT_FALSE(decoded.answers_any());
  EXPECT_EQ(queue.device().bytes_in_use(), before);
}

TEST(DeviceCodeProducts, TakeNoMoreThanHalfOfTheMemory) {
  CodeShape shape{4, 4};
  shape.sizes = {{500, 300, 200}}, shape.probes = 3, shape.queries = 9;
  const CodeProblem problem = problem_of(test::shape_of_vectors(shape, Metric::l2, true));
  bool answered = false;
  int refused = 0;
  for (std::size_t bytes = 60 << 10; !answered; bytes += 60 << 10) {
    HostQueue queue(1, bytes);
    std::int64_t left = 0;
    DeviceStats stats;
    try {
      ASSERT_EQ(test::difference_of_products(queue, problem, 40, left, stats), "") << bytes;
    } catch (const MemoryBudgetError&) {
      ++refused;
      continue;
    }
    answered = left == 0;
  }
  EXPECT_GT(refused, 0);
}

TEST(DevicePqScan, IdsOfAListMustAscend) {
  CodeProblem problem = problem_of(CodeShape{4, 8});
  std::swap(problem.ids[0][10], problem.ids[0][11]);
  HostQueue queue;
  EXPECT_THROW(There(queue, problem), InvalidArgument);
}

}  // namespace
}  // namespace knear::detail
