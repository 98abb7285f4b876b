// The scan that keeps the best few rows of each bin, called by itself: its answer is that of the
// reference reduced bin by bin, and what it says of dropped rows tells whether that is exact.
#include "knear/scan/methods/partial_reduce_scan.hpp"

#include <gtest/gtest.h>

#include "tests/scan/scan_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

constexpr KeyedId none{infinity, std::numeric_limits<Id>::max()};

// The reference's pairs of a query, bin by bin: those that are kept, and the best that is not.
struct Reduced {
  std::vector<std::vector<KeyedId>> kept;  // [tiles], each nearest first
  std::vector<KeyedId> all;                // nearest first
  KeyedId dropped = none;

  Reduced(const std::vector<KeyedId>& found, const std::vector<std::int64_t>& bin_of,
          std::int64_t bins, int most)
      : kept(static_cast<std::size_t>(bins)) {
    for (const KeyedId& pair : found) {
      auto& bin = kept[static_cast<std::size_t>(bin_of[static_cast<std::size_t>(pair.second)])];
      if (std::ssize(bin) < most)
        bin.push_back(pair), all.push_back(pair);
      else
        dropped = std::min(dropped, pair);
    }
  }
};

// The tile of each row of a base.
std::vector<std::int64_t> bins_of(const PackedBase& packed, std::int64_t rows) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(rows));
  for (std::size_t slot = 0; slot < packed.ids.size(); ++slot)
    if (packed.ids[slot] != PackedBase::no_row)
      out[packed.ids[slot]] =
          static_cast<std::int64_t>(slot) / (packed.panels_per_tile * panel_rows);
  return out;
}

class PartialReduceScan : public testing::TestWithParam<std::tuple<Codes, Isa>> {
 protected:
  const Codes codes = std::get<0>(GetParam());
  const Isa isa = std::get<1>(GetParam());

  void expect_reduced(const ScanCase& c, const ScanJob& job, int kept,
                      const std::vector<std::int64_t>& which) {
    const std::int64_t queries = job.queries.rows(), k = job.k;
    const PackedBase packed = c.packed(codes, isa, 4096, false);
    const std::vector<std::int64_t> bin_of = bins_of(packed, c.base.rows());
    ExactNeighbors out(queries, k);
    std::vector<KeyedId> dropped(static_cast<std::size_t>(queries), none);
    ScanStats stats;
    scan_partial_reduce(packed, job, kept, which, out, dropped, nullptr, stats, {});
    for (const std::int64_t q : which) {
      const Reduced expected(c.found(q, job.allowed), bin_of, packed.tiles, kept);
      const double bound = job.upper_bounds ? job.upper_bounds[q] : infinity;
      ASSERT_TRUE(is_list(expected.all, out.keys.row(q), out.ids.row(q), k, bound)) << q;
      // The best that was dropped is told if it would have been among the k; else something no
      // better than the k-th, or nothing.
      const KeyedId last(out.keys.row(q)[k - 1], out.ids.row(q)[k - 1]);
      const KeyedId told = dropped[static_cast<std::size_t>(q)];
      if (expected.dropped.first > bound) {
        ASSERT_GT(told.first, bound) << q;
      } else if (last.second == no_id || expected.dropped < last) {
        ASSERT_EQ(told, expected.dropped) << q;
      } else {
        ASSERT_GT(told, last) << q;
      }
    }
    if (job.upper_bounds) return;
    ExactNeighbors candidates(queries, packed.tiles * kept);
    std::fill(dropped.begin(), dropped.end(), none);
    scan_partial_reduce(packed, job, kept, which, out, dropped, &candidates, stats, {});
    for (const std::int64_t q : which) {
      const Reduced expected(c.found(q, job.allowed), bin_of, packed.tiles, kept);
      for (std::int64_t bin = 0; bin < packed.tiles; ++bin)
        ASSERT_TRUE(is_list(expected.kept[static_cast<std::size_t>(bin)],
                            candidates.keys.row(q) + bin * kept, candidates.ids.row(q) + bin * kept,
                            kept))
            << "query " << q << " bin " << bin;
      ASSERT_EQ(dropped[static_cast<std::size_t>(q)], expected.dropped);
    }
  }
};

TEST_P(PartialReduceScan, KeepsTheBestOfEachBin) {
  for (const Metric metric : metrics)
    for (const std::int64_t rows : {1, 33, 1500}) {
      if (!serves(codes, metric)) continue;
      const ScanCase c(vectors(codes, rows, 23, 1), vectors(codes, 27, 23, 2), metric);
      for (const std::int64_t queries : {0, 13, 27})
        for (const int kept : {1, 31, 32})
          for (const std::int64_t k : {1, 40}) {
            ScanJob job = c.job(k, isa);
            ASSERT_NO_FATAL_FAILURE(expect_reduced(c, job, kept, all_of(queries)))
                << name_of(metric) << ' ' << rows << " rows, " << queries << " queries, kept "
                << kept << ", k " << k;
          }
    }
}

TEST_P(PartialReduceScan, DivisionCopiesFiltersAndBoundsChangeNothing) {
  AnyMatrix base = vectors(codes, 900, 24, 3);
  for (std::int64_t i = 0; i < 900; i += 3) copy_row(base, i / 2, 899 - i);
  const ScanCase c(std::move(base), vectors(codes, 30, 24, 4), Metric::l2);
  RowSet live(900);
  for (std::int64_t i = 0; i < 900; i += 3) live.remove(i);
  std::vector<double> bounds;
  for (const auto& list : c.order) bounds.push_back(list[12].first);
  for (const int threads : {1, 3})
    for (const int splits : {1, 3})
      for (const int kept : {1, 4})
        for (const bool some_live : {false, true})
          for (const bool bounded : {false, true}) {
            ScanJob job = c.job(10, isa, threads);
            job.splits = splits;
            if (some_live) job.allowed.live = &live;
            if (bounded) job.upper_bounds = bounds.data();
            ASSERT_NO_FATAL_FAILURE(expect_reduced(c, job, kept, {29, 0, 4, 5, 6, 7, 8, 20}))
                << threads << " threads, " << splits << " splits, kept " << kept << ' ' << bounded;
          }
}

INSTANTIATE_TEST_SUITE_P(CodesAndIsas, PartialReduceScan,
                         testing::Combine(testing::ValuesIn(all_codes),
                                          testing::ValuesIn(test::levels())),
                         [](const auto& p) {
                           return name_of(std::get<0>(p.param)) + "_" +
                                  std::string(name_of(std::get<1>(p.param)));
                         });

// The bins without the base: rows fall into those that packing gave them.
TEST(RowBins, AreTheTilesOfThePackedRows) {
  const ScanCase c(vectors(Codes::int8, 900, 24, 1), vectors(Codes::int8, 1, 24, 2), Metric::l2);
  std::vector<std::uint32_t> subset;
  for (std::uint32_t i = 2; i < 900; i += 1 + i % 3) subset.push_back(i);
  for (const bool some : {false, true}) {
    const std::span<const std::uint32_t> rows = some ? subset : std::span<const std::uint32_t>{};
    const PackedBase packed = PackedBase::certified(
        c.base.view(), rows, format_int8,
        CodingSpace::choose(c.base.view(), Metric::l2, active_isa()), 1, {}, 1600, false);
    ASSERT_GT(packed.tiles, 2);
    const RowBins bins{{packed.rows, packed.tiles}, 1, rows};
    const std::vector<std::int64_t> expected = bins_of(packed, 900);
    for (const std::uint32_t row : packed.ids)
      if (row != PackedBase::no_row) {
        EXPECT_EQ(bins.bin_of(row), expected[row]);
      }
  }
}

TEST(ReduceList, TurnsAnExactAnswerIntoTheReducedOne) {
  Random random(1);
  for (const std::int64_t rows : {1, 40, 900})
    for (const std::int64_t tiles : {1, 7, 40})
      for (const int kept : {1, 3})
        for (const std::int64_t k : {1, 10})
          for (const std::int64_t listed : {std::int64_t{1}, std::int64_t{12}, rows, rows + 5}) {
            const RowBins bins{{rows, tiles}, kept, {}};
            std::vector<KeyedId> found;
            std::vector<std::int64_t> bin_of;
            for (std::int64_t i = 0; i < rows; ++i) {
              found.emplace_back(static_cast<double>(random.below(50)), i);
              bin_of.push_back(bins.bin_of(i));
            }
            std::sort(found.begin(), found.end());
            const Reduced expected(found, bin_of, tiles, kept);
            std::vector<double> keys(static_cast<std::size_t>(listed), infinity);
            std::vector<Id> ids(keys.size(), no_id);
            for (std::size_t i = 0; i < std::min(keys.size(), found.size()); ++i)
              keys[i] = found[i].first, ids[i] = found[i].second;
            std::vector<int> taken(static_cast<std::size_t>(tiles), 0);
            std::vector<double> out_keys(static_cast<std::size_t>(k));
            std::vector<Id> out_ids(out_keys.size());
            KeyedId dropped = none;
            const bool whole = listed >= rows;
            const bool enough = reduce_list(keys.data(), ids.data(), listed, whole, bins, k, taken,
                                            out_keys.data(), out_ids.data(), dropped);
            EXPECT_EQ(taken, std::vector<int>(static_cast<std::size_t>(tiles), 0));
            // As many of those listed as count.
            std::int64_t count = 0;
            for (const KeyedId& pair : expected.all)
              count += !(found[static_cast<std::size_t>(std::min(listed, rows)) - 1] < pair);
            ASSERT_EQ(enough, whole || count >= k) << rows << ' ' << tiles << ' ' << listed;
            if (!enough) continue;
            ASSERT_TRUE(is_list(expected.all, out_keys.data(), out_ids.data(), k));
            const KeyedId last(out_keys.back(), out_ids.back());
            ASSERT_EQ(dropped,
                      last.second == no_id || expected.dropped < last ? expected.dropped : none);
          }
}

}  // namespace
}  // namespace knear::detail
