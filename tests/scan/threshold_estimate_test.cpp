// Estimated thresholds: answers do not depend on whether the estimate was right; where it was wrong
// the query is scanned again.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t rows = 2300, dim = 4096, k = 60;
constexpr std::int64_t tile_bytes = 512 << 10;  // whatever caches this machine has

PackedBase packed_of(const Matrix<float>& base, bool integer) {
  const Isa isa = active_isa();
  if (integer)
    return PackedBase::integer(base.view(), {}, Metric::l2, isa,
                               find_value_range(base.view(), Metric::l2, "base", 1), 2, {},
                               tile_bytes);
  return PackedBase::certified(base.view(), {}, format_int8,
                               CodingSpace::choose(base.view(), Metric::l2, isa), 2, {},
                               tile_bytes);
}

// The rows whose codes lie in the first tile.
std::vector<std::uint32_t> first_tile(const PackedBase& packed) {
  std::vector<std::uint32_t> out;
  for (std::int64_t slot = 0; slot < packed.panels_per_tile * panel_rows; ++slot)
    if (packed.ids[slot] != PackedBase::no_row) out.push_back(packed.ids[slot]);
  return out;
}

Matrix<float> whole_numbers(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(n, dim);
  for (std::int64_t i = 0; i < n * dim; ++i) out.data()[i] = static_cast<float>(random.below(100));
  return out;
}

void expect_reference(const Matrix<float>& base, const Matrix<float>& queries, bool integer,
                      bool repeated) {
  const PackedBase packed = packed_of(base, integer);
  ASSERT_GE(packed.tiles, 16);
  const Neighbors expected = reference_knn(queries.view(), base.view(), k, Metric::l2);
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{30}, queries.rows()})
    for (const bool estimate : {true, false}) {
      ScanJob job{.queries = queries.view().rows(0, count),
                  .base = base.view(),
                  .metric = Metric::l2,
                  .k = k,
                  .threads = 2,
                  .isa = active_isa(),
                  .peaks = &planning_peaks(active_isa(), 2)};
      job.query_range = find_value_range(queries.view(), Metric::l2, "queries", 1);
      job.may_estimate = estimate;
      ExactNeighbors out(count, k);
      std::vector<std::int64_t> all(static_cast<std::size_t>(count));
      std::iota(all.begin(), all.end(), 0);
      ScanStats stats;
      ASSERT_TRUE(scan(packed, job, all, out, stats, {}).empty());
      for (std::int64_t i = 0; i < count * k; ++i)
        ASSERT_EQ(out.ids.data()[i], expected.ids.data()[i]) << count << " place " << i;
      EXPECT_EQ(stats.repeated > 0, estimate && repeated) << count;
    }
}

TEST(ThresholdEstimates, AreRightForSamples) {
  const Matrix<float> base = whole_numbers(rows, 1), queries = whole_numbers(120, 2);
  for (const bool integer : {true, false}) expect_reference(base, queries, integer, false);
}

TEST(ThresholdEstimates, ThatProveWrongAreGivenUp) {
  const Matrix<float> base = whole_numbers(rows, 1);
  const Matrix<float> queries = [] {
    Matrix<float> out = whole_numbers(120, 3);
    for (std::int64_t q = 1; q < 120; ++q)  // all alike
      for (std::int64_t j = 0; j < dim; ++j) out.row(q)[j] = out.row(0)[j];
    for (std::int64_t q = 0; q < 120; ++q) out.row(q)[q] += q == 0 ? 0.0f : 1.0f;
    return out;
  }();
  for (const bool integer : {true, false}) {
    // All of the nearest are in the first tile.
    Matrix<float> unfair = whole_numbers(rows, 1);
    const auto near = first_tile(packed_of(base, integer));
    Random random(5);
    for (std::size_t i = 0; i < near.size(); ++i)
      for (std::int64_t j = 0; j < dim; ++j)
        unfair.row(near[i])[j] =
            std::min(queries.row(0)[j] + static_cast<float>(random.below(3 + i / 3)), 120.0f);
    expect_reference(unfair, queries, integer, true);
  }
}

}  // namespace
}  // namespace knear::detail
