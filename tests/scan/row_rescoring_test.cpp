// Measuring the candidates of many queries row by row against doing so query by query, and both
// against measuring everything.
#include "knear/scan/row_rescoring.hpp"
#include "knear/cost/peak_cache.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "knear/core/random.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {
namespace {

// A fifth of the rows are copies of others.
AnyMatrix random_rows(ElementType type, std::int64_t rows, std::int64_t dim, Random& random) {
  AnyMatrix out(type, rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i % 5 == 1) {
      std::memcpy(out.row(i), out.view().row(i / 3), static_cast<std::size_t>(dim * size_of(type)));
      continue;
    }
    for (std::int64_t j = 0; j < dim; ++j) {
      if (type == ElementType::f32)
        static_cast<float*>(out.row(i))[j] = static_cast<float>(random.uniform() - 0.4);
      else if (type == ElementType::f16)  // between 1 / 16 and 1 and their negatives
        static_cast<std::uint16_t*>(out.row(i))[j] = static_cast<std::uint16_t>(
            random.below(2) << 15 | (11 + random.below(4)) << 10 | random.below(1024));
      else
        static_cast<std::uint8_t*>(out.row(i))[j] = static_cast<std::uint8_t>(random.below(4));
    }
  }
  return out;
}

double key_of(Metric metric, AnyMatrixView queries, std::int64_t q, AnyMatrixView base,
              std::int64_t row) {
  ExactDistance measure(metric, base.type(), Isa::scalar);
  measure.set_query(queries, q);
  return measure.key(base.row(row));
}

TEST(RowRescoring, GivesEachQueryTheKBest) {
  constexpr std::int64_t rows = 150, queries = 23, dim = 21;
  Random random(5);
  for (const ElementType type : {ElementType::f32, ElementType::f16, ElementType::u8})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      for (const std::int64_t k : {33, 60, 150})
        for (const bool filtered : {false, true}) {
          const AnyMatrix base = random_rows(type, rows, dim, random);
          const AnyMatrix asked = random_rows(ElementType::f32, queries, dim, random);
          const Duplicates duplicates = Duplicates::find(base.view(), {}, 1);
          ASSERT_TRUE(duplicates.any());
          std::vector<Id> allowed_ids;
          for (Id row = 0; row < rows; row += 2) allowed_ids.push_back(row);
          const RowFilter filter = RowFilter::of_ids(allowed_ids, rows);
          ScanJob job{.queries = asked.view(),
                      .base = base.view(),
                      .metric = metric,
                      .k = k,
                      .threads = 1,
                      .isa = active_isa(),
                      .peaks = &planning_peaks(active_isa(), 1)};
          job.pending = 4 * k + 64;
          if (filtered) job.allowed.filter = &filter;
          CandidateRefiner refiner(duplicates, job);
          RowRescoring together(duplicates, job, refiner);
          ExactNeighbors by_rows(queries, k);
          ExactNeighbors one_by_one(queries, k);
          // Intervals that hold the true g, some of them wide; g is about that of l2.
          std::vector<QueryCandidates> states(queries), same(queries);
          std::vector<Unfinished> unfinished;
          const KeyScale scale{Metric::ip, 0, 0};  // g is minus the key, for every metric here
          for (std::int64_t q = 0; q < queries; ++q) {
            QueryCandidates& c = states[q];
            c.exact = TopK(k), c.lowers = LargestK(k);
            for (const std::uint32_t row : duplicates.distinct()) {
              const double g = -key_of(metric, asked.view(), q, base.view(), row);
              const double width = 0.3 * random.uniform();
              const double off = (random.uniform() - 0.5) * 2 * width;
              // A first few were measured early.
              if (row < 20) {
                for (const std::uint32_t copy : duplicates.others(row))
                  if (job.allowed(copy)) c.exact.push(-g, copy);
                if (job.allowed(row)) c.exact.push(-g, row);
              } else {
                c.pending.push_back({g + off + width, g + off - width, row});
              }
            }
            if (filtered) {  // forbidden rows set no threshold
              std::erase_if(c.pending, [&](const ScoreInterval& x) {
                if (job.allowed(x.row)) return false;
                const auto others = duplicates.others(x.row);
                return std::none_of(others.begin(), others.end(), job.allowed);
              });
            }
            same[q] = c;
            unfinished.push_back({&states[q], q, scale});
            ScanStats stats;
            refiner.finish(same[q], q, scale, one_by_one.keys.row(q), one_by_one.ids.row(q), stats);
          }
          ScanStats stats;
          together.finish(unfinished, by_rows, stats);
          EXPECT_GT(stats.survivors, 0);
          EXPECT_GT(together.bytes(), 0);
          for (std::int64_t q = 0; q < queries; ++q) {
            std::vector<KeyedId> expected;
            for (std::int64_t row = 0; row < rows; ++row)
              if (job.allowed(row))
                expected.emplace_back(key_of(metric, asked.view(), q, base.view(), row), row);
            std::sort(expected.begin(), expected.end());
            for (std::int64_t j = 0; j < k; ++j) {
              const bool has = j < std::ssize(expected);
              ASSERT_EQ(by_rows.ids.row(q)[j], has ? expected[j].second : no_id)
                  << name_of(metric) << ' ' << name_of(type) << ' ' << q << ' ' << j;
              if (has) {
                ASSERT_EQ(by_rows.keys.row(q)[j], expected[j].first);
              }
            }
          }
          EXPECT_EQ(std::memcmp(by_rows.ids.data(), one_by_one.ids.data(),
                                static_cast<std::size_t>(queries * k) * sizeof(Id)),
                    0);
        }
}

}  // namespace
}  // namespace knear::detail
