// The self-join by a prefix, called by itself: each pair is scored once for both of its rows, and
// the answer is the reference's, to the bit.
#include <gtest/gtest.h>

#include "knear/scan/prefix/prefix_self_join.hpp"
#include "tests/scan/prefix/prefix_cases.hpp"
#include "tests/small.hpp"

namespace knear::detail {
namespace {

class PrefixSelfJoin : public testing::TestWithParam<std::tuple<Codes, Metric>> {
 protected:
  // Rows that are their own queries. Some are copies of others.
  ScanCase rows(std::int64_t count, std::int64_t copies) const {
    AnyMatrix base = falling(codes, count, 40, 1, 7), same = falling(codes, count, 40, 1, 7);
    for (std::int64_t i = 0; i < copies; ++i)
      copy_row(base, 3 * i, count - 1 - i), copy_row(same, 3 * i, count - 1 - i);
    return ScanCase(std::move(base), std::move(same), metric);
  }

  const Codes codes = std::get<0>(GetParam());
  const Metric metric = std::get<1>(GetParam());
  const PrefixPlan plan{.columns = 16, .clusters = 20, .tile_bytes = 8192};
  const MachinePeaks slow = slow_scans();
};

TEST_P(PrefixSelfJoin, AnswersAsTheReference) {
  const std::int64_t count = test::small() ? 1150 : 1300;  // three tiles, of copies too
  for (const std::int64_t copies : {0, 100}) {
    const ScanCase c = rows(count, copies);
    for (const Isa isa : test::levels()) {
      const ForcedIsa forced(isa);
      const auto base = prefix_of(c, codes, plan);
      ASSERT_TRUE(base);
      ASSERT_GT(base->panels.tiles, 2);
      for (const std::int64_t k : {1, 11, 70})
        for (const int threads : {1, 3}) {
          ScanJob job = c.job(k, isa, threads);
          job.peaks = &slow;
          ExactNeighbors out(count, k);
          ScanStats stats;
          ASSERT_TRUE(self_join_with_prefix(*base, job, all_of(count), out, stats, {}));
          EXPECT_LE(stats.buffer_bytes, self_join_bytes(count, 40, k, threads));
          ASSERT_TRUE(is_nearest(c, out, all_of(count), k))
              << name_of(isa) << ' ' << copies << " copies, k " << k << ' ' << threads
              << " threads";
        }
    }
  }
}

// Of few different distances, so that most k-th ones are those of many rows and the smallest ids
// decide, within a block and between blocks; floats are also of very different sizes.
TEST_P(PrefixSelfJoin, TiesAtTheThresholdAndRowsOfEverySize) {
  for (const bool sizes : {false, true}) {
    if (sizes && codes == Codes::integer) continue;
    const std::int64_t count = test::small() ? 600 : 1100, dim = 32;
    const auto make = [&] {
      AnyMatrix out(codes == Codes::integer ? ElementType::u8 : ElementType::f32, count, dim);
      Random random(11);
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t j = 0; j < dim; ++j) {
          const auto x = static_cast<int>(j < 7 ? random.below(3) : 0);
          const double size = !sizes ? 1 : i % 7 == 0 ? 0x1p30 : i % 7 == 1 ? 0x1p-30 : 1;
          if (codes == Codes::integer)
            static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(x);
          else
            static_cast<float*>(out.row(i))[j] = static_cast<float>(x * size);
        }
      return out;
    };
    const ScanCase c(make(), make(), metric);
    for (const Isa isa : test::levels()) {
      const ForcedIsa forced(isa);
      const auto base = prefix_of(c, codes, plan);
      ASSERT_TRUE(base);
      for (const std::int64_t k : {1, 9, 40}) {
        ScanJob job = c.job(k, isa, 2);
        job.peaks = &slow;
        ExactNeighbors out(count, k);
        ScanStats stats;
        ASSERT_TRUE(self_join_with_prefix(*base, job, all_of(count), out, stats, {}));
        ASSERT_TRUE(is_nearest(c, out, all_of(count), k)) << name_of(isa) << ", k " << k;
      }
    }
  }
}

// All rows are scored, since they are neighbours of those wanted, which alone are answered.
TEST_P(PrefixSelfJoin, OfSomeRows) {
  const ScanCase c = rows(900, 0);
  const auto base = prefix_of(c, codes, plan);
  ASSERT_TRUE(base);
  ScanJob job = c.job(6, active_isa(), 2);
  job.peaks = &slow;
  const std::vector<std::int64_t> which = {3, 4, 5, 300, 899};
  ExactNeighbors out(900, 6);
  std::fill_n(out.ids.data(), 900 * 6, Id{-77});
  ScanStats stats;
  ASSERT_TRUE(self_join_with_prefix(*base, job, which, out, stats, {}));
  EXPECT_TRUE(is_nearest(c, out, which, 6));
  for (const std::int64_t q : all_of(900))
    EXPECT_EQ(out.ids.row(q)[0] == -77, std::find(which.begin(), which.end(), q) == which.end());
}

// No direction matters more than another, so that most pairs pass the prefix; and a scan of all
// columns would take next to no time.
TEST_P(PrefixSelfJoin, IsGivenUpWhereThePrefixRulesOutTooLittle) {
  const std::int64_t count = test::small() ? 600 : 1500;
  const ScanCase c(vectors(codes, count, 64, 5), vectors(codes, count, 64, 5), metric);
  const auto base = prefix_of(c, codes, {.columns = 8, .clusters = 10, .tile_bytes = 1024});
  ASSERT_TRUE(base);
  for (const bool pays : {false, true}) {
    MachinePeaks peaks = estimated_peaks(active_isa(), 1);
    peaks.int8_ops *= pays ? 1e-6 : 1e6;
    ScanJob job = c.job(4);
    job.peaks = &peaks;
    ExactNeighbors out(count, 4);
    ScanStats stats;
    ASSERT_EQ(self_join_with_prefix(*base, job, all_of(count), out, stats, {}), pays);
    if (pays) {
      EXPECT_TRUE(is_nearest(c, out, all_of(count), 4));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codes, PrefixSelfJoin,
    testing::Values(std::tuple(Codes::int8, Metric::l2), std::tuple(Codes::int8, Metric::cosine),
                    std::tuple(Codes::int8, Metric::ip), std::tuple(Codes::integer, Metric::l2),
                    std::tuple(Codes::integer, Metric::ip)),
    [](const auto& p) {
      return name_of(std::get<0>(p.param)) + "_" + std::string(name_of(std::get<1>(p.param)));
    });

}  // namespace
}  // namespace knear::detail
