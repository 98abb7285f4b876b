// The law of bins against counting, against simulation and against published numbers; what a search
// promises by it against thousands of orders, and against splits made to break it.
#include "knear/select/bins.hpp"

#include <gtest/gtest.h>

#include <optional>

#include "knear/core/error.hpp"
#include "tests/select/reduction_cases.hpp"

namespace knear {
namespace {

using test::lost;
using test::random_places;

double mean_of(const std::vector<double>& law) {
  double sum = 0;
  for (std::size_t l = 0; l < law.size(); ++l) sum += static_cast<double>(l) * law[l];
  return sum;
}

TEST(ExpectedRecall, EqualsCounting) {
  for (const std::int64_t rows : {1, 2, 5, 12, 13, 40, 1000})
    for (std::int64_t k = 1; k <= std::min<std::int64_t>(rows, 12); ++k)
      for (const std::int64_t bins : {1, 2, 3, 5, 7, 12, 40})
        for (const int kept : {1, 2, 3, 4, 9}) {
          if (bins > rows) continue;
          const double loss = mean_of(test::law_of_lost(k, rows, {bins, kept}));
          ASSERT_NEAR(expected_recall(k, rows, {bins, kept}), 1 - loss / static_cast<double>(k),
                      1e-13)
              << rows << ' ' << k << ' ' << bins << ' ' << kept;
        }
}

// For kept = 1 a bin of n rows is empty with probability prod (1 - n / (N - i)), i below k.
TEST(ExpectedRecall, AtABillionRows) {
  for (const std::int64_t k : {10, 1000, 10000})
    for (const std::int64_t bins : {100, 10000, 1000000}) {
      const std::int64_t rows = 1000000000, size = rows / bins;
      double log_empty = 0;
      for (std::int64_t i = 0; i < k; ++i)
        log_empty += std::log1p(-static_cast<double>(size) / static_cast<double>(rows - i));
      const double kept = -static_cast<double>(bins) * std::expm1(log_empty);
      EXPECT_NEAR(expected_recall(k, rows, {bins, 1}), kept / static_cast<double>(k), 1e-12);
    }
}

TEST(ExpectedRecall, EqualsSimulation) {
  Random random(1);
  struct Case {
    std::int64_t k, rows, bins;
  };
  // Small bases first: there the binomial law would be wrong by many standard errors.
  for (const Case& c : {Case{10, 20, 8}, Case{30, 64, 13}, Case{100, 300, 40}, Case{10, 1000, 14},
                        Case{100, 100000, 77}, Case{200, 1000000, 300}})
    for (int kept = 1; kept <= 4; ++kept) {
      const int runs = 4000;
      double sum = 0, squares = 0;
      for (int run = 0; run < runs; ++run) {
        const auto x =
            static_cast<double>(lost(random_places(random, c.k, c.rows), {c.bins, kept}));
        sum += x, squares += x * x;
      }
      const double mean = sum / runs;
      const double error = std::sqrt((squares / runs - mean * mean) / runs);
      const double wanted =
          (1 - expected_recall(c.k, c.rows, {c.bins, kept})) * static_cast<double>(c.k);
      EXPECT_NEAR(mean, wanted, 4 * error + 3.0 / runs) << c.k << ' ' << c.rows << ' ' << kept;
    }
}

// More rows than any base has: places that are drawn with replacement.
constexpr std::int64_t endless = std::int64_t{1} << 40;

// The fewest bins that are good; none where only bins that keep every row are, which then do.
template <class Good>
std::optional<std::int64_t> fewest_bins(std::int64_t rows, int kept, Good good) {
  const std::int64_t most = (rows - 1) / kept;
  std::int64_t low = 1, high = most + 1;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (good(Reduction{middle, kept}))
      high = middle;
    else
      low = middle + 1;
  }
  return low <= most ? std::optional(low) : std::nullopt;
}
// Those that may be expected to lose no more than this share of the k nearest.
std::optional<std::int64_t> bins_for_loss(double share, std::int64_t k, std::int64_t rows,
                                          int kept) {
  return fewest_bins(rows, kept, [&](const Reduction& reduction) {
    return 1 - expected_recall(k, rows, reduction) <= share;
  });
}
// Those of a promise, as partial_reduce_search.cpp makes it: by Markov's inequality the mean of any
// set of queries falls below the recall in one order of a thousand at most.
std::optional<std::int64_t> promised_bins(double recall, std::int64_t k, std::int64_t rows,
                                          int kept) {
  return bins_for_loss(1e-3 * (1 - recall), k, rows, kept);
}

// The bins that kept = 1 .. 4 take for a huge base, by the expectation alone, and those of
// jax.lax.approx_max_k, which are by Eq. 14 of the paper: (1 - k) / ln(recall), nearly.
TEST(ExpectedRecall, TakesTheBinsOfThePublishedTable) {
  struct Line {
    std::int64_t k;
    double recall, paper;
    std::int64_t bins[4];
  };
  for (const Line& line :
       {Line{10, .95, 176, {88, 14, 7, 4}}, Line{10, .999, 8996, {4498, 108, 27, 12}},
        Line{100, .99, 9851, {4918, 378, 138, 77}},
        Line{100, .9999, 989951, {494968, 3997, 713, 279}},
        Line{1000, .999, 998501, {499168, 12640, 3257, 1523}}}) {
    const double others = static_cast<double>(line.k - 1);
    EXPECT_EQ(std::ceil(-1 / std::expm1(std::log(line.recall) / others)), line.paper);
    for (int kept = 1; kept <= 4; ++kept)
      EXPECT_EQ(bins_for_loss(1 - line.recall, line.k, endless, kept), line.bins[kept - 1])
          << line.k << ' ' << line.recall << ' ' << kept;
  }
  // docs/selection.md
  EXPECT_EQ(bins_for_loss(.001, 10, 1000000, 1), 4478);
  EXPECT_EQ(bins_for_loss(.001, 10, 1000000, 4), 12);
}

// The promise. ----------------------------------------------------------------------------------

// The mean loss of some queries in one order of the base; each query is a list of k of its rows.
using Queries = std::vector<std::vector<std::int64_t>>;
double mean_loss(const Queries& queries, const std::vector<std::int64_t>& place_of,
                 const Reduction& reduction) {
  std::int64_t sum = 0;
  std::vector<std::int64_t> places;
  for (const auto& rows : queries) {
    places.clear();
    for (const std::int64_t row : rows) places.push_back(place_of[row]);
    sum += lost(places, reduction);
  }
  return static_cast<double>(sum) / static_cast<double>(queries.size());
}

// The number of runs in which the queries' mean recall is below `recall`. Rows that matter are 0 ..
// used - 1 of so many.
int shortfalls(Random& random, int runs, const Queries& queries, std::int64_t used,
               std::int64_t rows, const Reduction& reduction, double recall) {
  const auto k = static_cast<double>(queries[0].size());
  int count = 0;
  for (int run = 0; run < runs; ++run) {
    auto places = random_places(random, used, rows);
    for (std::size_t i = places.size(); i > 1; --i)  // the set is uniform, its order is not
      std::swap(places[i - 1], places[random.below(i)]);
    count += mean_loss(queries, places, reduction) > (1 - recall) * k;
  }
  return count;
}

// Copies of one query; queries that share most of their neighbours; groups that share none.
Queries copies(std::int64_t k) {
  Queries queries(1);
  for (std::int64_t i = 0; i < k; ++i) queries[0].push_back(i);
  return queries;
}
Queries overlapping(std::int64_t k, int count, std::int64_t step) {
  Queries queries;
  for (int q = 0; q < count; ++q) {
    queries.emplace_back();
    for (std::int64_t i = 0; i < k; ++i) queries.back().push_back(q * step + i);
  }
  return queries;
}

TEST(Promise, AMeanFallsBelowItLessThanOnceInAThousandRuns) {
  Random random(3);
  struct Case {
    std::int64_t k, rows;
    double recall;
    int runs;
  };
  for (const Case& c :
       {Case{10, 1000, .9, 20000}, Case{10, 100000, .95, 20000}, Case{100, 2000, .9, 10000},
        Case{100, 1000000, .95, 10000}, Case{1000, 100000, .9, 3000}})
    for (const int kept : {2, 4}) {
      SCOPED_TRACE(testing::Message() << c.k << ' ' << c.rows << ' ' << c.recall << ' ' << kept);
      const auto bins = promised_bins(c.recall, c.k, c.rows, kept);
      if (!bins) continue;
      const Reduction reduction{*bins, kept};
      // The number of runs allowed: its mean plus four standard deviations.
      const double mean = 1e-3 * c.runs;
      const double most = mean + 4 * std::sqrt(mean);
      EXPECT_LE(shortfalls(random, c.runs, copies(c.k), c.k, c.rows, reduction, c.recall), most);
      if (c.k > 100) continue;
      EXPECT_LE(shortfalls(random, c.runs / 4, overlapping(c.k, 9, 1), c.k + 8, c.rows, reduction,
                           c.recall),
                most);
      EXPECT_LE(shortfalls(random, c.runs / 4, overlapping(c.k, 9, c.k), 9 * c.k, c.rows, reduction,
                           c.recall),
                most);
    }
}

// The same runs show what the margin is for: with the expectation alone it is every third run.
TEST(Promise, IsBrokenOftenWithoutItsMargin) {
  Random random(4);
  const std::int64_t k = 100, rows = 100000;
  const auto bins = bins_for_loss(.1, k, rows, 2);
  EXPECT_GT(shortfalls(random, 1000, copies(k), k, rows, {*bins, 2}, .9), 300);
}

// With one neighbour lost in a thousand orders for one query alone, groups of queries break it more
// often: the bound must be on the expected loss, not on the share of orders with a loss.
TEST(Promise, CoversGroupsOfQueriesThatShareNothing) {
  Random random(5);
  const std::int64_t k = 10, rows = 100000;
  const double recall = .99;  // one neighbour lost by one query of ten
  const Queries queries = overlapping(k, 9, k);
  const auto bins = promised_bins(recall, k, rows, 2);
  EXPECT_LE(shortfalls(random, 20000, queries, 9 * k, rows, {*bins, 2}, recall), 20 + 18);
  // Bins with which one query has a loss in one order of a thousand fail nine times as often.
  const auto alone = fewest_bins(rows, 2, [&](const Reduction& reduction) {
    return uncertified_share(k, rows, reduction) <= 1e-3;
  });
  EXPECT_GT(shortfalls(random, 20000, queries, 9 * k, rows, {*alone, 2}, recall), 100);
}

TEST(UncertifiedShare, EqualsSimulationWhereItIsSmall) {
  Random random(6);
  struct Case {
    std::int64_t k, rows, bins;
    int kept;
  };
  for (const Case& c : {Case{10, 1000, 700, 1}, Case{10, 100000, 60, 2}, Case{100, 100000, 300, 3},
                        Case{50, 120, 60, 2}, Case{10, 30, 4, 4}}) {
    const int runs = 20000;
    int missed = 0;
    for (int run = 0; run < runs; ++run)
      missed += lost(random_places(random, c.k, c.rows), {c.bins, c.kept}) > 0;
    const double seen = static_cast<double>(missed) / runs;
    const double error = 4 * std::sqrt(seen * (1 - seen) / runs);
    const double bound = uncertified_share(c.k, c.rows, {c.bins, c.kept});
    EXPECT_LE(seen, bound + error) << c.k;
    // The union bound exceeds the truth by the share of orders with two such bins, about half its
    // square.
    EXPECT_GE(seen, bound * (1 - bound) - error) << c.k;
  }
}

// Shards. ---------------------------------------------------------------------------------------

// The neighbours lost over all shards: shard i has sizes[i] rows in an order of its own and
// holds held[i] of the neighbours.
std::int64_t lost_in_shards(Random& random, const std::vector<std::int64_t>& sizes,
                            const std::vector<std::int64_t>& held,
                            const std::vector<std::optional<std::int64_t>>& bins, int kept) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (bins[i] && held[i] > 0)
      sum += lost(random_places(random, held[i], sizes[i]), {*bins[i], kept});
  return sum;
}

// Bins for all k, unless they would keep every row of the shard.
std::optional<std::int64_t> bins_of_shard(std::int64_t rows, std::optional<std::int64_t> bins,
                                          int kept) {
  return bins && *bins * kept < rows ? bins : std::nullopt;
}

TEST(Shards, AnySplitKeepsThePromise) {
  Random random(7);
  const std::vector<std::int64_t> sizes = {1000, 3001, 40000, 6000, 40000, 999};
  for (const std::int64_t k : {10, 100})
    for (const int kept : {1, 2, 4}) {
      const double recall = .9;
      std::vector<std::optional<std::int64_t>> bins;
      for (const std::int64_t n : sizes)
        bins.push_back(bins_of_shard(n, promised_bins(recall, k, endless, kept), kept));
      // All neighbours in one shard, whichever; half in each of two; spread.
      std::vector<std::vector<std::int64_t>> splits;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        splits.emplace_back(sizes.size());
        splits.back()[i] = k;
      }
      splits.push_back({0, 0, k / 2, 0, k / 2, 0});
      splits.push_back({k / 10, k / 10, k / 2, k / 10, k / 10, k / 10});
      for (const auto& held : splits) {
        const int runs = 4000;
        int below = 0;
        double sum = 0;
        for (int run = 0; run < runs; ++run) {
          const auto x = static_cast<double>(lost_in_shards(random, sizes, held, bins, kept));
          below += x > (1 - recall) * static_cast<double>(k);
          sum += x;
        }
        EXPECT_LE(below, 4 + 8) << k << ' ' << kept;
        EXPECT_LE(sum / runs, (1 - recall) * static_cast<double>(k)) << k << ' ' << kept;
      }
    }
}

// The expectation alone is met, tightly, where the rule for random splits loses eight times as
// much.
TEST(Shards, ARandomSplitNeedsFewerBinsAndBreaksForOthers) {
  Random random(8);
  const std::int64_t k = 100, n = 50000;
  const std::vector<std::int64_t> sizes(8, n);
  const auto any = bins_for_loss(.05, k, endless, 1);
  ASSERT_TRUE(any);
  const std::int64_t chance = *any / 8;

  const auto mean_recall = [&](std::int64_t bins, bool random_split) {
    const int runs = 2000;
    double sum = 0;
    for (int run = 0; run < runs; ++run) {
      std::vector<std::int64_t> held(8);
      if (random_split)
        for (const std::int64_t place : random_places(random, k, 8 * n)) ++held[place % 8];
      else
        held[3] = k;
      sum += static_cast<double>(lost_in_shards(
          random, sizes, held, std::vector<std::optional<std::int64_t>>(8, bins), 1));
    }
    return 1 - sum / (runs * static_cast<double>(k));
  };
  EXPECT_NEAR(mean_recall(chance, true), .95, .003);
  EXPECT_LT(mean_recall(chance, false), .75);
  EXPECT_NEAR(mean_recall(*any, false), .95, .003);
  EXPECT_GT(mean_recall(*any, true), .99);
}

TEST(Bins, RefuseBadArguments) {
  EXPECT_THROW(expected_recall(0, 10, {1, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(11, 10, {1, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(5, 10, {0, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(5, 10, {11, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(5, 10, {2, 0}), InvalidArgument);
  EXPECT_THROW(uncertified_share(5, 10, {2, most_kept + 1}), InvalidArgument);
}

}  // namespace
}  // namespace knear
