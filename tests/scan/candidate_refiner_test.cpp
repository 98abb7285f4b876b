// What a certified scan keeps of a query: whatever the rows and their order, thresholds rule out
// none of the k nearest, what is kept is bounded, and what is written in the end are the k nearest
// of the rows that were added.
#include "knear/scan/candidate_refiner.hpp"

#include <gtest/gtest.h>

#include "knear/scan/packing/per_row_codes.hpp"
#include "knear/scan/tile_loop.hpp"
#include "tests/scan/scan_cases.hpp"

namespace knear::detail {
namespace {

// ---- without a base -----------------------------------------------------------------------------

TEST(LargestK, IsTheKthOfASortedListRoundedDown) {
  for (const double size : {1.0, 3e-150, 7e150, 0.0, 1e300, infinity})
    for (const std::int64_t k : {1, 2, 5, 31, 32, 33, 1000}) {
      const bool scales = size > 1e-200 && size < 1e200;
      const double unit = scales ? std::ldexp(1.0, std::ilogb(size)) : 1;
      Random random(static_cast<std::uint64_t>(k));
      LargestK largest(k, size);
      std::vector<double> all;  // descending
      for (int i = 0; i < 300; ++i) {
        const double numbers[] = {unit * (random.uniform() - 0.7), unit * double(random.below(4)),
                                  -1e-60 * unit * random.uniform(), -unit * random.uniform() * 1e9};
        const double extremes[] = {infinity, -infinity, 1e35 * unit, -1e35 * unit, 1e-300, 0};
        const double x = random.below(9) ? numbers[random.below(4)]
                                         : extremes[random.below(std::size(extremes))];
        all.insert(std::upper_bound(all.begin(), all.end(), x, std::greater<>()), x);
        const double found = largest.push(x);
        if (k > LargestK::longest || std::ssize(all) < k) {
          ASSERT_EQ(found, -infinity) << k << " after " << i;
          continue;
        }
        const double kth = all[static_cast<std::size_t>(k - 1)];
        ASSERT_LE(found, kth) << k << " size " << size << " after " << i;
        if (kth < -1e30 * unit) continue;                // may become -infinity
        const double most = std::min(kth, 1e30 * unit);  // what a float is good for
        ASSERT_GE(found, most - std::fabs(most) * 0x1p-22 - 0x1p-119 * unit)
            << k << " size " << size << " after " << i;
      }
    }
}

TEST(QueryCandidates, AreFullWhereTheirRoomEnds) {
  QueryCandidates c;
  c.lowers = LargestK(2), c.room = 3;
  c.add({5, 1, 10});
  EXPECT_EQ(c.threshold, -infinity);  // one row is not two
  c.add({4, 3, 11});
  EXPECT_FALSE(c.full());
  EXPECT_NEAR(c.threshold, 1, 1e-6);
  c.add({9, 2, 12});
  EXPECT_TRUE(c.full());
  EXPECT_NEAR(c.threshold, 2, 1e-6);
  EXPECT_EQ(c.pending.capacity(), c.room);
  c.threshold = 7;  // known from elsewhere
  c.add({9, 2.5, 13});
  EXPECT_EQ(c.threshold, 7);
}

TEST(QueryCandidates, MergeKeepsAllThatEitherHas) {
  for (const bool first_is_empty : {false, true}) {
    QueryCandidates a, b;
    a.exact = b.exact = TopK(2);
    a.threshold = 3, a.estimated = -2, b.threshold = 2, b.estimated = 1;
    if (first_is_empty) std::swap(a.threshold, b.threshold), std::swap(a.estimated, b.estimated);
    if (!first_is_empty) a.pending = {{4, 1, 10}, {5, 1, 11}}, a.exact.push(7, 1);
    b.pending = {{6, 1, 12}}, b.exact.push(7, 0), b.exact.push(8, 3);
    a.merge(std::move(b));
    EXPECT_EQ(a.threshold, 3);
    EXPECT_EQ(a.estimated, 1);
    std::vector<std::uint32_t> rows;
    for (const ScoreInterval& x : a.pending) rows.push_back(x.row);
    using Rows = std::vector<std::uint32_t>;
    EXPECT_EQ(rows, first_is_empty ? Rows({12}) : Rows({10, 11, 12}));
    using Items = std::vector<KeyedId>;
    EXPECT_EQ(a.exact.items(), first_is_empty ? Items({{7, 0}, {8, 3}}) : Items({{7, 0}, {7, 1}}));
  }
}

// Lists of one query, one after another: the threshold is the k-th best of all, and no row counts
// twice, whether a task starts with the rows of those before or counted its own at all.
TEST(QueryCandidates, MergedOnesKnowTheKthBestOfBoth) {
  const auto task = [](std::int64_t k) {
    QueryCandidates c;
    c.restart(k, 100), c.lowers.restart(k, 1);
    return c;
  };
  for (const bool counts : {true, false}) {
    QueryCandidates all, first = task(3), second = task(3), third = task(3);
    const auto give = [&](QueryCandidates& to, const std::vector<ScoreInterval>& rows) {
      for (const ScoreInterval& x : rows)
        if (counts)
          to.add(x);
        else
          to.pending.push_back(x);
    };
    give(first, {{9, 8, 1}, {7, 6, 2}});
    all.merge_counting(std::move(first));
    EXPECT_EQ(all.threshold, -infinity);
    give(second, {{9, 7, 3}});
    all.merge_counting(std::move(second));
    EXPECT_NEAR(all.threshold, 6, 1e-5);  // of 8, 7, 6
    // As a task that starts with the rows of those before.
    third.threshold = all.threshold;
    third.take_rows(all);
    for (const ScoreInterval& x : third.pending) third.lowers.push(x.lower);
    third.add({9, 6.5, 4});
    EXPECT_NEAR(third.threshold, 6.5, 1e-5);
    EXPECT_FALSE(all.has_rows());
    all.merge_counting(std::move(third));
    EXPECT_NEAR(all.threshold, 6.5, 1e-5);  // of 8, 7, 6.5: each once
    EXPECT_EQ(all.pending.size(), 4u);
    QueryCandidates last = task(3);
    give(last, {{9, 9, 5}, {9, 9, 6}});
    all.merge_counting(std::move(last));
    EXPECT_NEAR(all.threshold, 8, 1e-5);  // of 9, 9, 8
  }
}

// Memory that is used again holds nothing of before.
TEST(QueryCandidates, StartAnew) {
  QueryCandidates c;
  c.restart(2, 10), c.lowers.restart(2, 1);
  c.add({5, 4, 1}), c.add({5, 4, 2}), c.exact.push(1, 1), c.exact.push(2, 2);
  c.estimated = 3;
  c.restart(1, 20), c.lowers.restart(1, 1);
  EXPECT_FALSE(c.has_rows());
  EXPECT_EQ(c.threshold, -infinity);
  EXPECT_EQ(c.estimated, -infinity);
  EXPECT_EQ(c.exact.bound(), infinity);
  c.exact.push(7, 7), c.exact.push(3, 3);
  EXPECT_EQ(c.exact.items(), std::vector<KeyedId>({{3, 3}}));
  c.add({1, -2, 1});
  EXPECT_NEAR(c.threshold, -2, 1e-5);
  EXPECT_EQ(c.room, 20u);
}

TEST(KeepReaching, KeepsTiesAndWhatIsNoNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<ScoreInterval> pending = {{2, 0, 0}, {1, 1, 1},      {3, 2, 2},
                                        {2, 2, 3}, {nan, nan, 4},  {-infinity, -infinity, 5},
                                        {9, 9, 6}, {1.999, 1.9, 7}};
  std::vector<std::uint32_t> rows;
  keep_reaching(pending, 2);
  for (const ScoreInterval& x : pending) rows.push_back(x.row);
  EXPECT_EQ(rows, std::vector<std::uint32_t>({0, 2, 3, 4, 6}));
  keep_reaching(pending, infinity);
  ASSERT_EQ(pending.size(), 1u);
  EXPECT_EQ(pending[0].row, 4u);
}

// ---- on packed bases ----------------------------------------------------------------------------

enum class Data { floats, ties, clusters };
constexpr Data all_data[] = {Data::floats, Data::ties, Data::clusters};
constexpr std::int64_t rows = 400, queries = 3;

// Floats; whole numbers on few columns, of which many keys tie; and two clusters whose rows 8 bits
// hardly tell apart. Every seventh row is a copy.
AnyMatrix some_vectors(Data data, std::int64_t count, std::uint64_t seed) {
  AnyMatrix out = vectors(data == Data::ties ? Codes::integer : Codes::int8, count,
                          data == Data::ties ? 4 : 24, seed);
  for (std::int64_t i = 0; i < count && data == Data::clusters; ++i)
    for (std::int64_t j = 0; j < 24; ++j) {
      float& x = static_cast<float*>(out.row(i))[j];
      x = 10 * x + (i % 2 ? 50.0f : -40.0f) * static_cast<float>(j % 5 - 1);
    }
  for (std::int64_t i = 7; i < count; i += 7) copy_row(out, i / 2, i);
  return out;
}

std::vector<std::uint32_t> ascending() {
  std::vector<std::uint32_t> out(rows);
  std::iota(out.begin(), out.end(), 0u);
  return out;
}

// A packed base with the intervals that its kernel gives all rows.
struct Scored {
  Scored(Data data, Metric metric)
      : c(some_vectors(data, rows, 1), some_vectors(data, queries, 2), metric),
        packed(c.packed(Codes::int8, active_isa())),
        per_row(per_row_codes(c.base.view(), ascending(), packed.space, false, {}, 1, {})),
        intervals(queries) {
    const ScanJob plain = c.job(1);
    StageClock clock;
    const Progress none;
    Reporter reporter(none, "", 1);
    TileLoop loop(packed, plain, {0, 0, packed.panels()},
                  pack_queries(packed, c.queries.view(), all_of(queries).data(), queries, max_group,
                               c.query_range),
                  clock, reporter);
    CertifiedScores scores(packed, plain, loop.queries);
    for (std::int64_t q = 0; q < queries; ++q) {
      scores.publish(q, infinity);
      scales.push_back(scores.scale(q));
      sizes.push_back(
          (std::sqrt(loop.queries.squares[static_cast<std::size_t>(q)]) + packed.longest) *
          packed.longest);
    }
    scores.publish_groups();
    loop.run(
        [&](std::int64_t, const Hit* hits, int count) {
          for (int i = 0; i < count; ++i)
            if (packed.ids[hits[i].slot] != PackedBase::no_row)
              intervals[hits[i].query].push_back(
                  scores.interval(hits[i].query, loop.queries.heads[0], hits[i]));
        },
        [](std::int64_t, std::int64_t) { return true; });
  }
  // The job, with little room and with codes of rows where they are wanted.
  ScanJob job(std::int64_t k, std::int64_t most_pending = 0, bool refine = false) const {
    ScanJob out = c.job(k);
    out.pending = most_pending, out.must_refine = refine;
    if (refine) out.per_row_codes = &per_row;
    return out;
  }
  QueryCandidates nothing(const CandidateRefiner& refiner, const ScanJob& asked,
                          std::int64_t q) const {
    QueryCandidates out;
    out.lowers = LargestK(asked.k, sizes[static_cast<std::size_t>(q)]);
    out.exact = TopK(asked.k), out.room = refiner.first_room();
    return out;
  }
  // The intervals of a query: farthest first (0), nearest first (1), or anyhow.
  std::vector<ScoreInterval> in_order(std::int64_t q, int order, Random& random) const {
    auto list = intervals[static_cast<std::size_t>(q)];
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
    if (order < 2)
      std::sort(list.begin(), list.end(), [&](const ScoreInterval& a, const ScoreInterval& b) {
        return order == 0 ? a.upper < b.upper : a.upper > b.upper;
      });
    return list;
  }

  const ScanCase c;
  const PackedBase packed;
  const PerRowCodes per_row;
  std::vector<std::vector<ScoreInterval>> intervals;  // [queries]: of all packed rows
  std::vector<KeyScale> scales;
  std::vector<double> sizes;  // of g, about
};

// The pairs of a query that were offered so far, by the reference.
class Seen {
 public:
  Seen(const Scored& s, const ScanJob& job, std::int64_t query, const KeyScale& scale)
      : keys(rows), s_(s), job_(job), scale_(scale), uppers_(rows) {
    for (const auto& [key, row] : s.c.order[static_cast<std::size_t>(query)])
      keys[static_cast<std::size_t>(row)] = key;
  }
  void add(const ScoreInterval& x) {
    each_copy(s_.packed.duplicates, job_.allowed, x.row, [&](std::uint32_t row) {
      const KeyedId pair(keys[row], row);
      list.insert(std::upper_bound(list.begin(), list.end(), pair), pair);
      uppers_[row] = x.upper;
      return true;
    });
  }
  // Whether a threshold leaves in all of the k nearest, and no more is claimed than is known: k
  // pairs certainly reach it.
  ::testing::AssertionResult allows(double threshold) const {
    const auto k = std::min(static_cast<std::size_t>(job_.k), list.size());
    for (std::size_t i = 0; i < k; ++i)
      if (uppers_[static_cast<std::size_t>(list[i].second)] < threshold)
        return ::testing::AssertionFailure() << threshold << " rules out row " << list[i].second;
    const double known =
        list.size() < static_cast<std::size_t>(job_.k) ? infinity : list[k - 1].first;
    if (threshold > -infinity && scale_.key_at_most(threshold) < known)
      return ::testing::AssertionFailure() << threshold << " is beyond the k-th, " << known;
    return ::testing::AssertionSuccess();
  }

  std::vector<KeyedId> list;  // nearest first
  std::vector<double> keys;   // by row

 private:
  const Scored& s_;
  const ScanJob& job_;
  const KeyScale scale_;
  std::vector<double> uppers_;
};

template <class F>
void each_scored(F f) {
  for (const Data data : all_data)
    for (const Metric metric : metrics) {
      SCOPED_TRACE(std::string(name_of(metric)) + " data " + std::to_string(int(data)));
      const Scored scored(data, metric);
      ASSERT_NO_FATAL_FAILURE(f(scored, data));
    }
}

TEST(CandidateRefiner, FinishWritesTheNearestOfWhatWasAdded) {
  Random random(1);
  std::vector<Id> even;
  for (Id row = 0; row < rows; row += 2) even.push_back(row);
  const RowFilter filter = RowFilter::of_ids(even, rows);
  each_scored([&](const Scored& s, Data) {
    for (const std::int64_t k : {1, 7, 32, 33, 100, 500})
      for (const std::int64_t most_pending : {0, 5, 60})
        for (int order = 0; order < 3; ++order)
          for (const bool refine : {false, true}) {
            SCOPED_TRACE("k " + std::to_string(k) + " most " + std::to_string(most_pending) +
                         " order " + std::to_string(order) + " refine " + std::to_string(refine));
            ScanJob job = s.job(k, most_pending, refine);
            if (random.below(4) == 0) job.allowed.filter = &filter;
            CandidateRefiner refiner(s.packed.duplicates, job);
            const auto q = static_cast<std::int64_t>(random.below(queries));
            KeyScale scale = s.scales[static_cast<std::size_t>(q)];
            auto list = s.in_order(q, order, random);
            if (random.below(3) == 0) list.resize(list.size() / 3);
            // One task, or two of which the second takes over from the first.
            const std::size_t half = list.size() / (1 + random.below(2));
            const auto most = static_cast<std::size_t>(job.most_pending());
            QueryCandidates c = s.nothing(refiner, job, q), before;
            // Intervals as packed, wide ones, or single numbers; some reach too far up.
            const std::uint64_t width = random.below(refine ? 2 : 3);
            if (width == 2) scale = {Metric::ip, 0, 0};  // g is minus the key, and known
            Seen all(s, job, q, scale), seen = all;
            for (ScoreInterval& x : list) {
              if (width == 2) x.upper = x.lower = -all.keys[x.row];
              if (width == 1 || random.below(4) == 0)
                x.upper += 0.3 * s.sizes[0] * random.uniform();
              if (width == 1) x.lower -= 0.3 * s.sizes[0] * random.uniform();
            }
            ScanStats stats;
            for (std::size_t i = 0; i < list.size(); ++i) {
              if (i == half) before = std::exchange(c, s.nothing(refiner, job, q)), seen.list = {};
              if (!job.allowed.any_of(list[i].row, s.packed.duplicates)) continue;
              seen.add(list[i]), all.add(list[i]);
              if (list[i].upper < c.threshold) continue;
              const double threshold = c.threshold;
              c.add(list[i]);
              if (c.full()) {
                refiner.prune(c, q, scale, stats);
                ASSERT_LE(c.pending.size(), most);
                ASSERT_FALSE(c.full());
              }
              if (random.below(300) == 0) refiner.tighten(c, q, scale, 1e300, stats);
              ASSERT_LE(c.pending.capacity(), std::max(refiner.first_room(), most + most / 2 + 24));
              ASSERT_GE(c.threshold, threshold);
              ASSERT_TRUE(seen.allows(c.threshold)) << "after " << i;
            }
            if (half < list.size()) c.merge(std::move(before));
            refiner.settle(c, q, stats);
            ASSERT_TRUE(all.allows(c.threshold));
            std::vector<double> keys(static_cast<std::size_t>(k), -1);
            std::vector<Id> ids(static_cast<std::size_t>(k), -7);
            refiner.finish(c, q, scale, keys.data(), ids.data(), stats);
            ASSERT_TRUE(is_list(all.list, keys.data(), ids.data(), k));
          }
  });
}

// The intervals of clusters tell nothing: all k are measured, and G is what the k-th proves.
TEST(CandidateRefiner, PruneAndTightenMeasureWhereIntervalsAreWide) {
  each_scored([](const Scored& s, Data data) {
    for (const int run : {0, 1, 2, 3}) {
      const bool prune = run % 2;
      const std::int64_t k = run < 2 ? 5 : 40;
      const ScanJob job = s.job(k, prune ? 2 * k : rows);
      CandidateRefiner refiner(s.packed.duplicates, job);
      QueryCandidates c = s.nothing(refiner, job, 0);
      Seen seen(s, job, 0, s.scales[0]);
      ScanStats stats;
      for (const ScoreInterval& x : s.intervals[0]) c.add(x), seen.add(x);
      const double threshold = c.threshold;
      refiner.tighten(c, 0, s.scales[0], 1, stats);  // no row is to come that it could spare
      EXPECT_EQ(stats.survivors, 0);
      EXPECT_EQ(c.threshold, threshold);
      if (prune)
        refiner.prune(c, 0, s.scales[0], stats);
      else
        refiner.tighten(c, 0, s.scales[0], 1e300, stats);
      ASSERT_TRUE(seen.allows(c.threshold));
      if (data != Data::clusters) continue;
      EXPECT_GT(c.threshold, threshold);
      EXPECT_EQ(c.threshold, s.scales[0].threshold_for(c.exact.bound()));
      if (prune) {
        EXPECT_TRUE(c.pending.empty());
        EXPECT_EQ(c.exact.bound(), seen.list[static_cast<std::size_t>(k - 1)].first);
        c.exact.finish();
        EXPECT_TRUE(std::equal(seen.list.begin(), seen.list.begin() + k, c.exact.items().begin()));
      } else {
        EXPECT_EQ(stats.survivors, k);
      }
    }
  });
}

TEST(CandidateRefiner, SettleNarrowsByCodesOfRows) {
  std::size_t left[2] = {};
  each_scored([&](const Scored& s, Data) {
    for (const std::int64_t k : {5, 50})
      for (const bool refine : {false, true}) {
        const ScanJob job = s.job(k, 0, refine);
        CandidateRefiner refiner(s.packed.duplicates, job);
        QueryCandidates c = s.nothing(refiner, job, 0);
        Seen all(s, job, 0, s.scales[0]), kept = all;
        for (const ScoreInterval& x : s.intervals[0]) c.add(x), all.add(x);
        ScanStats stats;
        refiner.settle(c, 0, stats);
        for (const ScoreInterval& x : c.pending) kept.add(x);
        EXPECT_EQ(stats.survivors, 0);  // nothing is measured
        EXPECT_LE(stats.refined, refine ? rows : 0);
        ASSERT_TRUE(kept.allows(c.threshold));
        EXPECT_GE(std::count_if(c.pending.begin(), c.pending.end(),
                                [&](const ScoreInterval& x) { return x.lower >= c.threshold; }),
                  k);  // so many are certainly no farther than the threshold
        ASSERT_TRUE(std::equal(all.list.begin(), all.list.begin() + k, kept.list.begin()));
        left[refine] += c.pending.size();
      }
  });
  EXPECT_LT(20 * left[1], 19 * left[0]);
}

}  // namespace
}  // namespace knear::detail
