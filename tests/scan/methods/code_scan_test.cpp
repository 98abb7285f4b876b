// The scan of codes on the processor beside a plain loop: lists whose rows lie in several segments,
// which are scored together, few of them and many.
#include "knear/scan/methods/code_scan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/scan/device/code_problem.hpp"

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
    for (const int threads : {1, 3, 24}) {
      CodeScanJob job = problem.job(k);
      job.threads = threads;
      CodedNeighbors found(problem.queries.rows(), k);
      ScanStats stats;
      scan_codes(problem.segments(), job, {problem.probed.view(), problem.terms.view()}, found,
                 stats, {});
      ASSERT_EQ(first_difference(found, wanted, problem.queries.rows()), "")
          << what << ", k " << k << ", " << threads << " threads";
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

}  // namespace
}  // namespace knear
