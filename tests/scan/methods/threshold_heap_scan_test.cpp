// The TH-heap's scan, called by itself: with thresholds that stand from the beginning the answer is
// the reference's, down to what lies beyond the threshold; long compressed rows are cut down.
#include "knear/scan/methods/threshold_heap_scan.hpp"

#include <gtest/gtest.h>

#include "tests/scan/scan_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

// The key of each query's row of that rank, as a sample of the base would give it.
std::vector<double> bounds_at(const ScanCase& c, std::int64_t rank) {
  std::vector<double> out;
  for (const auto& list : c.order)
    out.push_back(rank < std::ssize(list) ? list[static_cast<std::size_t>(rank)].first : infinity);
  return out;
}

class ThresholdHeapScan : public testing::TestWithParam<std::tuple<Codes, Isa>> {
 protected:
  const Codes codes = std::get<0>(GetParam());
  const Isa isa = std::get<1>(GetParam());
};

TEST_P(ThresholdHeapScan, AnswersAsTheReferenceUpToTheThreshold) {
  for (const Metric metric : metrics)
    for (const std::int64_t rows : {1, 33, 700}) {
      if (!serves(codes, metric)) continue;
      const ScanCase c(vectors(codes, rows, 23, 1), vectors(codes, 49, 23, 2), metric);
      const PackedBase packed = c.packed(codes, isa);
      for (const std::int64_t k : {1, 5, 33})
        for (const std::int64_t rank : {k - 1, k + 20, std::int64_t{2}, std::int64_t{1000}}) {
          const std::vector<double> bounds = bounds_at(c, rank);
          ScanJob job = c.job(k, isa);
          job.upper_bounds = bounds.data();
          for (const std::int64_t queries : {0, 1, 13, 49}) {
            const std::vector<std::int64_t> which = all_of(queries);
            ExactNeighbors out(49, k);
            ScanStats stats;
            ThresholdHeapStats heap;
            scan_threshold_heap(packed, job, 12, which, out, stats, heap, {});
            ASSERT_TRUE(is_nearest(c, out, which, k, {}, bounds.data()))
                << name_of(metric) << ' ' << rows << " rows, " << queries << " queries, k " << k
                << " rank " << rank;
            EXPECT_EQ(heap.batches, (queries + 11) / 12);
            EXPECT_GE(heap.kept, queries * std::min({k, rank + 1, rows}));
          }
        }
    }
}

TEST_P(ThresholdHeapScan, BatchesThreadsCopiesAndFiltersChangeNothing) {
  AnyMatrix base = vectors(codes, 900, 24, 3);
  for (std::int64_t i = 0; i < 900; i += 3) copy_row(base, i / 2, 899 - i);
  const ScanCase c(std::move(base), vectors(codes, 30, 24, 4), Metric::l2);
  const PackedBase packed = c.packed(codes, isa);
  ASSERT_GT(packed.tiles, 1);
  RowSet live(900);
  for (std::int64_t i = 0; i < 900; i += 3) live.remove(i);
  const std::vector<double> bounds = bounds_at(c, 60);
  const std::vector<std::int64_t> which = {29, 3, 0, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  for (const int threads : {1, 3})
    for (const std::int64_t batch : {1, 5, 1000})
      for (const bool some_live : {false, true})
        for (const std::int64_t k : {4, 40}) {
          ScanJob job = c.job(k, isa, threads);
          job.upper_bounds = bounds.data();
          if (some_live) job.allowed.live = &live;
          ExactNeighbors out(30, k);
          ScanStats stats;
          ThresholdHeapStats heap;
          scan_threshold_heap(packed, job, batch, which, out, stats, heap, {});
          ASSERT_TRUE(is_nearest(c, out, which, k, job.allowed, bounds.data()))
              << threads << " threads, batches of " << batch << ", k " << k;
        }
}

INSTANTIATE_TEST_SUITE_P(CodesAndIsas, ThresholdHeapScan,
                         testing::Combine(testing::ValuesIn(all_codes),
                                          testing::ValuesIn(test::levels())),
                         [](const auto& p) {
                           return name_of(std::get<0>(p.param)) + "_" +
                                  std::string(name_of(std::get<1>(p.param)));
                         });

TEST(ThresholdHeapDirectly, MeasuresAllRowsOrASubset) {
  std::vector<std::uint32_t> subset;
  for (std::uint32_t i = 3; i < 700; i += 1 + i % 4) subset.push_back(i);
  const RowFilter filter = RowFilter::of_ids(std::vector<Id>(subset.begin(), subset.end()), 700);
  for (const Metric metric : metrics) {
    const ScanCase c(vectors(Codes::fp32, 700, 23, 1), vectors(Codes::fp32, 21, 23, 2), metric);
    const std::vector<double> bounds = bounds_at(c, 40);
    for (const int threads : {1, 3})
      for (const std::int64_t batch : {1, 4, 48})
        for (const bool some : {false, true}) {
          ScanJob job = c.job(9, active_isa(), threads);
          job.upper_bounds = bounds.data();
          ExactNeighbors out(21, 9);
          ScanStats stats;
          ThresholdHeapStats heap;
          scan_threshold_heap_directly(job, batch, some ? subset : std::vector<std::uint32_t>{},
                                       all_of(21), out, stats, heap, {});
          const AllowedRows allowed{.filter = some ? &filter : nullptr};
          EXPECT_TRUE(is_nearest(c, out, all_of(21), 9, allowed, bounds.data()))
              << name_of(metric) << ' ' << threads << ' ' << batch;
        }
  }
}

// More pairs than a compressed row may hold (131,072) pass a threshold that says nothing.
TEST(ThresholdHeapCut, LongRowsAreCutDownToWhatMayBeAmongTheK) {
  constexpr std::int64_t rows = 140000;
  for (const Codes codes : {Codes::int8, Codes::integer}) {
    const ScanCase c(vectors(codes, rows, 8, 1), vectors(codes, 2, 8, 2), Metric::l2);
    const std::vector<double> bounds = bounds_at(c, rows);
    ASSERT_EQ(bounds[0], infinity);
    for (const std::int64_t k : {3, 50}) {
      ScanJob job = c.job(k);
      job.upper_bounds = bounds.data();
      ExactNeighbors out(2, k);
      ScanStats stats;
      ThresholdHeapStats heap;
      scan_threshold_heap(c.packed(codes, active_isa(), 1 << 17), job, 2, all_of(2), out, stats,
                          heap, {});
      EXPECT_TRUE(is_nearest(c, out, all_of(2), k)) << name_of(codes) << " k " << k;
      EXPECT_GE(stats.hits, 2 * rows);
      EXPECT_LT(heap.kept, 2 * rows);  // at the end
    }
  }
}

// Different rows at one distance, which no interval tells apart: they are measured when the row is
// full, and memory stays bounded.
TEST(ThresholdHeapCut, RowsThatTieAreMeasuredEarly) {
  constexpr std::int64_t rows = 140000, dim = 18;
  AnyMatrix base(ElementType::f32, rows, dim), query(ElementType::f32, 1, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      static_cast<float*>(base.row(i))[j] = i >> j & 1 ? 1.25f : -1.25f;
  const ScanCase c(std::move(base), std::move(query), Metric::l2);
  const std::vector<double> bounds = {infinity};
  ScanJob job = c.job(5);
  job.upper_bounds = bounds.data();
  ExactNeighbors out(1, 5);
  ScanStats stats;
  ThresholdHeapStats heap;
  scan_threshold_heap(c.packed(Codes::int8, active_isa(), 1 << 17), job, 1, all_of(1), out, stats,
                      heap, {});
  EXPECT_TRUE(is_nearest(c, out, all_of(1), 5));
  EXPECT_EQ(heap.measured, rows);
  EXPECT_LT(heap.kept, rows);
}

}  // namespace
}  // namespace knear::detail
