// The scan in two stages, called by itself: whatever it does not give up is the reference's answer,
// to the bit.
#include <gtest/gtest.h>

#include "knear/scan/prefix/prefix_scan.hpp"
#include "tests/scan/prefix/prefix_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

// Scans for some queries. Those that are not given up, of which the answer must be right.
std::vector<std::int64_t> answered(const ScanCase& c, const PrefixBase& base, const ScanJob& job,
                                   const std::vector<std::int64_t>& which) {
  ExactNeighbors out(c.queries.rows(), job.k);
  std::fill_n(out.ids.data(), c.queries.rows() * job.k, Id{-77});
  ScanStats stats;
  const auto given_up = scan_with_prefix(base, job, which, out, stats, {});
  std::vector<std::int64_t> rest;
  for (const std::int64_t q : all_of(c.queries.rows())) {
    const auto has = [&](const auto& list) {
      return std::find(list.begin(), list.end(), q) != list.end();
    };
    if (has(given_up) || !has(which))
      EXPECT_EQ(out.ids.row(q)[0], -77) << "query " << q << " is untouched";
    else
      rest.push_back(q);
  }
  EXPECT_EQ(rest.size() + given_up.size(), which.size());
  EXPECT_TRUE(is_nearest(c, out, rest, job.k, job.allowed, job.upper_bounds));
  return rest;
}

class PrefixScan : public testing::TestWithParam<std::tuple<Codes, Metric>> {
 protected:
  const Codes codes = std::get<0>(GetParam());
  const Metric metric = std::get<1>(GetParam());
  const PrefixPlan plan{.columns = 16, .clusters = 20, .tile_bytes = 8192};
  const MachinePeaks slow = slow_scans(), fast = fast_scans();
};

TEST_P(PrefixScan, AnswersAsTheReference) {
  const ScanCase c(falling(codes, 1800, 48, 1, 1), falling(codes, 61, 48, 1, 2), metric);
  for (const Isa isa : test::levels()) {
    const ForcedIsa forced(isa);
    const auto base = prefix_of(c, codes, plan);
    ASSERT_TRUE(base);
    ASSERT_GT(base->panels.tiles, 3);
    for (const std::int64_t queries : {0, 1, 13, 61})
      for (const std::int64_t k : {1, 10, 33, 150})
        for (const int threads : {1, 3}) {
          ScanJob job = c.job(k, isa, threads);
          job.peaks = &slow;
          ASSERT_EQ(answered(c, *base, job, all_of(queries)), all_of(queries))
              << name_of(isa) << ' ' << queries << " queries, k " << k << ' ' << threads
              << " threads";
        }
  }
}

TEST_P(PrefixScan, DivisionCopiesFiltersAndBoundsChangeNothing) {
  AnyMatrix rows = falling(codes, 1500, 40, 1, 3);
  for (std::int64_t i = 0; i < 1500; i += 4) copy_row(rows, i / 2, 1499 - i);
  const ScanCase c(std::move(rows), falling(codes, 25, 40, 1, 4), metric);
  const auto base = prefix_of(c, codes, plan);
  ASSERT_TRUE(base && base->panels.duplicates.any());
  RowSet live(1500);
  for (std::int64_t i = 0; i < 1500; i += 3) live.remove(i);
  std::vector<double> bounds;
  for (const auto& list : c.order) bounds.push_back(list[20].first);
  const std::vector<std::int64_t> which = {24, 3, 7, 8, 9, 10, 0};
  for (const int threads : {1, 3})
    for (const int splits : {0, 1, 3})
      for (const bool some_live : {false, true})
        for (const bool bounded : {false, true})
          for (const bool refines : {false, true})
            for (const std::int64_t k : {5, 40}) {
              ScanJob job = c.job(k, active_isa(), threads);
              job.peaks = &slow, job.splits = splits, job.may_refine = refines;
              if (some_live) job.allowed.live = &live;
              if (bounded) job.upper_bounds = bounds.data();
              ASSERT_EQ(answered(c, *base, job, which).size(), which.size())
                  << threads << " threads, " << splits << " splits, k " << k;
            }
}

// No direction matters more than another: the prefix rules out little. What is answered is right.
TEST_P(PrefixScan, GivesUpWhereItRulesOutTooLittle) {
  const ScanCase c(vectors(codes, 1800, 64, 5), vectors(codes, 60, 64, 6), metric);
  const auto base = prefix_of(c, codes, {.columns = 8, .clusters = 10, .tile_bytes = 1024});
  ASSERT_TRUE(base);
  for (const int splits : {1, 3}) {
    ScanJob job = c.job(10);
    job.splits = splits;
    job.peaks = &fast;
    EXPECT_LT(answered(c, *base, job, all_of(60)).size(), 60u);
    job.peaks = &slow;
    EXPECT_EQ(answered(c, *base, job, all_of(60)).size(), 60u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codes, PrefixScan,
    testing::Values(std::tuple(Codes::int8, Metric::l2), std::tuple(Codes::int8, Metric::ip),
                    std::tuple(Codes::int8, Metric::cosine), std::tuple(Codes::integer, Metric::l2),
                    std::tuple(Codes::integer, Metric::ip)),
    [](const auto& p) {
      return name_of(std::get<0>(p.param)) + "_" + std::string(name_of(std::get<1>(p.param)));
    });

TEST(PrefixScanOfLarge, QueriesThatNoPrefixHoldsAreGivenUp) {
  AnyMatrix queries = falling(Codes::int8, 9, 32, 1, 2);
  for (const std::int64_t q : {2, 5}) static_cast<float*>(queries.row(q))[3] = 1e30f;
  const ScanCase c(falling(Codes::int8, 900, 32, 1, 1), std::move(queries), Metric::l2);
  const auto base = prefix_of(c, Codes::int8, {.columns = 8, .clusters = 10, .tile_bytes = 0});
  ASSERT_TRUE(base);
  EXPECT_EQ(answered(c, *base, c.job(4), all_of(9)),
            (std::vector<std::int64_t>{0, 1, 3, 4, 6, 7, 8}));
  EXPECT_TRUE(answered(c, *base, c.job(4), {2, 5}).empty());
}

}  // namespace
}  // namespace knear::detail
