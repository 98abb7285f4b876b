// tests/scan/methods/code_scan_test.cpp -- the scan of codes on the processor beside a plain loop
// over CodeBook::sum(), to the bit: by tables and by products, at every instruction set, of lists
// whose rows lie in several segments.
#include "knear/scan/methods/code_scan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/core/row_filter.hpp"
#include "knear/core/row_set.hpp"
#include "knear/cost/list_plan.hpp"
#include "tests/scan/device/code_problem.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using namespace test;

using Sizes = std::vector<std::vector<std::int64_t>>;

// Rows of five lists in each segment: none, few, whole groups, several steps; and many segments.
const std::vector<Sizes>& divisions() {
  static const std::vector<Sizes> all = {
      {{977, 3, 0, 64, 2500}},
      {{488, 1, 0, 64, 1024}, {489, 2, 5, 0, 1476}},
      {{300, 0, 70, 65, 63}, {0, 0, 0, 0, 0}, {301, 40, 1, 1300, 500}, {1, 1, 1, 1, 1}},
      Sizes(9, {61, 130, 7, 200, 1})};
  return all;
}

struct Case {
  int bits;
  Metric metric;
  bool squared, scalars;
};
class CodeScan : public testing::TestWithParam<Case> {
 protected:
  static CodeShape shape_of(const Sizes& sizes, std::uint64_t seed) {
    const Case& one = GetParam();
    return {.parts = one.bits == 8 ? 5 : 7,
            .bits = one.bits,
            .metric = one.metric,
            .squared = one.squared,
            .scalars = one.scalars,
            .sizes = sizes,
            .queries = 6,
            .probes = 5,
            .seed = seed};
  }
  // With so many threads, for all queries in one call and for one alone.
  static void expect_the_plain_loop(const CodeProblem& problem, std::int64_t k,
                                    const std::string& what) {
    CodedNeighbors wanted = plain_loop(problem, k);
    for (const int threads : test::small() ? std::vector{3} : std::vector{1, 3, 24}) {
      CodeScanJob job = problem.job(k);
      job.threads = threads;
      for (const CodeComparison way : {CodeComparison::by_tables, CodeComparison::by_products}) {
        job.comparison = way;
        CodedNeighbors found(problem.queries.rows(), k);
        ScanStats stats;
        scan_codes(problem.segments(), job, {problem.probed.view(), problem.terms.view()}, found,
                   stats, {});
        ASSERT_EQ(first_difference(found, wanted, problem.queries.rows()), "")
            << what << ", k " << k << ", " << threads << " threads, way " << static_cast<int>(way);
      }
    }
  }
};

TEST_P(CodeScan, FindsWhatAPlainLoopFinds) {
  std::uint64_t seed = 0;
  for (const Sizes& sizes : divisions())
    for (const std::int64_t k : {1, 10, 300, 5000})
      for (const int values : {0, 3}) {
        CodeShape shape = shape_of(sizes, ++seed);
        shape.values = values;
        expect_the_plain_loop(
            problem_of(shape), k,
            std::to_string(sizes.size()) + " segments, " + std::to_string(values) + " values");
        if (HasFatalFailure()) return;
      }
}

// A filter of rows, one of ids and rows that are gone, each in every third of the segments; one is
// left as it is.
TEST_P(CodeScan, FindsNoRowThatIsNotAllowed) {
  std::uint64_t seed = 100;
  for (const Sizes& sizes : divisions())
    for (const std::uint64_t one_in : {2, 40})
      for (const std::size_t way : {0, 1, 2}) {
        CodeProblem problem = problem_of(shape_of(sizes, ++seed));
        Random random(seed);
        std::vector<RowFilter> filters;
        std::vector<RowSet> live;
        filters.reserve(sizes.size()), live.reserve(sizes.size());
        for (std::size_t s = 0; s < sizes.size() - (sizes.size() > 3); ++s) {
          const std::int64_t rows = problem.lists[s].rows();
          if (rows == 0) continue;
          std::vector<Id> some;
          live.emplace_back(rows);
          for (std::int64_t row = 0; row < rows; ++row) {
            if (random.below(one_in) == 0)
              some.push_back((s + way) % 3 == 0 ? row : row / 2);  // ids below their number
            else if ((s + way) % 3 == 2)
              live.back().remove(row);
          }
          filters.push_back(RowFilter::of_ids(some, rows));
          if ((s + way) % 3 == 0) problem.allowed[s].filter = &filters.back();
          if ((s + way) % 3 == 1) problem.allowed_ids[s] = &filters.back();
          if ((s + way) % 3 == 2) problem.allowed[s].live = &live.back();
        }
        for (const std::int64_t k : {1, 10, 300})
          expect_the_plain_loop(problem, k,
                                std::to_string(sizes.size()) + " segments, one in " +
                                    std::to_string(one_in) + ", way " + std::to_string(way));
        if (HasFatalFailure()) return;
      }
}

INSTANTIATE_TEST_SUITE_P(
    OfEveryForm, CodeScan,
    testing::Values(Case{8, Metric::l2, true, false}, Case{8, Metric::l2, false, true},
                    Case{8, Metric::ip, false, false}, Case{8, Metric::cosine, false, true},
                    Case{4, Metric::l2, true, false}, Case{4, Metric::l2, false, true},
                    Case{4, Metric::cosine, false, true}));

// Both ways beside the plain loop. Returns how many rows were summed up, by products.
std::int64_t check(const CodeProblem& problem, std::int64_t k, const std::string& what,
                   int threads = 1, std::int64_t memory = 1 << 24, bool with_bounds = false) {
  const std::int64_t queries = problem.queries.rows();
  const CodeProbes probes{problem.probed.view(), problem.terms.view()};
  CodedNeighbors wanted = test::plain_loop(problem, k);
  std::int64_t summed = 0;
  for (const Isa isa : test::levels())
    for (const CodeComparison way :
         {CodeComparison::by_tables, CodeComparison::by_products, CodeComparison::automatic}) {
      CodeScanJob job = problem.job(k);
      job.isa = isa, job.comparison = way, job.threads = threads, job.memory = memory;
      // As told by somebody who knows the k-th key.
      std::vector<double> bounds;
      if (with_bounds) {
        for (std::int64_t q = 0; q < queries; ++q) bounds.push_back(wanted.of(q).back().key);
        job.upper_bounds = bounds.data();
      }
      CodedNeighbors found(queries, k);
      ScanStats stats;
      scan_codes(problem.segments(), job, probes, found, stats, {});
      EXPECT_EQ(test::first_difference(found, wanted, queries), "")
          << what << ", way " << static_cast<int>(way) << ", " << name_of(isa) << ", k = " << k;
      if (way == CodeComparison::by_products) summed = stats.survivors;
    }
  return summed;
}

// The same with all numbers larger, and moved.
CodeProblem moved(const CodeProblem& problem, float factor, float by) {
  CodeProblem out = problem_of(problem.shape);
  Matrix<float> centroids(problem.book.centroids().rows(), problem.book.width());
  for (std::int64_t c = 0; c < centroids.rows(); ++c)
    for (std::int64_t j = 0; j < centroids.cols(); ++j)
      centroids.row(c)[j] = problem.book.centroids().row(c)[j] * factor + by;
  out.book = CodeBook(std::move(centroids), problem.book.parts(), problem.book.bits());
  for (std::int64_t q = 0; q < out.queries.rows(); ++q)
    for (std::int64_t j = 0; j < out.queries.cols(); ++j)
      out.queries.row(q)[j] = problem.queries.row(q)[j] * factor + by;
  for (std::int64_t q = 0; q < out.terms.rows(); ++q)
    for (std::int64_t p = 0; p < out.terms.cols(); ++p)
      out.terms.row(q)[p] = problem.terms.row(q)[p] * factor * factor;
  return out;
}

std::vector<CodeShape> shapes() {
  std::vector<CodeShape> out;
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const bool residual : {false, true}) {
      CodeShape shape{6, 8};
      shape.metric = metric, shape.seed = 1 + out.size();
      shape.squared = metric == Metric::l2 && !residual;
      shape.scalars = metric == Metric::cosine || (metric == Metric::l2 && residual);
      shape.sizes = {{130, 1, 0, 64, 31}, {0, 65, 63, 7, 1100}};
      shape.queries = 30, shape.probes = 4;
      out.push_back(shape);
    }
  return out;
}

TEST(CodeScanWays, EveryMetricAndK) {
  for (const CodeShape& shape : shapes())
    for (const std::int64_t k : {1, 7, 40, 700, 3000})
      if (!test::small() || k == 1 || k == 40 || k == 3000)
        check(problem_of(shape), k, std::string(name_of(shape.metric)));
}

TEST(CodeScanWays, EveryShapeOfCodes) {
  std::uint64_t seed = 1;
  for (const int bits : {8, 4})
    for (const std::int64_t width : {1, 2, 3, 4, 5, 8, 12})
      for (const std::int64_t parts : {1, 2, 3, 7, 16, 33}) {
        CodeShape shape{parts, bits};
        shape.width = width, shape.seed = ++seed;
        shape.metric = seed % 2 == 0 ? Metric::ip : Metric::l2;
        shape.squared = shape.metric == Metric::l2 && seed % 3 == 0;
        shape.scalars = shape.metric == Metric::l2 && !shape.squared;
        shape.queries = 1 + static_cast<std::int64_t>(seed % 27);
        check(problem_of(shape), 10,
              std::to_string(parts) + " parts of " + std::to_string(width) + " columns");
      }
}

TEST(CodeScanWays, BlocksThreadsAndBounds) {
  for (const CodeShape& shape : shapes()) {
    const CodeProblem problem = problem_of(shape);
    check(problem, 10, "three threads", 3);
    check(problem, 10, "blocks of few queries", 2, 1 << 15);
    check(problem, 10, "known keys", 1, 1 << 24, true);
    CodeShape one = shape;
    one.queries = 1;  // shared by the threads
    check(problem_of(one), 10, "one query", 3);
  }
}

// Few rows are summed up though many are multiplied, wherever the numbers lie.
TEST(CodeScanWays, ProductsLeaveFewRows) {
  for (const CodeShape& usual : shapes()) {
    CodeShape shape = usual;
    shape.parts = 16, shape.width = 4, shape.sizes = {{4000, 3000}}, shape.probes = 2;
    CodeProblem problem = problem_of(shape);
    // Of residuals, so that sums are no less than 0, from which they would be equal.
    for (std::int64_t q = 0; shape.metric == Metric::l2 && q < shape.queries; ++q)
      for (std::int64_t p = 0; p < shape.probes; ++p) problem.terms.row(q)[p] += 50;
    const std::int64_t rows = 7000 * (shape.queries - 1) + 3000;
    EXPECT_LT(check(problem, 10, "as they are"), rows / 20);
    if (shape.metric == Metric::cosine) continue;  // its keys would be nearly the same
    EXPECT_LT(check(moved(problem, 1, 100), 10, "far from zero"), rows / 20);
    for (const float factor : {1e-8f, 1e8f})
      EXPECT_LT(check(moved(problem, factor, 0), 10, "another unit"), rows / 20) << factor;
  }
}

TEST(CodeScanWays, NumbersThatAreVerySmallOrLarge) {
  for (const CodeShape& shape : shapes())
    for (const float factor : {1e-38f, 1e-22f, 1e-15f, 1e12f, 1e17f})
      check(moved(problem_of(shape), factor, 0), 10, "times " + std::to_string(factor));
}

// Whole keys, of which many rows have the same: ids decide, also at the k-th.
TEST(CodeScanWays, TiesGoById) {
  for (const int values : {1, 2})
    for (CodeShape shape : shapes()) {
      shape.values = values;
      for (const std::int64_t k : {1, 10, 100, 400}) check(problem_of(shape), k, "ties");
    }
}

TEST(CodeScanWays, QueriesThatAreAllTheSame) {
  for (const CodeShape& shape : shapes()) {
    CodeProblem problem = problem_of(shape);
    for (std::int64_t q = 1; q < problem.queries.rows(); ++q)
      std::copy_n(problem.queries.row(0), problem.queries.cols(), problem.queries.row(q));
    check(problem, 10, "one query many times");
    for (std::int64_t q = 0; q < problem.queries.rows(); ++q)
      std::fill_n(problem.queries.row(q), problem.queries.cols(), 0.0);
    check(problem, 10, "zeros");
  }
}

TEST(CodeScanWays, FiltersAndRemovedRows) {
  for (const CodeShape& shape : shapes()) {
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
    for (const std::int64_t k : {1, 20, 200}) check(problem, k, "a filter and removed rows");
    const RowFilter ids = RowFilter::of_ids(std::vector<Id>{0, 3, 4, 17, 50, 100, 101}, 102);
    problem.allowed_ids[0] = &ids;
    check(problem, 20, "ids");
    const RowFilter nothing = RowFilter::of_ids({}, 220);
    problem.allowed[0].filter = &nothing;
    check(problem, 20, "nothing of one segment");
    // One row in a hundred of long lists.
    CodeShape longer = shape;
    longer.sizes = {{2000, 700, 1500}};
    CodeProblem strong = problem_of(longer);
    rows.clear();
    for (Id row = 0; row < 4200; row += 97) rows.push_back(row);
    const RowFilter some = RowFilter::of_ids(rows, 4200);
    strong.allowed[0].filter = &some;
    for (const std::int64_t k : {1, 20, 200}) check(strong, k, "one row in a hundred");
  }
}

// Other centroids and queries in a problem.
template <class Centroid, class Query>
void fill(CodeProblem& problem, Centroid centroid, Query query) {
  Matrix<float> centroids(problem.book.centroids().rows(), problem.book.width());
  for (std::int64_t c = 0; c < centroids.rows(); ++c)
    for (std::int64_t j = 0; j < centroids.cols(); ++j) centroids.row(c)[j] = centroid(c, j);
  problem.book = CodeBook(std::move(centroids), problem.book.parts(), problem.book.bits());
  for (std::int64_t q = 0; q < problem.queries.rows(); ++q)
    for (std::int64_t j = 0; j < problem.queries.cols(); ++j)
      problem.queries.row(q)[j] = query(q, j);
  for (std::int64_t q = 0; q < problem.terms.rows(); ++q)
    std::fill_n(problem.terms.row(q), problem.terms.cols(), 0.0f);
}

// A few far values make the range of a table hundreds of times as wide as the distances that are
// wanted, and codes of 8 bits coarse beside these. Then few rows are summed up all the same.
TEST(CodeScanWays, RowsThatLieCloseBesideTheRangeAreToldApart) {
  for (const std::int64_t queries : {1, 100}) {
    CodeShape shape{16, 8};
    shape.width = 1, shape.sizes = {{4000, 3000}}, shape.queries = queries, shape.probes = 2;
    CodeProblem problem = problem_of(shape);
    Random random(7);
    fill(
        problem,
        [&](std::int64_t c, std::int64_t) {
          const double x = random.uniform() - 0.5;
          return static_cast<float>(c % 256 < 250 ? x : 4000 * x);
        },
        [&](std::int64_t, std::int64_t) { return random.uniform() - 0.5; });
    Matrix<std::uint8_t> codes(7000, 16);
    std::vector<std::uint32_t> list_of(7000);
    for (std::int64_t row = 0; row < 7000; ++row) {
      list_of[static_cast<std::size_t>(row)] = row >= 4000;
      for (std::int64_t b = 0; b < 16; ++b)
        codes.row(row)[b] = static_cast<std::uint8_t>(random.below(row % 50 == 0 ? 256 : 250));
    }
    problem.lists[0] = CodedLists::of(list_of, codes.view(), {});
    check(problem, 10, "a wide range");
    CodedNeighbors found(queries, 10);
    for (const Isa isa : test::levels())
      for (const CodeComparison way : {CodeComparison::by_tables, CodeComparison::automatic}) {
        // Where a look-up takes long, summing up most rows takes less time.
        const ListShape of_codes{.dim = 16, .code_parts = 16};
        if (way == CodeComparison::automatic &&
            !tables_of_codes_pay_instead(of_codes, 0.9, 5000, isa))
          continue;
        CodeScanJob job = problem.job(10);
        job.isa = isa, job.comparison = way;
        ScanStats stats;
        scan_codes(problem.segments(), job, {problem.probed.view(), problem.terms.view()}, found,
                   stats, {});
        EXPECT_LT(stats.survivors, 7000 * queries / 5)
            << queries << " queries, way " << static_cast<int>(way) << ", " << name_of(isa);
      }
  }
}

// Very many rows are equal. Lists and segments with smaller ids come later.
TEST(CodeScanWays, EqualRowsWithSmallerIdsBehind) {
  for (CodeShape shape : shapes()) {
    shape.values = 1;
    CodeProblem problem = problem_of(shape);
    Id next = 100000;
    for (std::vector<Id>& ids : problem.ids) {
      next -= std::ssize(ids);
      std::iota(ids.begin(), ids.end(), next);
    }
    for (const std::int64_t k : {1, 10, 100}) check(problem, k, "equal rows");
  }
}

// Centroids and queries, less their mean, that 8 bits hold exactly, so that nothing but roundings
// lies between keys and bounds: those of denormal numbers, since without a mean there is no float
// for the unit of so small bounds, and every row is summed.
TEST(CodeScanWays, KeysThatFloatsHardlyHold) {
  constexpr std::int64_t parts = 3, width = 2, half_count = parts * 128 * width;
  for (const std::uint64_t seed : {1, 2, 3})
    for (int exponent = -130; exponent >= -146; exponent -= 2)
      for (const std::int64_t k : {1, 10, 100}) {
        Random random(seed);
        const auto whole = [&] { return static_cast<double>(random.below(255)) - 127; };
        CodeShape shape{parts, 8};
        shape.metric = Metric::ip, shape.squared = false, shape.width = width, shape.seed = seed;
        shape.sizes = {{900, 700, 64, 33}}, shape.queries = 40, shape.probes = 4;
        CodeProblem problem = problem_of(shape);
        // Each with its opposite: the mean of centroids is zero, that of queries the first column.
        std::vector<double> half, of_query;
        for (std::int64_t i = 0; i < half_count; ++i)
          half.push_back(i % (128 * width) == 0 ? 127 : whole());
        for (std::int64_t j = 0; j < parts * width * 20; ++j)
          of_query.push_back(j % (parts * width) <= 1 ? 127 : whole());
        fill(
            problem,
            [&](std::int64_t c, std::int64_t j) {
              const std::int64_t of_part = c % 256, i = std::min(of_part, 255 - of_part);
              const double x =
                  half[static_cast<std::size_t>((c / 256 * 128 + i) * width + j)] * 0x1p-7;
              return static_cast<float>(of_part < 128 ? x : -x);
            },
            [&](std::int64_t q, std::int64_t j) {
              const double x = of_query[static_cast<std::size_t>(q / 2 * parts * width + j)];
              return std::ldexp(q % 2 == 1 && j > 0 ? -x : x, exponent - 7);
            });
        check(problem, k, "2^" + std::to_string(exponent));
      }
}

// Sums that overflow on the way, though their exact values are small.
TEST(CodeScanWays, SumsThatOverflowOnTheWay) {
  CodeShape shape{4, 8};
  shape.metric = Metric::ip, shape.squared = false, shape.width = 4;
  shape.sizes = {{200, 64}}, shape.probes = 2, shape.queries = 40;
  CodeProblem problem = problem_of(shape);
  Random random(3);
  fill(
      problem,
      [&](std::int64_t c, std::int64_t j) {
        if (j == 0 && c % 256 >= 253) return c % 256 == 255 ? 1.0f : c % 256 == 254 ? -1.0f : 0.3f;
        return static_cast<float>(0.001 * (random.uniform() - 0.5));
      },
      [&](std::int64_t q, std::int64_t j) {
        return j % 4 == 0 ? (q % 2 ? -1.4e38 : -1.8e38) : 1e30 * (random.uniform() - 0.5);
      });
  Matrix<std::uint8_t> codes(264, 4);
  std::vector<std::uint32_t> list_of(264);
  for (std::int64_t row = 0; row < 264; ++row) {
    list_of[static_cast<std::size_t>(row)] = row >= 200;
    for (std::int64_t b = 0; b < 4; ++b)
      codes.row(row)[b] = static_cast<std::uint8_t>(random.below(250));
  }
  for (std::int64_t b = 0; b < 4; ++b) codes.row(20)[b] = b < 2 ? 255 : 254;
  codes.row(30)[0] = 253;  // the best of those that do not
  problem.lists[0] = CodedLists::of(list_of, codes.view(), {});
  for (const std::int64_t k : {1, 10}) check(problem, k, "overflow");
  for (const CodeShape& other : shapes())
    for (const float factor : {3e37f, 1e38f, 3e38f}) {
      if (test::small() && factor != 1e38f) continue;
      CodeProblem large = problem_of(other);
      for (std::int64_t q = 0; q < large.queries.rows(); ++q)
        for (std::int64_t j = 0; j < large.queries.cols(); ++j) large.queries.row(q)[j] *= factor;
      for (const std::int64_t k : {5, 100, 400}) check(large, k, "large queries");
    }
}

// Products of the queries' mean with centroids that are infinite both ways.
TEST(CodeScanWays, SumsOfRowsThatAreNone) {
  CodeShape shape{8, 8};
  shape.metric = Metric::ip, shape.squared = false, shape.width = 4;
  shape.sizes = {{64, 64}}, shape.probes = 2, shape.queries = 40;
  CodeProblem problem = problem_of(shape);
  fill(
      problem,
      [](std::int64_t c, std::int64_t j) {
        const float sizes[] = {-1e12f, 1e12f, 1e17f, -1e17f};
        return j == 0 && c % 256 >= 252 ? sizes[c % 256 - 252] : 0.0f;
      },
      [](std::int64_t q, std::int64_t) { return 1e25 * (1 + 0.001 * static_cast<double>(q)); });
  Matrix<std::uint8_t> codes(128, 8);
  std::vector<std::uint32_t> list_of(128);
  for (std::int64_t row = 0; row < 128; ++row) {
    list_of[static_cast<std::size_t>(row)] = row >= 64;
    for (std::int64_t b = 0; b < 8; ++b) codes.row(row)[b] = 0;
    if (row % 3 == 0) codes.row(row)[2] = static_cast<std::uint8_t>(253 - row % 2);
    if (row == 5 || row == 70) codes.row(row)[0] = 254, codes.row(row)[1] = 255;
  }
  problem.lists[0] = CodedLists::of(list_of, codes.view(), {});
  for (const std::int64_t k : {1, 64, 100, 200}) check(problem, k, "infinite");
}

// A codec may keep numbers of a row behind what the book describes.
TEST(CodeScanWays, BytesBehindThoseOfTheBook) {
  // Half bytes of an even number of parts end with a byte.
  for (const auto& [parts, bits] : {std::pair{7, 8}, std::pair{7, 4}, std::pair{8, 4}}) {
    CodeShape shape{parts, bits};
    shape.sizes = {{200, 64, 3}, {0, 130, 70}}, shape.probes = 2, shape.queries = 40;
    CodeProblem problem = problem_of(shape);
    Random random(5);
    for (CodedLists& lists : problem.lists) {
      const std::int64_t width = lists.width();
      Matrix<std::uint8_t> codes(lists.rows(), width + 5);
      for (std::int64_t row = 0; row < lists.rows(); ++row) {
        const CodedLists::Place place = lists.place(row);
        for (std::int64_t b = 0; b < codes.cols(); ++b)
          codes.row(row)[b] = b < width ? place.code[b * place.stride]
                                        : static_cast<std::uint8_t>(random.below(256));
      }
      const std::vector<float> scalars(lists.scalars(),
                                       lists.scalars() + (lists.has_scalars() ? lists.rows() : 0));
      lists = CodedLists::of(lists.list_of(), codes.view(), scalars);
    }
    for (const std::int64_t k : {1, 10, 300}) check(problem, k, "more bytes");
  }
}

}  // namespace
}  // namespace knear
