// All rows within a radius, called by itself: exactly the pairs of the reference whose key is at
// most the limit, whatever the codes, the instruction set and the division of the work.
#include "knear/scan/methods/range_scan.hpp"

#include <gtest/gtest.h>

#include "knear/core/error.hpp"
#include "tests/scan/scan_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t no_limit = std::int64_t{1} << 60;

// The reference's pairs of each query up to the limit, nearest first.
RangeLists expected_lists(const ScanCase& c, std::int64_t queries, double limit,
                          const AllowedRows& allowed = {}) {
  RangeLists out;
  for (std::int64_t q = 0; q < queries; ++q) {
    out.push_back(c.found(q, allowed));
    std::erase_if(out.back(), [&](const auto& pair) { return !(pair.first <= limit); });
  }
  return out;
}

RangeLists in_order(RangeLists lists) {
  for (auto& list : lists) std::sort(list.begin(), list.end());
  return lists;
}

RangeLists lists_of(const PackedBase& packed, const ScanJob& job, double limit) {
  RangeLists out(static_cast<std::size_t>(job.queries.rows()));
  RangeSink sink(out, {}, no_limit);
  ScanStats stats;
  scan_range(packed, job, limit, sink, stats, {});
  return in_order(std::move(out));
}

class RangeScan : public testing::TestWithParam<std::tuple<Codes, Isa>> {
 protected:
  const Codes codes = std::get<0>(GetParam());
  const Isa isa = std::get<1>(GetParam());
};

TEST_P(RangeScan, FindsWhatIsWithinTheRadiusAndNothingElse) {
  for (const Metric metric : metrics)
    for (const std::int64_t rows : {1, 31, 33, 700}) {
      if (!serves(codes, metric)) continue;
      const ScanCase c(vectors(codes, rows, 23, 1), vectors(codes, 49, 23, 2), metric);
      const PackedBase packed = c.packed(codes, isa);
      std::vector<double> limits = {-infinity, infinity, 0};
      for (const std::int64_t rank : {std::int64_t{0}, rows / 20, rows - 1}) {
        const double key = c.order[0][static_cast<std::size_t>(rank)].first;
        for (const double limit : {std::nextafter(key, -infinity), key, key + 0.25})
          limits.push_back(limit);
      }
      for (const double limit : limits)
        for (const std::int64_t queries : {1, 12, 13, 49}) {
          ScanJob job = c.job(1, isa);
          job.queries = c.queries.view().rows(0, queries);
          ASSERT_EQ(lists_of(packed, job, limit), expected_lists(c, queries, limit))
              << name_of(metric) << ' ' << rows << " rows, " << queries << " queries, limit "
              << limit;
        }
    }
}

TEST_P(RangeScan, DivisionCopiesAndFiltersChangeNothing) {
  AnyMatrix base = vectors(codes, 900, 24, 3);
  for (std::int64_t i = 0; i < 900; i += 3) copy_row(base, i / 2, i);
  const ScanCase c(std::move(base), vectors(codes, 30, 24, 4), Metric::l2);
  const PackedBase packed = c.packed(codes, isa);
  std::vector<Id> some;
  for (Id i = 0; i < 907; i += 2) some.push_back(i);
  const RowFilter filter = RowFilter::of_ids(some, 907);
  const double limit = c.order[0][60].first;
  for (const int threads : {1, 3})
    for (const int splits : {1, 3})
      for (const int group : {1, 4, 12})
        for (const bool filtered : {false, true}) {
          ScanJob job = c.job(1, isa, threads);
          job.splits = splits, job.group = group;
          if (filtered) job.allowed = {.filter = &filter, .offset = 7};
          ASSERT_EQ(lists_of(packed, job, limit), expected_lists(c, 30, limit, job.allowed))
              << threads << " threads, " << splits << " splits, group " << group;
        }
}

INSTANTIATE_TEST_SUITE_P(CodesAndIsas, RangeScan,
                         testing::Combine(testing::ValuesIn(all_codes),
                                          testing::ValuesIn(test::levels())),
                         [](const auto& p) {
                           return name_of(std::get<0>(p.param)) + "_" +
                                  std::string(name_of(std::get<1>(p.param)));
                         });

TEST(RangeScanDirectly, MeasuresAllRowsOrASubset) {
  std::vector<std::uint32_t> subset;
  for (std::uint32_t i = 3; i < 700; i += 1 + i % 4) subset.push_back(i);
  const RowFilter filter = RowFilter::of_ids(std::vector<Id>(subset.begin(), subset.end()), 700);
  for (const Metric metric : metrics) {
    const ScanCase c(vectors(Codes::fp32, 700, 23, 1), vectors(Codes::fp32, 21, 23, 2), metric);
    const double limit = c.order[0][80].first;
    for (const int threads : {1, 3})
      for (const bool some : {false, true}) {
        RangeLists out(21);
        RangeSink sink(out, {}, no_limit);
        ScanStats stats;
        const AllowedRows allowed{.filter = some ? &filter : nullptr};
        scan_range_directly(c.job(1, active_isa(), threads),
                            some ? subset : std::vector<std::uint32_t>{}, limit, sink, stats, {});
        EXPECT_EQ(in_order(std::move(out)), expected_lists(c, 21, limit, allowed))
            << name_of(metric) << ' ' << threads;
      }
  }
}

// What was found of one base stays when another follows, under ids of its own.
TEST(RangeSink, AddsTheIdsOfABaseToTheListsOfItsQueries) {
  const ScanCase c(vectors(Codes::int8, 300, 24, 1), vectors(Codes::int8, 3, 24, 2), Metric::l2);
  const double limit = c.order[0][50].first;
  std::vector<Id> ids;
  for (Id i = 0; i < 300; ++i) ids.push_back(1000 - 3 * i);
  RangeLists out(6);
  for (auto& list : out) list.emplace_back(-1.0, 5);
  // Queries 0, 1, 2 of the job have lists 4, 0 and 3.
  const std::vector<std::int64_t> which = {4, 0, 3};
  const RangeSink whole(out, {.first = 0, .ids = ids.data()}, no_limit);
  RangeSink sink(whole, which);
  ScanStats stats;
  scan_range(c.packed(Codes::int8, active_isa()), c.job(1), limit, sink, stats, {});
  const RangeLists found = expected_lists(c, 3, limit);
  RangeLists expected(6);
  for (auto& list : expected) list.emplace_back(-1.0, 5);
  for (std::size_t q = 0; q < 3; ++q)
    for (const auto& [key, row] : found[q])
      expected[static_cast<std::size_t>(which[q])].emplace_back(key, 1000 - 3 * row);
  EXPECT_EQ(in_order(std::move(out)), in_order(std::move(expected)));
  EXPECT_GT(found[0].size(), 50u);
}

TEST(RangeSink, StopsAScanThatFindsMoreThanMayBe) {
  for (const Codes codes : {Codes::int8, Codes::integer}) {
    const ScanCase c(vectors(codes, 300, 24, 1), vectors(codes, 5, 24, 2), Metric::l2);
    const PackedBase packed = c.packed(codes, active_isa());
    for (const bool direct : {false, true})
      for (const std::int64_t most : {1500, 1499}) {
        RangeLists out(5);
        ScanStats stats;
        const auto search = [&] {
          RangeSink sink(out, {}, most);
          if (direct)
            scan_range_directly(c.job(1), {}, infinity, sink, stats, {});
          else
            scan_range(packed, c.job(1), infinity, sink, stats, {});
        };
        if (most == 1500) {
          EXPECT_NO_THROW(search());
          EXPECT_EQ(out[4].size(), 300u);
          EXPECT_THROW(search(), MemoryBudgetError);  // what lists have already counts
        } else {
          EXPECT_THROW(search(), MemoryBudgetError);
        }
      }
  }
}

TEST(RangeSink, TakesMeasuredPairsOfAnotherDevice) {
  // Pairs by query, many of them of one query, so that tasks end at queries.
  std::vector<PrunedPair> pairs;
  std::vector<std::uint32_t> rows(50000);
  RangeLists expected(9);
  const std::vector<std::int64_t> queries = {8, 2, 5, 0};
  Random random(1);
  for (std::uint32_t i = 0; i < rows.size(); ++i) rows[i] = 3 * i + 1;
  for (std::uint32_t q = 0; q < 4; ++q)
    for (std::uint32_t i = 0; i < (q == 1 ? 40000u : 3000u); ++i) {
      const double key = random.uniform();
      pairs.push_back({key, key, q, i});
      if (key <= 0.5) expected[static_cast<std::size_t>(queries[q])].emplace_back(key, 3 * i + 101);
    }
  for (const int threads : {1, 3}) {
    RangeLists out(9);
    RangeSink sink(out, {.first = 100}, no_limit);
    sink.take(pairs, queries, rows, 0.5, threads);
    EXPECT_EQ(out, expected) << threads;  // in the order of the pairs, too
  }
  RangeLists out(9);
  RangeSink sink(out, {}, 100);
  EXPECT_THROW(sink.take(pairs, queries, {}, 0.5, 2), MemoryBudgetError);
}

}  // namespace
}  // namespace knear::detail
