// The scan for the k nearest, called by itself, against the float64 reference: sizes around every
// edge, all codes and instruction sets, copies, filters, bounds, splits, threads. Keys and rows are
// those of the reference to the bit.
#include "knear/scan/scan.hpp"

#include <gtest/gtest.h>

#include "tests/scan/scan_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

// The answer that a scan gives to some queries of a case.
ExactNeighbors answer(const PackedBase& packed, const ScanJob& job,
                      const std::vector<std::int64_t>& which) {
  ExactNeighbors out(job.queries.rows(), job.k);
  ScanStats stats;
  EXPECT_TRUE(scan(packed, job, which, out, stats, {}).empty());
  return out;
}

class Scan : public testing::TestWithParam<std::tuple<Codes, Isa>> {
 protected:
  const Codes codes = std::get<0>(GetParam());
  const Isa isa = std::get<1>(GetParam());
};

TEST_P(Scan, AnswersAsTheReferenceAtEveryEdge) {
  for (const Metric metric : metrics)
    for (const std::int64_t rows : {1, 31, 32, 33, 500, 3000}) {
      if (!serves(codes, metric) || (rows == 3000 && test::small())) continue;
      const ScanCase c(vectors(codes, rows, 23, 1), vectors(codes, 97, 23, 2), metric);
      const PackedBase packed = c.packed(codes, isa);
      for (const std::int64_t queries : {0, 1, 11, 12, 13, 49, 97})
        for (const std::int64_t k : {std::int64_t{1}, std::int64_t{5}, std::int64_t{32},
                                     std::int64_t{33}, std::int64_t{200}, rows + 3}) {
          if (k > 203) continue;  // and beyond the rows where these are few
          const std::vector<std::int64_t> which = all_of(queries);
          ASSERT_TRUE(is_nearest(c, answer(packed, c.job(k, isa), which), which, k))
              << name_of(metric) << ' ' << rows << " rows, " << queries << " queries, k " << k;
        }
    }
}

TEST_P(Scan, AnyDivisionOfTheWorkGivesTheSameBits) {
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    const ScanCase c(vectors(codes, 900, 24, 3), vectors(codes, 29, 24, 4), metric);
    const PackedBase packed = c.packed(codes, isa);
    ASSERT_GT(packed.tiles, 3);
    const std::vector<std::int64_t> which = all_of(29);
    for (const int threads : {1, 3})
      for (const int group : {1, 4, 12})
        for (const int splits : {1, 2, 3, 1000})
          for (const std::int64_t k : {4, 40}) {
            ScanJob job = c.job(k, isa, threads);
            job.group = group, job.splits = splits;
            ASSERT_TRUE(is_nearest(c, answer(packed, job, which), which, k))
                << name_of(metric) << ' ' << threads << " threads, group " << group << ", "
                << splits << " splits, k " << k;
          }
  }
}

TEST_P(Scan, CopiesOfRowsComeInTheOrderOfTheirNumbers) {
  for (const Metric metric : metrics) {
    if (!serves(codes, metric)) continue;
    AnyMatrix base = vectors(codes, 700, 16, 5);
    for (std::int64_t i = 0; i < 700; i += 3) copy_row(base, i / 2, 699 - i);
    for (std::int64_t i = 300; i < 360; ++i) copy_row(base, 7, i);  // more copies than k
    AnyMatrix queries = vectors(codes, 14, 16, 6);
    std::memcpy(queries.row(0), base.view().row(7),
                16 * static_cast<std::size_t>(size_of(base.type())));
    const ScanCase c(std::move(base), std::move(queries), metric);
    for (const bool find_copies : {true, false}) {
      const PackedBase packed = c.packed(codes, isa, 4096, find_copies);
      EXPECT_EQ(packed.duplicates.any(), find_copies && codes != Codes::integer);
      for (const std::int64_t k : {1, 10, 50, 100})
        ASSERT_TRUE(is_nearest(c, answer(packed, c.job(k, isa), all_of(14)), all_of(14), k))
            << name_of(metric) << " k " << k;
    }
  }
}

TEST_P(Scan, FindsOnlyRowsThatAreAllowed) {
  AnyMatrix base = vectors(codes, 600, 24, 7);
  for (std::int64_t i = 0; i < 100; ++i) copy_row(base, i, 599 - i);  // of which one is allowed
  const ScanCase c(std::move(base), vectors(codes, 13, 24, 8), Metric::l2);
  const PackedBase packed = c.packed(codes, isa);
  // The base may be part of a larger one: its row 0 is row 5 of the filter and row 9 of the set.
  for (const std::int64_t step : {1, 2, 50, 1000}) {
    std::vector<Id> ids;
    for (Id i = 5; i < 605; ++i)
      if (i % step == step / 2) ids.push_back(i);
    const RowFilter filter = RowFilter::of_ids(ids, 605);
    RowSet live(609);
    for (std::int64_t i = 0; i < 609; i += 4) live.remove(i);
    for (const bool filtered : {true, false})
      for (const bool some_live : {true, false})
        for (const int splits : {1, 3})
          for (const std::int64_t k : {3, 40}) {
            ScanJob job = c.job(k, isa);
            job.splits = splits;
            if (filtered) job.allowed.filter = &filter, job.allowed.offset = 5;
            if (some_live) job.allowed.live = &live, job.allowed.live_offset = 9;
            ASSERT_TRUE(is_nearest(c, answer(packed, job, all_of(13)), all_of(13), k, job.allowed))
                << "one of " << step << ' ' << filtered << some_live << " k " << k;
          }
  }
}

TEST_P(Scan, NeedsNoRowsBeyondAnUpperBound) {
  for (const Metric metric : metrics) {
    if (!serves(codes, metric)) continue;
    const ScanCase c(vectors(codes, 800, 24, 9), vectors(codes, 13, 24, 10), metric);
    const PackedBase packed = c.packed(codes, isa);
    for (const std::int64_t k : {5, 40})
      for (const std::int64_t rank : {0, 3, 4, 39, 300})  // before, at and beyond the k-th
        for (const int splits : {1, 3}) {
          std::vector<double> bounds;
          for (const auto& list : c.order)
            bounds.push_back(list[static_cast<std::size_t>(rank)].first);
          bounds[3] = infinity;
          bounds[4] = std::nextafter(c.order[4][0].first, -infinity);  // no row has it
          ScanJob job = c.job(k, isa);
          job.upper_bounds = bounds.data(), job.splits = splits;
          ASSERT_TRUE(
              is_nearest(c, answer(packed, job, all_of(13)), all_of(13), k, {}, bounds.data()))
              << name_of(metric) << " k " << k << " rank " << rank;
        }
  }
}

// Few rows of every size, all of whose scores are looked at together: panels whose rows differ in
// length by orders of magnitude, and numbers of which products are beyond floats.
TEST_P(Scan, RowsOfEveryLengthAreFoundAmongFew) {
  if (codes == Codes::integer) return;
  for (const Metric metric : metrics)
    for (const double scale : {1e-25, 1e-12, 1.0, 1e12, 1e18}) {
      if (test::small() && (scale == 1e-12 || scale == 1e12)) continue;
      Random random(21);
      AnyMatrix base = vectors(codes, 900, 19, 22), queries = vectors(codes, 26, 19, 23);
      const auto multiply = [&](AnyMatrix& m, std::int64_t rows) {
        for (std::int64_t i = 0; i < rows; ++i) {
          const double by = scale * std::pow(10, 6 * random.uniform() * random.uniform() - 3);
          for (std::int64_t j = 0; j < 19; ++j) {
            float& x = static_cast<float*>(m.row(i))[j];
            x = static_cast<float>(x * by);
          }
        }
      };
      multiply(base, 900), multiply(queries, 26);
      const ScanCase c(std::move(base), std::move(queries), metric);
      const PackedBase packed = c.packed(codes, isa);
      for (const std::int64_t k : {2, 9, 40, 300, 899, 950})
        ASSERT_TRUE(is_nearest(c, answer(packed, c.job(k, isa), all_of(26)), all_of(26), k))
            << name_of(metric) << " scale " << scale << " k " << k;
    }
}

// Rows that cannot be told apart by codes: whatever waits is measured early, and memory is bounded.
TEST_P(Scan, TiesAndNearTiesAreMeasuredEarly) {
  Random random(11);
  AnyMatrix base = vectors(codes, 2000, 16, 12);
  if (codes != Codes::integer)
    for (std::int64_t i = 0; i < 2000; ++i)
      for (std::int64_t j = 0; j < 16; ++j)
        static_cast<float*>(base.row(i))[j] =
            1000 + (i % 2 ? 1e-4f * static_cast<float>(random.below(8)) : 0.0f);
  const ScanCase c(std::move(base), vectors(codes, 13, 16, 13), Metric::l2);
  const PackedBase packed = c.packed(codes, isa);
  for (const std::int64_t k : {2, 32, 33})
    for (const int splits : {1, 4}) {
      ScanJob job = c.job(k, isa);
      job.pending = k + 5, job.splits = splits;
      ASSERT_TRUE(is_nearest(c, answer(packed, job, all_of(13)), all_of(13), k)) << "k " << k;
    }
}

INSTANTIATE_TEST_SUITE_P(CodesAndIsas, Scan,
                         testing::Combine(testing::ValuesIn(all_codes),
                                          testing::ValuesIn(test::levels())),
                         [](const auto& p) {
                           return name_of(std::get<0>(p.param)) + "_" +
                                  std::string(name_of(std::get<1>(p.param)));
                         });

TEST(ScanOfSigned, BytesOfAnySignServeAsWholeNumbers) {
  const auto bytes = [](std::int64_t rows, std::uint64_t seed) {
    Random random(seed);
    AnyMatrix out(ElementType::i8, rows, 19);
    for (std::int64_t i = 0; i < rows * 19; ++i)
      static_cast<std::int8_t*>(out.row(0))[i] =
          static_cast<std::int8_t>(static_cast<int>(random.below(256)) - 128);
    return out;
  };
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    const ScanCase c(bytes(700, 14), bytes(13, 15), metric);
    for (const Isa isa : test::levels())
      for (const std::int64_t k : {1, 10, 60})
        EXPECT_TRUE(is_nearest(c, answer(c.packed(Codes::integer, isa), c.job(k, isa), all_of(13)),
                               all_of(13), k))
            << name_of(metric) << ' ' << name_of(isa) << " k " << k;
  }
}

TEST(ScanOfSome, FillsOnlyTheRowsOfTheQueriesThatWereAsked) {
  const ScanCase c(vectors(Codes::int8, 400, 24, 1), vectors(Codes::int8, 20, 24, 2), Metric::l2);
  const PackedBase packed = c.packed(Codes::int8, active_isa());
  const std::vector<std::int64_t> which = {17, 3, 4, 11};
  for (const int splits : {1, 2}) {
    ScanJob job = c.job(6);
    job.splits = splits;
    ExactNeighbors out(20, 6);
    std::fill_n(out.ids.data(), 120, Id{-77});
    ScanStats stats;
    EXPECT_TRUE(scan(packed, job, which, out, stats, {}).empty());
    EXPECT_TRUE(is_nearest(c, out, which, 6));
    for (const std::int64_t q : all_of(20))
      if (std::find(which.begin(), which.end(), q) == which.end()) {
        EXPECT_EQ(out.ids.row(q)[0], -77) << q;
      }
    EXPECT_GT(stats.hits, 0);
    EXPECT_GT(stats.survivors, 0);
    EXPECT_EQ(stats.splits, splits);
  }
}

// A third of the queries lie in a tight cluster of rows, which 8 bits cannot tell apart.
TEST(ScanThatGivesUp, LeavesTheQueriesThatItServesBadlyUntouched) {
  Random random(15);
  AnyMatrix base(ElementType::f32, 4000, 16), queries(ElementType::f32, 36, 16);
  const auto fill = [&](AnyMatrix& m, std::int64_t i, bool tight) {
    for (std::int64_t j = 0; j < 16; ++j)
      static_cast<float*>(m.row(i))[j] =
          static_cast<float>(tight ? 5 + 1e-4 * random.uniform() : 20 * random.uniform() - 10);
  };
  for (std::int64_t i = 0; i < 4000; ++i) fill(base, i, i % 2);
  for (std::int64_t q = 0; q < 36; ++q) fill(queries, q, q < 12);
  const ScanCase c(std::move(base), std::move(queries), Metric::l2);
  const PackedBase packed = c.packed(Codes::int8, active_isa());
  for (const int splits : {1, 3}) {
    ScanJob job = c.job(5);
    job.may_give_up = true, job.splits = splits;
    ExactNeighbors out(36, 5);
    std::fill_n(out.ids.data(), 36 * 5, Id{-77});
    ScanStats stats;
    const std::vector<std::int64_t> given_up = scan(packed, job, all_of(36), out, stats, {});
    std::vector<std::int64_t> answered;
    for (const std::int64_t q : all_of(36)) {
      if (std::find(given_up.begin(), given_up.end(), q) == given_up.end()) {
        answered.push_back(q);
      } else {
        EXPECT_EQ(out.ids.row(q)[0], -77) << q;
      }
    }
    ASSERT_FALSE(answered.empty());
    EXPECT_EQ(answered[0], 12) << splits << " splits";
    EXPECT_TRUE(is_nearest(c, out, answered, 5)) << splits;
  }
}

TEST(ScanDirectly, AnswersAsTheReference) {
  for (const Codes codes : {Codes::fp32, Codes::integer})
    for (const Metric metric : metrics)
      for (const std::int64_t rows : {1, 500, 3000}) {
        if (rows == 3000 && test::small()) continue;
        const ScanCase c(vectors(codes, rows, 23, 1), vectors(codes, 49, 23, 2), metric);
        for (const std::int64_t queries : {0, 1, 16, 17, 49})
          for (const std::int64_t k : {std::int64_t{1}, std::int64_t{33}, rows + 3})
            for (const int threads : {1, 3}) {
              if (k > 600) continue;
              ExactNeighbors out(49, k);
              ScanStats stats;
              scan_directly(c.job(k, active_isa(), threads), {}, all_of(queries), out, stats, {});
              ASSERT_TRUE(is_nearest(c, out, all_of(queries), k))
                  << name_of(metric) << ' ' << rows << ' ' << queries << ' ' << k << ' ' << threads;
              EXPECT_EQ(stats.survivors, queries * rows);
            }
      }
}

TEST(ScanDirectly, MeasuresASubsetAlone) {
  const ScanCase c(vectors(Codes::fp32, 900, 23, 1), vectors(Codes::fp32, 7, 23, 2), Metric::ip);
  std::vector<std::uint32_t> subset;
  for (std::uint32_t i = 4; i < 900; i += 1 + i % 5) subset.push_back(i);
  const RowFilter filter =
      RowFilter::of_ids(std::vector<Id>(subset.begin(), subset.end()), c.base.view().rows());
  for (const Isa isa : test::levels()) {
    ExactNeighbors out(7, 50);
    ScanStats stats;
    scan_directly(c.job(50, isa, 3), subset, all_of(7), out, stats, {});
    EXPECT_TRUE(is_nearest(c, out, all_of(7), 50, {.filter = &filter})) << name_of(isa);
  }
}

}  // namespace
}  // namespace knear::detail
