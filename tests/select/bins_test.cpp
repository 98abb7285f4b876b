// The theory of bins against counting, against simulation and against published numbers; its
// promises against thousands of orders, and against splits made to break them.
#include "knear/select/bins.hpp"

#include <gtest/gtest.h>

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

// The bins that kept = 1 .. 4 take for a huge base, by the expectation alone, and those of
// jax.lax.approx_max_k, which are the paper's: (1 - k) / ln(recall).
TEST(FewestBins, OfThePublishedTable) {
  struct Line {
    std::int64_t k;
    double recall;
    std::int64_t paper, bins[4];
  };
  for (const Line& line :
       {Line{10, .95, 176, {88, 14, 7, 4}}, Line{10, .999, 8996, {4498, 108, 27, 12}},
        Line{100, .99, 9851, {4918, 378, 138, 77}},
        Line{100, .9999, 989951, {494968, 3997, 713, 279}},
        Line{1000, .999, 998501, {499168, 12640, 3257, 1523}}}) {
    EXPECT_EQ(paper_bins(line.k, line.recall), line.paper);
    for (int kept = 1; kept <= 4; ++kept)
      EXPECT_EQ(fewest_bins(ExpectedRecallGoal{line.recall}, line.k, {.rows = 1000000000000}, kept),
                line.bins[kept - 1])
          << line.k << ' ' << line.recall << ' ' << kept;
  }
}

TEST(PaperBins, InvertsTheEquation) {
  for (const std::int64_t k : {2, 3, 10, 100, 10000})
    for (const double recall : {.01, .5, .9, .95, .999, .999999}) {
      const std::int64_t bins = paper_bins(k, recall);
      EXPECT_GE(paper_expected_recall(k, bins), recall);
      if (bins > 1) {
        EXPECT_LT(paper_expected_recall(k, bins - 1), recall);
      }
      if (recall > .99) {
        EXPECT_NEAR(static_cast<double>(bins) / paper_bins_approximation(k, recall), 1, .01);
      }
    }
  EXPECT_EQ(paper_bins(1, .9), 1);
  EXPECT_EQ(paper_expected_recall(1, 1), 1.0);
  EXPECT_EQ(paper_expected_recall(5, 1), 0.0);
}

// Eq. 13 is the share of neighbours that are alone in their bin, and a lower bound of the recall.
TEST(PaperBins, EqualsSimulationOfThoseAlone) {
  Random random(2);
  const std::int64_t k = 20, bins = 90, rows = 90 * 1000000;
  const int runs = 20000;
  std::int64_t alone = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<int> count(bins);
    for (const std::int64_t place : random_places(random, k, rows)) ++count[place % bins];
    alone += std::count(count.begin(), count.end(), 1);
  }
  EXPECT_NEAR(static_cast<double>(alone) / (runs * k), paper_expected_recall(k, bins), .004);
  EXPECT_GT(expected_recall(k, rows, {bins, 1}), paper_expected_recall(k, bins) + .05);
}

// The bound of the margin from the true law of the loss; independent bins may only raise it.
double bound_by_counting(const std::vector<double>& law, double a) {
  double best = 1;
  for (double t = 0; t < a; ++t) {
    double over = 0;
    for (std::size_t l = 0; l < law.size(); ++l)
      over += law[l] * std::max(0.0, static_cast<double>(l) - t);
    best = std::min(best, over / (a - t));
  }
  return best;
}

TEST(ShortfallProbability, IsSoundAndNotFarFromSharp) {
  for (const std::int64_t rows : {20, 25, 100, 10000})
    for (const std::int64_t k : {2, 5, 10, 20})
      for (const std::int64_t bins : {1, 2, 3, 7, 20, 24, 90})
        for (const int kept : {1, 2, 4})
          for (const double recall : {.3, .5, .8, .95}) {
            if (bins > rows) continue;
            const double a = (1 - recall) * static_cast<double>(k);
            const auto law = test::law_of_lost(k, rows, {bins, kept});
            const double exact = bound_by_counting(law, a);
            const double bound = shortfall_probability(k, rows, {bins, kept}, recall);
            ASSERT_GE(bound, exact * (1 - 1e-9))
                << rows << ' ' << k << ' ' << bins << ' ' << kept << ' ' << recall;
            // The cost of assuming independent bins, where the bound is used. It is largest where a
            // bin holds about one neighbour: there the true loss varies half as much as a sum of
            // independent ones.
            if (rows >= 10000 && bins >= 20 && k >= 10 && recall >= .8 && exact > 1e-4) {
              ASSERT_LE(bound, 2.5 * exact)
                  << rows << ' ' << k << ' ' << bins << ' ' << kept << ' ' << recall;
            }
            // The share of single queries that lose so much: the least that any bound must cover.
            double tail = 0;
            for (std::size_t l = 0; l < law.size(); ++l)
              if (static_cast<double>(l) >= a) tail += law[l];
            ASSERT_GE(bound, tail * (1 - 1e-9));
          }
}

// Where more than 128 neighbours may be lost Chernoff's bound replaces the series.
TEST(FewestBins, ChangeLittleWhereTheBoundChanges) {
  for (const int kept : {1, 2, 4}) {
    const auto series = fewest_bins(RecallGoal{.87201}, 1000, {.rows = 1000000}, kept);
    const auto chernoff = fewest_bins(RecallGoal{.87199}, 1000, {.rows = 1000000}, kept);
    ASSERT_TRUE(series && chernoff);
    EXPECT_GE(*chernoff, *series);
    EXPECT_LE(static_cast<double>(*chernoff), 1.06 * static_cast<double>(*series)) << kept;
  }
}

TEST(FewestBins, MeetTheGoalAndOneFewerDoNot) {
  for (const std::int64_t rows : {500, 30000, 1000000})
    for (const std::int64_t k : {1, 2, 10, 100, 300})
      for (const double x : {.5, .9, .99, .999})
        for (const int kept : {1, 2, 3, 8}) {
          SCOPED_TRACE(testing::Message() << rows << ' ' << k << ' ' << x << ' ' << kept);
          if (const auto bins = fewest_bins(RecallGoal{x}, k, {.rows = rows}, kept)) {
            EXPECT_LT(*bins * kept, rows);
            EXPECT_LE(shortfall_probability(k, rows, {*bins, kept}, x), 1e-3);
            EXPECT_GE(expected_recall(k, rows, {*bins, kept}), x);
            if (*bins > 1) {
              EXPECT_GT(shortfall_probability(k, rows, {*bins - 1, kept}, x), 1e-3);
            }
            EXPECT_GE(*bins, *fewest_bins(ExpectedRecallGoal{x}, k, {.rows = rows}, kept));
          }
          if (const auto bins = fewest_bins(ExpectedRecallGoal{x}, k, {.rows = rows}, kept)) {
            EXPECT_GE(expected_recall(k, rows, {*bins, kept}), x - 1e-12);
            if (*bins > 1) {
              EXPECT_LT(expected_recall(k, rows, {*bins - 1, kept}), x);
            }
          }
          if (const auto bins = fewest_bins(CertificateGoal{1 - x}, k, {.rows = rows}, kept)) {
            EXPECT_LE(uncertified_share(k, rows, {*bins, kept}), 1 - x);
            if (*bins > 1) {
              EXPECT_GT(uncertified_share(k, rows, {*bins - 1, kept}), 1 - x);
            }
          }
        }
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
    for (const int kept : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << c.k << ' ' << c.rows << ' ' << c.recall << ' ' << kept);
      const auto bins = fewest_bins(RecallGoal{c.recall}, c.k, {.rows = c.rows}, kept);
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
  const auto bins = fewest_bins(ExpectedRecallGoal{.9}, k, {.rows = rows}, 2);
  EXPECT_GT(shortfalls(random, 1000, copies(k), k, rows, {*bins, 2}, .9), 300);
}

// With one neighbour lost in a thousand orders for one query alone, groups of queries break it more
// often: the bound must be on the expected loss, not on the share of orders with a loss.
TEST(Promise, CoversGroupsOfQueriesThatShareNothing) {
  Random random(5);
  const std::int64_t k = 10, rows = 100000;
  const double recall = .99;  // one neighbour lost by one query of ten
  const Queries queries = overlapping(k, 9, k);
  const auto bins = fewest_bins(RecallGoal{recall}, k, {.rows = rows}, 2);
  EXPECT_LE(shortfalls(random, 20000, queries, 9 * k, rows, {*bins, 2}, recall), 20 + 18);
  // Bins with which one query has a loss in one order of a thousand fail nine times as often.
  const auto alone = fewest_bins(CertificateGoal{1e-3}, k, {.rows = rows}, 2);
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

TEST(Shards, AnySplitKeepsThePromise) {
  Random random(7);
  const std::vector<std::int64_t> sizes = {1000, 3001, 40000, 6000, 40000, 999};
  std::int64_t rows = 0;
  for (const std::int64_t n : sizes) rows += n;
  for (const std::int64_t k : {10, 100})
    for (const int kept : {1, 2, 4}) {
      const double recall = .9;
      std::vector<std::optional<std::int64_t>> bins;
      for (const std::int64_t n : sizes)
        bins.push_back(fewest_bins(RecallGoal{recall}, k, {n, rows, Split::any}, kept));
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
  const ExpectedRecallGoal goal{.95};
  const auto any = fewest_bins(goal, k, {n, 8 * n, Split::any}, 1);
  const auto chance = fewest_bins(goal, k, {n, 8 * n, Split::random}, 1);
  ASSERT_TRUE(any && chance);
  EXPECT_NEAR(static_cast<double>(*any) / static_cast<double>(*chance), 8, .2);

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
  EXPECT_NEAR(mean_recall(*chance, true), .95, .003);
  EXPECT_LT(mean_recall(*chance, false), .75);
  EXPECT_NEAR(mean_recall(*any, false), .95, .003);
  EXPECT_GT(mean_recall(*any, true), .99);
}

TEST(Shards, CertificatesOfAnySplit) {
  Random random(9);
  const std::int64_t k = 50, n = 20000;
  const auto bins = fewest_bins(CertificateGoal{.05}, k, {n, 4 * n, Split::any}, 3);
  ASSERT_TRUE(bins);
  int missed = 0;
  for (int run = 0; run < 10000; ++run) missed += lost(random_places(random, k, n), {*bins, 3}) > 0;
  EXPECT_LE(missed, 500 + 88);
  EXPECT_GE(missed, 350);
}

TEST(Shards, OneThatIsTheWholeBaseAndSmallOnes) {
  const RecallGoal goal{.95};
  EXPECT_EQ(fewest_bins(goal, 10, {5000, 5000}, 2), fewest_bins(goal, 10, {5000}, 2));
  // Fewer rows than neighbours or than bins: all are kept.
  EXPECT_EQ(fewest_bins(goal, 10, {5, 5000}, 2), std::nullopt);
  EXPECT_EQ(fewest_bins(goal, 10, {2, 5000, Split::random}, 2), std::nullopt);
  EXPECT_EQ(fewest_bins(goal, 10, {300, 100000}, 2), std::nullopt);
  // Bins no larger than those of the logical base.
  const auto whole = fewest_bins(goal, 100, {100000}, 2);
  const auto part = fewest_bins(goal, 100, {12345, 100000, Split::random}, 2);
  ASSERT_TRUE(whole && part);
  const std::int64_t size = 100000 / *whole;
  EXPECT_EQ(*part, (12345 + size - 1) / size);
}

// The choice of a reduction. --------------------------------------------------------------------

TEST(ChooseReduction, TakesTheCheapest) {
  const RecallGoal goal{.95};
  const ReducedBase base{.rows = 1000000};
  const auto fewest = choose_reduction(
      goal, 100, base, [](const Reduction& r) { return static_cast<double>(r.candidates()); });
  ASSERT_TRUE(fewest);
  for (int kept = 1; kept <= 8; ++kept)
    EXPECT_LE(fewest->candidates(), *fewest_bins(goal, 100, base, kept) * kept);
  EXPECT_GT(fewest->kept, 1);
  const auto paper =
      choose_reduction(goal, 100, base, [](const Reduction& r) { return double(r.kept); });
  EXPECT_EQ(paper, (Reduction{*fewest_bins(goal, 100, base, 1), 1}));
  EXPECT_TRUE(choose_reduction(goal, 100, base));
  EXPECT_TRUE(choose_reduction(CertificateGoal{.01}, 10000, {.rows = 1000000000}));
}

TEST(ChooseReduction, KeepsEverythingWhereNothingCanGo) {
  EXPECT_EQ(choose_reduction(RecallGoal{.9}, 1, {.rows = 1}), std::nullopt);
  EXPECT_EQ(choose_reduction(RecallGoal{.999}, 90, {.rows = 100}), std::nullopt);
  EXPECT_EQ(choose_reduction(CertificateGoal{.01}, 100, {.rows = 100}), std::nullopt);
  // One neighbour is the best of its bin, and k neighbours fit one bin that keeps k.
  EXPECT_EQ(choose_reduction(RecallGoal{.999}, 1, {.rows = 2}), (Reduction{1, 1}));
  EXPECT_EQ(fewest_bins(CertificateGoal{1e-6}, 8, {.rows = 9}, 8), 1);
  EXPECT_EQ(fewest_bins(RecallGoal{.99}, 8, {.rows = 8}, 8), std::nullopt);
}

TEST(Bins, RefuseBadArguments) {
  EXPECT_THROW(expected_recall(0, 10, {1, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(11, 10, {1, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(5, 10, {0, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(5, 10, {11, 1}), InvalidArgument);
  EXPECT_THROW(expected_recall(5, 10, {2, 0}), InvalidArgument);
  EXPECT_THROW(uncertified_share(5, 10, {2, most_kept + 1}), InvalidArgument);
  EXPECT_THROW(shortfall_probability(5, 10, {2, 1}, 1.0), InvalidArgument);
  EXPECT_THROW(shortfall_probability(5, 10, {2, 1}, std::nan("")), InvalidArgument);
  EXPECT_THROW(paper_bins(10, 1.0), InvalidArgument);
  EXPECT_THROW(paper_bins(0, .5), InvalidArgument);
  EXPECT_THROW(paper_bins_approximation(10, 0), InvalidArgument);
  EXPECT_THROW(paper_expected_recall(10, 0), InvalidArgument);
  const ReducedBase base{.rows = 100};
  EXPECT_THROW(fewest_bins(RecallGoal{1.0}, 10, base, 1), InvalidArgument);
  EXPECT_THROW(fewest_bins(RecallGoal{.9, 1e-10}, 10, base, 1), InvalidArgument);
  EXPECT_THROW(fewest_bins(ExpectedRecallGoal{0}, 10, base, 1), InvalidArgument);
  EXPECT_THROW(fewest_bins(CertificateGoal{0}, 10, base, 1), InvalidArgument);
  EXPECT_THROW(fewest_bins(RecallGoal{}, 101, base, 1), InvalidArgument);
  EXPECT_THROW(fewest_bins(RecallGoal{}, 10, {.rows = 0}, 1), InvalidArgument);
  EXPECT_THROW(fewest_bins(RecallGoal{}, 10, {100, 99}, 1), InvalidArgument);
  EXPECT_THROW(choose_reduction(RecallGoal{}, 0, base), InvalidArgument);
}

}  // namespace
}  // namespace knear
