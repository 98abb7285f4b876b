// knn() and ExactSearcher give the answer of reference_knn, to the bit: random shapes and types,
// every level, every first pass, any threads, batches and memory.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>

#include "knear/core/cpu.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using namespace test;

TEST(Knn, RandomShapesTypesAndMetricsAtEveryLevel) {
  for (int round = 0; round < (test::small() ? 30 : 60); ++round) {
    Random random(1000 + round);
    const std::int64_t dim = round % 4 == 0   ? 1 + random.below(8)
                             : round % 4 == 1 ? 1 + random.below(70)
                             : round % 4 == 2 ? 1 + random.below(300)
                                              : 1 + random.below(2000);
    const std::int64_t n = 1 + random.below(dim > 300 ? 600 : 3000), q = 1 + random.below(40);
    const std::int64_t k = random.below(4) == 0 ? 1 + random.below(n + 10)
                                                : 1 + random.below(std::min<std::int64_t>(n, 20));
    const ElementType bt = all_element_types[random.below(element_type_count)],
                      qt = all_element_types[random.below(element_type_count)];
    const double scale = round % 3 == 0 ? 60 : std::pow(10.0, random.uniform() * 4 - 2);
    const double step = round % 3 == 0 ? 20 : 0;  // whole multiples: ties everywhere
    const auto value = [&](auto, auto) {
      const double x = gaussian(random) * scale + (round % 5 == 0 ? 100 : 0);
      return step ? std::round(x / step) * step : x;
    };
    const AnyMatrix base = make(bt, n, dim, value), queries = make(qt, q, dim, value);
    check_all(queries, base, k, metrics[round % 3],
              "seed " + std::to_string(1000 + round) + " base " + std::string(name_of(bt)) +
                  " queries " + std::string(name_of(qt)));
    if (HasFailure()) return;
  }
}

TEST(Knn, WholeNumbersOfEveryRangeAreExactIntegers) {
  struct Range {
    int low, high;
  };
  for (Range b : {Range{0, 255}, Range{-128, 127}, Range{0, 1}})
    for (Range x : {Range{0, 255}, Range{-128, 127}, Range{0, 3}})
      for (std::int64_t dim : {1, 3, 4, 5, 31, 128, 500}) {
        Random random(dim);
        const auto draw = [&](Range r) {
          return
              [&random, r](auto, auto) { return r.low + double(random.below(r.high - r.low + 1)); };
        };
        const AnyMatrix base = make(ElementType::f32, 700, dim, draw(b));
        const AnyMatrix queries = make(ElementType::f32, 13, dim, draw(x));
        for (Metric metric : {Metric::l2, Metric::ip}) {
          const Neighbors expected = reference_knn(queries, base, 12, metric);
          for (Isa isa : test::levels()) {
            ForcedIsa forced(isa);
            KnnReport report;
            const ExactSearcher searcher(base, {.metric = metric});
            EXPECT_TRUE(same(searcher.search(queries, 12, {.metric = metric}, &report), expected))
                << dim << ' ' << b.low << ' ' << x.low << ' ' << name_of(isa);
            EXPECT_EQ(report.scan.first_pass, "integer");
            EXPECT_TRUE(same(knn(queries, base, 12, {.metric = metric}), expected));
          }
        }
      }
}

TEST(Knn, ExtremeIntegersAtTheLargestDimension) {
  // Every product is as large as possible: what int32 must hold for d = 65,536, and 64-bit keys.
  for (std::int64_t dim : {33000, 33100, 65536}) {
    const std::int64_t n = 300;
    Random random(5);
    const AnyMatrix base = make(ElementType::u8, n, dim, [&](std::int64_t r, auto c) {
      return r % 3 == 0 ? 0.0 : r % 3 == 1 ? 255.0 : c % 2 ? 255.0 : double(random.below(256));
    });
    const AnyMatrix queries = make(ElementType::u8, 6, dim, [&](std::int64_t r, auto c) {
      return r == 0 ? 0.0 : r == 1 ? 255.0 : c % 2 ? 0.0 : double(random.below(256));
    });
    for (Metric metric : {Metric::l2, Metric::ip}) {
      const Neighbors expected = reference_knn(queries, base, 20, metric);
      for (Isa isa : test::levels()) {
        ForcedIsa forced(isa);
        EXPECT_TRUE(same(knn(queries, base, 20, {.metric = metric}), expected))
            << dim << ' ' << name_of(metric) << ' ' << name_of(isa);
      }
    }
  }
}

TEST(Knn, CertifiedPassesAtTheLargestDimension) {
  // Coordinates of one sign and full size: code products as large as they get, and the longest
  // float sums.
  const std::int64_t dim = 65536;
  Random random(6);
  const auto value = [&](std::int64_t r, auto) {
    const double small = gaussian(random);
    return r % 4 == 0 ? 1 + 1e-3 * small : r % 4 == 1 ? -1 + 1e-3 * small : small;
  };
  const AnyMatrix base = make(ElementType::f32, 264, dim, value);
  const AnyMatrix queries = make(ElementType::f32, 5, dim, value);
  for (Metric metric : metrics) check_all(queries, base, 3, metric, "largest dimension");
}

TEST(Knn, SameBitsForAnyThreadsBatchesLevelAndSplit) {
  const AnyMatrix floats = gaussians(1800, 33, 1), float_queries = gaussians(60, 33, 2);
  Random random(3);
  const auto byte = [&](auto, auto) { return double(random.below(40)); };
  const AnyMatrix bytes = make(ElementType::u8, 1800, 33, byte);
  const AnyMatrix byte_queries = make(ElementType::u8, 60, 33, byte);
  const AnyMatrixView pairs[][2] = {{floats.view(), float_queries.view()},
                                    {bytes.view(), byte_queries.view()}};
  for (Metric metric : metrics)
    for (const auto& [base, queries] : pairs) {
      const Neighbors expected = reference_knn(queries, base, 10, metric);
      for (Isa isa : test::levels()) {
        ForcedIsa forced(isa);
        for (int threads : {1, 2, 7})
          for (std::int64_t batch : {1, 2, 5, 13, 60}) {
            const ExactSearcher searcher(base, {.metric = metric, .threads = threads});
            for (std::int64_t at = 0; at < queries.rows(); at += batch) {
              const std::int64_t end = std::min(queries.rows(), at + batch);
              const Neighbors part = searcher.search(queries.rows(at, end), 10,
                                                     {.metric = metric, .threads = threads});
              for (std::int64_t q = at; q < end; ++q)
                for (int j = 0; j < 10; ++j) {
                  ASSERT_EQ(part.ids.row(q - at)[j], expected.ids.row(q)[j])
                      << name_of(metric) << ' ' << name_of(isa) << " threads " << threads
                      << " batch " << batch << " query " << q;
                  ASSERT_EQ(std::bit_cast<std::uint32_t>(part.distances.row(q - at)[j]),
                            std::bit_cast<std::uint32_t>(expected.distances.row(q)[j]));
                }
            }
          }
      }
    }
}

TEST(Knn, MemoryBudgetSplitsTheBaseOrSaysWhatItNeeds) {
  const AnyMatrix base = gaussians(60000, 64, 7), queries = gaussians(20, 64, 8);
  const Neighbors expected = reference_knn(queries, base, 10, Metric::l2);
  KnnReport report;
  EXPECT_TRUE(same(knn(queries, base, 10, {.memory = 4 << 20}, &report), expected));
  EXPECT_GT(report.scan.chunks, 1);
  EXPECT_LE(report.memory_bytes, 4 << 20);
  EXPECT_THROW(knn(queries, base, 10, {.memory = 100000}), MemoryBudgetError);
  // The memory that the message asks for is more than was given, and enough.
  for (const FirstPass pass : {FirstPass::automatic, FirstPass::int8, FirstPass::prefix}) {
    for (std::int64_t memory = 100000;; memory += memory / 2) {
      try {
        knn(queries, base, 10, {.memory = memory, .first_pass = pass});
        break;
      } catch (const MemoryBudgetError& e) {
        const std::string text = e.what(), before = "at least ";
        const std::int64_t least = std::stoll(text.substr(text.find(before) + before.size()));
        ASSERT_GT(least, memory) << text;
        EXPECT_NO_THROW(knn(queries, base, 10, {.memory = least, .first_pass = pass})) << text;
      }
    }
  }
  // Where the bound is useless no wider codes are made than fit, and few candidates are kept.
  Random random(9);
  const auto value = [&](std::int64_t r, auto) {
    return (r % 2 ? 1e2 : -1e2) + gaussian(random) * 1e-3;
  };
  const AnyMatrix close = make(ElementType::f32, 30000, 64, value);
  const AnyMatrix close_queries = make(ElementType::f32, 40, 64, value);
  const std::int64_t budget = 5 << 20;
  EXPECT_TRUE(same(knn(close_queries, close, 10, {.memory = budget}, &report),
                   reference_knn(close_queries, close, 10, Metric::l2)));
  EXPECT_LE(report.memory_bytes, budget)
      << report.scan.first_pass << " in " << report.scan.chunks << " parts";
  // Whole numbers take a byte each.
  const AnyMatrix bytes =
      make(ElementType::u8, 60000, 64, [&](auto, auto) { return double(random.below(256)); });
  knn(bytes.view().rows(0, 20), bytes, 10, {.memory = 8 << 20}, &report);
  EXPECT_EQ(report.scan.chunks, 1);
  knn(bytes.view().rows(0, 20), bytes, 10, {.memory = 3 << 20, .first_pass = FirstPass::direct},
      &report);
  EXPECT_EQ(report.scan.chunks, 1);
}

TEST(Knn, KeptCodesStayWithinTheBudget) {
  // Each stage of the precision cascade is tried, and each stage's codes fit the budget alone.
  Random random(43);
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return double((c * 37 % 11 - 5) * (1 + 100 * (r % 8))) + 1e-3 * gaussian(random);
  };
  const AnyMatrix base = make(ElementType::f32, 40000, 32, value);
  const AnyMatrix queries = make(ElementType::f32, 60, 32, value);
  const std::int64_t budget = 10 << 20;
  const ExactSearcher searcher(base, {.threads = 2});
  KnnReport report;
  const Neighbors got = searcher.search(queries, 10, {.threads = 2, .memory = budget}, &report);
  EXPECT_TRUE(same(got, knn(queries, base, 10, {.first_pass = FirstPass::direct})));
  if (has_byte_products(active_isa())) {
    EXPECT_GT(report.scan.fallback_queries, 0);
  }
  EXPECT_LE(report.memory_bytes, budget);
}

TEST(Knn, TheCallersFloatModeChangesNothing) {
  const AnyMatrix base = gaussians(1000, 8, 1);
  for (double size : {1e-40, 1e-20}) {
    const AnyMatrix queries = gaussians(20, 8, 2, size), tiny = gaussians(1000, 8, 3, size);
    for (Metric metric : metrics)
      for (const AnyMatrix* side : {&base, &tiny}) {
        const Neighbors expected = reference_knn(queries, *side, 5, metric);
        const std::uint64_t saved = detail::float_mode();
        detail::set_float_mode(saved | detail::flushing_mode());
        const Neighbors got = knn(queries, *side, 5, {.metric = metric});
        const Neighbors again =
            ExactSearcher(*side, {.metric = metric}).search(queries, 5, {.metric = metric});
        detail::set_float_mode(saved | detail::rounding_down_mode());
        const Neighbors down = knn(queries, *side, 5, {.metric = metric});
        detail::set_float_mode(saved);
        EXPECT_TRUE(same(got, expected)) << name_of(metric) << ' ' << size;
        EXPECT_TRUE(same(again, expected)) << name_of(metric) << ' ' << size;
        EXPECT_TRUE(same(down, expected)) << name_of(metric) << ' ' << size;
      }
  }
}

// Where rows stand for many copies, only as many copies are listed as can be among the k.
TEST(Knn, ManyNeighboursAmongCopies) {
  constexpr std::int64_t rows = 60000, dim = 8;
  Random random(1);
  Matrix<float> base(rows, dim), queries(5, dim);
  for (std::int64_t i = 0; i < 5 * dim; ++i) queries.data()[i] = float(random.uniform());
  for (const std::int64_t distinct : {1, 4, 700}) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < dim; ++j)
        base.row(r)[j] = r < distinct ? float(random.uniform()) : base.row(r % distinct)[j];
    for (const std::int64_t k : {33, 100, 5000}) {
      const Neighbors expected = reference_knn(queries.view(), base.view(), k, Metric::l2);
      for (const FirstPass pass : {FirstPass::automatic, FirstPass::int8}) {
        const Neighbors got = knn(queries.view(), base.view(), k, {.first_pass = pass});
        for (std::int64_t i = 0; i < 5 * k; ++i)
          ASSERT_EQ(got.ids.data()[i], expected.ids.data()[i]) << distinct << " k " << k;
      }
    }
  }
}

}  // namespace
}  // namespace knear
