// knn() and ExactSearcher give the answer of reference_knn, to the bit: random shapes and types,
// every level, every first pass, any threads and batches, and data made to be nasty.
#include "knear/knn/knn.hpp"

#include <gtest/gtest.h>

#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"

namespace knear {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};
constexpr FirstPass certified[] = {FirstPass::int8, FirstPass::int16, FirstPass::fp32};

// Forces a level for a scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) { setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1); }
  ~ForcedIsa() { unsetenv("KNEAR_ISA"); }
};

double gaussian(Random& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(6.283185307179586 * random.uniform());
}

void set(AnyMatrix& m, std::int64_t i, double value) {
  switch (m.type()) {
    case ElementType::f32:
      static_cast<float*>(m.row(0))[i] = static_cast<float>(value);
      break;
    case ElementType::f16:
      static_cast<f16*>(m.row(0))[i] = to_f16(static_cast<float>(value));
      break;
    case ElementType::bf16:
      static_cast<bf16*>(m.row(0))[i] = to_bf16(static_cast<float>(value));
      break;
    case ElementType::u8:
      static_cast<std::uint8_t*>(m.row(0))[i] =
          std::uint8_t(std::clamp(std::lround(value), 0l, 255l));
      break;
    case ElementType::i8:
      static_cast<std::int8_t*>(m.row(0))[i] =
          std::int8_t(std::clamp(std::lround(value), -128l, 127l));
  }
}

template <class F>
AnyMatrix make(ElementType type, std::int64_t rows, std::int64_t cols, F value) {
  AnyMatrix out(type, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) set(out, r * cols + c, value(r, c));
  return out;
}

AnyMatrix gaussians(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1,
                    double offset = 0) {
  Random random(seed);
  return make(ElementType::f32, rows, cols,
              [&](auto, auto) { return gaussian(random) * scale + offset; });
}

::testing::AssertionResult same(const Neighbors& got, const Neighbors& expected) {
  if (got.ids.rows() != expected.ids.rows() || got.ids.cols() != expected.ids.cols())
    return ::testing::AssertionFailure() << "shapes differ";
  for (std::int64_t q = 0; q < got.ids.rows(); ++q)
    for (std::int64_t j = 0; j < got.ids.cols(); ++j)
      if (got.ids.row(q)[j] != expected.ids.row(q)[j] ||
          std::bit_cast<std::uint32_t>(got.distances.row(q)[j]) !=
              std::bit_cast<std::uint32_t>(expected.distances.row(q)[j]))
        return ::testing::AssertionFailure()
               << "query " << q << " place " << j << ": id " << got.ids.row(q)[j] << " distance "
               << got.distances.row(q)[j] << ", expected id " << expected.ids.row(q)[j]
               << " distance " << expected.distances.row(q)[j];
  return ::testing::AssertionSuccess();
}

constexpr Method other_methods[] = {Method::threshold_heap, Method::partial_reduce};

// Compares with the reference: automatic at every level, and every first pass forced.
void check_all(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, Metric metric,
               const std::string& what) {
  SCOPED_TRACE(what + " " + std::string(name_of(metric)) + " n=" + std::to_string(base.rows()) +
               " d=" + std::to_string(base.cols()) + " q=" + std::to_string(queries.rows()) +
               " k=" + std::to_string(k));
  const Neighbors expected = reference_knn(queries, base, k, metric);
  for (Isa isa : available_isas()) {
    ForcedIsa forced(isa);
    SCOPED_TRACE(name_of(isa));
    EXPECT_TRUE(same(knn(queries, base, k, {.metric = metric}), expected)) << "automatic";
    for (FirstPass pass : certified)
      EXPECT_TRUE(same(knn(queries, base, k, {.metric = metric, .first_pass = pass}), expected))
          << name_of(pass);
    // The other methods, which are exact if all that is asked for.
    for (Method method : other_methods) {
      EXPECT_TRUE(
          same(knn(queries, base, k, {.metric = metric, .approach = {.method = method}}), expected))
          << name_of(method);
      for (FirstPass pass : {FirstPass::int8, FirstPass::fp32})
        EXPECT_TRUE(
            same(knn(queries, base, k,
                     {.metric = metric, .first_pass = pass, .approach = {.method = method}}),
                 expected))
            << name_of(method) << ' ' << name_of(pass);
    }
  }
  EXPECT_TRUE(
      same(knn(queries, base, k, {.metric = metric, .first_pass = FirstPass::direct}), expected))
      << "direct";
}

TEST(Knn, RandomShapesTypesAndMetricsAtEveryLevel) {
  for (int round = 0; round < 60; ++round) {
    Random random(1000 + round);
    const std::int64_t dim = round % 4 == 0   ? 1 + random.below(8)
                             : round % 4 == 1 ? 1 + random.below(70)
                             : round % 4 == 2 ? 1 + random.below(300)
                                              : 1 + random.below(2000);
    const std::int64_t n = 1 + random.below(dim > 300 ? 600 : 3000), q = 1 + random.below(40);
    const std::int64_t k = random.below(4) == 0 ? 1 + random.below(n + 10)
                                                : 1 + random.below(std::min<std::int64_t>(n, 20));
    const ElementType bt = all_element_types[random.below(5)],
                      qt = all_element_types[random.below(5)];
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
          for (Isa isa : available_isas()) {
            ForcedIsa forced(isa);
            KnnReport report;
            const ExactSearcher searcher(base, {.metric = metric});
            EXPECT_TRUE(same(searcher.search(queries, 12, {.metric = metric}, &report), expected))
                << dim << ' ' << b.low << ' ' << x.low << ' ' << name_of(isa);
            EXPECT_EQ(report.first_pass, "integer");
            EXPECT_TRUE(same(knn(queries, base, 12, {.metric = metric}), expected));
          }
        }
      }
}

TEST(Knn, ExtremeIntegersAtTheLargestDimension) {
  // Every product at its largest: what int32 must hold for d = 65,536, and 64-bit keys.
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
      for (Isa isa : available_isas()) {
        ForcedIsa forced(isa);
        EXPECT_TRUE(same(knn(queries, base, 20, {.metric = metric}), expected))
            << dim << ' ' << name_of(metric) << ' ' << name_of(isa);
      }
    }
  }
}

TEST(Knn, CertifiedPassesAtTheLargestDimension) {
  // Full coordinates of one sign: code products as large as they get, sums of floats as long.
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
      for (Isa isa : available_isas()) {
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
  EXPECT_GT(report.chunks, 1);
  EXPECT_LE(report.memory_bytes, 4 << 20);
  EXPECT_THROW(knn(queries, base, 10, {.memory = 100000}), MemoryBudgetError);
  // What it says that it needs is more than it was given, and enough.
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
  // Where the bound is useless no wider form is made than fits, and few candidates wait.
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
      << report.first_pass << " in " << report.chunks << " parts";
  // Whole numbers take a byte each.
  const AnyMatrix bytes =
      make(ElementType::u8, 60000, 64, [&](auto, auto) { return double(random.below(256)); });
  knn(bytes.view().rows(0, 20), bytes, 10, {.memory = 8 << 20}, &report);
  EXPECT_EQ(report.chunks, 1);
  knn(bytes.view().rows(0, 20), bytes, 10, {.memory = 3 << 20, .first_pass = FirstPass::direct},
      &report);
  EXPECT_EQ(report.chunks, 1);
}

// ---- data made to be nasty ----------------------------------------------------------------------

TEST(KnnNasty, AllVectorsEqual) {
  const AnyMatrix base =
      make(ElementType::f32, 9000, 20, [](auto, auto c) { return 0.1 * c + 0.3; });
  const AnyMatrix queries = gaussians(30, 20, 1);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "all equal");
  check_all(base.view().rows(0, 14), base, 10, Metric::l2, "queries equal too");
}

TEST(KnnNasty, ThousandsOfDuplicates) {
  Random random(4);
  const AnyMatrix kinds = gaussians(5, 24, 5);
  const AnyMatrix base = make(ElementType::f32, 8000, 24, [&](std::int64_t r, std::int64_t c) {
    return static_cast<const float*>(kinds.view().row(r * 7 % 11 % 5))[c];
  });
  const AnyMatrix queries = gaussians(26, 24, 6);
  for (Metric metric : metrics) check_all(queries, base, 15, metric, "duplicates");
}

TEST(KnnNasty, OneHugeOutlier) {
  const AnyMatrix base = [&] {
    Random random(9);
    return make(ElementType::f32, 3000, 48,
                [&](std::int64_t r, auto) { return gaussian(random) * (r == 1234 ? 1e15 : 1); });
  }();
  for (Metric metric : metrics) check_all(gaussians(20, 48, 10), base, 10, metric, "outlier");
}

TEST(KnnNasty, NormsFromTinyToHuge) {
  for (double decades : {30.0, 70.0}) {
    Random random(11);
    std::vector<double> scale(3000);
    for (double& s : scale) s = std::pow(10.0, (random.uniform() - 0.5) * decades);
    const auto value = [&](std::int64_t r, auto) { return gaussian(random) * scale[r]; };
    const AnyMatrix base = make(ElementType::f32, 3000, 40, value);
    const AnyMatrix queries = make(ElementType::f32, 25, 40, value);
    for (Metric metric : metrics) check_all(queries, base, 10, metric, "norms");
  }
}

TEST(KnnNasty, LargestFloats) {
  Random random(12);
  const auto value = [&](auto, auto) {
    return (random.uniform() - 0.5) * 2 * std::numeric_limits<float>::max();
  };
  const AnyMatrix base = make(ElementType::f32, 1000, 17, value);
  const AnyMatrix queries = make(ElementType::f32, 13, 17, value);
  for (Metric metric : metrics) check_all(queries, base, 5, metric, "largest floats");
}

TEST(KnnNasty, SmallDifferencesOnALargeOffset) {
  // The expanded form loses everything here; 1e6 has a spacing of 1/16 in float.
  Random random(13);
  const auto value = [&](auto, auto) { return 1e6 + gaussian(random) * 0.2; };
  const AnyMatrix base = make(ElementType::f32, 4000, 32, value);
  const AnyMatrix queries = make(ElementType::f32, 20, 32, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "offset");
  const auto fine = [&](auto, auto) { return 1e4 + gaussian(random) * 1e-3; };
  const AnyMatrix base2 = make(ElementType::f32, 4000, 32, fine);
  check_all(make(ElementType::f32, 20, 32, fine), base2, 10, Metric::l2, "fine offset");
}

TEST(KnnNasty, TwoFarClustersOfCloseRows) {
  // No single centre helps: the first pass must give up, and the answer must not care.
  Random random(14);
  const auto value = [&](std::int64_t r, auto) {
    return (r % 2 ? 1e3 : -1e3) + gaussian(random) * 1e-2;
  };
  const AnyMatrix base = make(ElementType::f32, 6000, 40, value);
  const AnyMatrix queries = make(ElementType::f32, 30, 40, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "two clusters");
}

TEST(KnnNasty, Denormals) {
  Random random(15);
  const auto value = [&](auto, auto) { return gaussian(random) * 1e-42; };
  const AnyMatrix base = make(ElementType::f32, 2000, 24, value);
  const AnyMatrix queries = make(ElementType::f32, 20, 24, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "denormals");
}

TEST(KnnNasty, BaseSortedByDistanceBothWays) {
  const AnyMatrix queries = make(ElementType::f32, 13, 16, [](auto, auto) { return 0.0; });
  for (int direction : {1, -1}) {
    const AnyMatrix base = make(ElementType::f32, 7000, 16, [&](std::int64_t r, std::int64_t c) {
      return (direction > 0 ? r + 1 : 7001 - r) * 0.001 * (c + 1.1);
    });
    for (Metric metric : metrics) check_all(queries, base, 10, metric, "sorted");
    check_all(gaussians(14, 16, 3), base, 10, Metric::l2, "sorted, other queries");
  }
}

TEST(KnnNasty, ClustersOfNearDuplicates) {
  Random random(16);
  const AnyMatrix centres = gaussians(8, 40, 17);
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return static_cast<const float*>(centres.view().row(r % 8))[c] + 1e-5 * gaussian(random);
  };
  const AnyMatrix base = make(ElementType::f32, 6000, 40, value);
  const AnyMatrix queries = make(ElementType::f32, 25, 40, value);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "near-duplicates");
}

TEST(KnnNasty, ZeroVectorsAndEmptySides) {
  AnyMatrix base = gaussians(2000, 12, 18), queries = gaussians(9, 12, 19);
  for (std::int64_t c = 0; c < 12; ++c) set(base, 7 * 12 + c, 0), set(queries, 3 * 12 + c, 0);
  for (Metric metric : metrics) check_all(queries, base, 10, metric, "zeros");
  for (Metric metric : metrics) {
    EXPECT_EQ(knn(queries.view().rows(0, 0), base, 3, {.metric = metric}).ids.rows(), 0);
    const Neighbors none = knn(queries, base.view().rows(0, 0), 2, {.metric = metric});
    EXPECT_EQ(none.ids.row(8)[1], no_id);
    EXPECT_EQ(none.distances.row(8)[1], no_distance(metric));
  }
}

TEST(KnnNasty, OneHotRowsTieEverywhere) {
  const AnyMatrix base =
      make(ElementType::f32, 600, 600, [](auto r, auto c) { return r == c ? 0.37 : 0.0; });
  check_all(base.view().rows(5, 30), base, 10, Metric::l2, "one-hot");
  check_all(base.view().rows(5, 30), base, 10, Metric::ip, "one-hot");
}

// A vector [d] that codes of `pass` represent badly in a chosen direction: whole code units n plus
// `fraction` of a unit along the signs t (t_0 = 0), with <n, t> = dot. v_0 makes a code unit 2^-10.
std::vector<double> badly_coded(Random& random, FirstPass pass, const std::vector<int>& t,
                                double fraction, std::int64_t dot) {
  const std::int64_t d = static_cast<std::int64_t>(t.size());
  const std::int64_t reach = pass == FirstPass::int8 ? 100 : 4000;
  std::vector<std::int64_t> n(d, 0);
  std::int64_t missing = dot;
  for (std::int64_t i = 1; i < d; ++i) {
    n[i] = std::llround((random.uniform() * 2 - 1) * static_cast<double>(reach));
    missing -= n[i] * t[i];
  }
  for (std::int64_t i = 1; missing != 0; i = i + 1 < d ? i + 1 : 1) {
    const std::int64_t step = missing > 0 ? 1 : -1;
    n[i] += step * t[i], missing -= step;
  }
  std::vector<double> v(d);
  double squares = 0;
  for (std::int64_t i = 1; i < d; ++i) {
    v[i] = static_cast<double>(n[i]) + fraction * t[i];
    squares += v[i] * v[i];
  }
  v[0] = pass == FirstPass::int8 ? 127 : std::sqrt(22000.0 * 22000.0 - squares);
  if (random.next() % 2) v[0] = -v[0];  // or the mean of many would be subtracted
  for (double& x : v) x *= 0x1p-10;
  return v;
}

// The true neighbour looks worse than others by four fifths of what the bound allows for, since the
// rounding of the codes points straight at it: a bound a fifth too small gives a wrong answer.
TEST(KnnNasty, RoundingThatMisleadsAsFarAsTheBoundAllows) {
  constexpr std::int64_t d = 65, rows = 900;
  for (FirstPass pass : {FirstPass::int8, FirstPass::int16})
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      Random random(seed);
      std::vector<int> s(d);
      for (std::int64_t i = 1; i < d; ++i) s[i] = random.next() % 2 ? 1 : -1;
      // The query is what is badly coded: rows +s and -s, of which +s is truly nearer.
      const std::vector<double> u = badly_coded(random, pass, s, 0.49, -26);
      std::vector<std::vector<double>> rows_of_signs(rows, std::vector<double>(d));
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<double>& row = rows_of_signs[r];
        const bool far = r != rows - 1 && r % 100 != 7;
        double product = 0;
        do {
          product = 0;
          for (std::int64_t i = 1; i < d; ++i) {
            row[i] = far ? (random.next() % 2 ? 1 : -1) : r == rows - 1 ? s[i] : -s[i];
            product += u[i] * row[i];
          }
        } while (far && std::fabs(product) < 0.1);
        if (far && product > 0)
          for (double& x : row) x = -x;
      }
      const AnyMatrix signs =
          make(ElementType::f32, rows, d, [&](auto r, auto c) { return rows_of_signs[r][c]; });
      const AnyMatrix query = make(ElementType::f32, 13, d, [&](auto, auto c) { return u[c]; });
      // Rows are: the nearest has 0.49 of a unit along the query's signs, the others against them.
      std::vector<std::vector<double>> coded;
      for (std::int64_t r = 0; r < rows; ++r)
        coded.push_back(r == rows - 1
                            ? badly_coded(random, pass, s, 0.49, 0)
                            : badly_coded(random, pass, s, -0.49, r % 100 == 7 ? 51 : -300));
      const AnyMatrix base =
          make(ElementType::f32, rows, d, [&](auto r, auto c) { return coded[r][c]; });
      const AnyMatrix sign_query =
          make(ElementType::f32, 13, d, [&](auto, auto c) { return double(s[c]); });
      for (Isa isa : available_isas()) {
        ForcedIsa forced(isa);
        SCOPED_TRACE(std::string(name_of(isa)) + " " + std::string(name_of(pass)) + " seed " +
                     std::to_string(seed));
        for (std::int64_t queries : {1, 3, 13}) {
          const KnnOptions options = {.metric = Metric::ip, .first_pass = pass};
          EXPECT_EQ(knn(query.view().rows(0, queries), signs, 1, options).ids.row(0)[0], rows - 1);
          EXPECT_EQ(knn(sign_query.view().rows(0, queries), base, 1, options).ids.row(0)[0],
                    rows - 1);
        }
      }
    }
}

TEST(KnnNasty, TiesOfWholeNumbersAreNoWork) {
  // Thousands of rows are as far as the k-th, and only the first few of them are wanted: the others
  // must fall to the test in registers.
  const std::int64_t rows = 30000, d = 36;
  for (Metric metric : {Metric::l2, Metric::ip})
    for (std::int64_t odd : {0, 1}) {
      const AnyMatrix equal = make(ElementType::u8, rows, d,
                                   [&](auto, auto c) { return c == 0 ? 2 + odd : 3 + c % 2; });
      const AnyMatrix few_ones = make(ElementType::u8, rows, d, [&](auto r, auto c) {
        return c == r % 7 || c == r % 11 + 8 || (odd && c == r % 13 + 20) ? 1.0 : 0.0;
      });
      const AnyMatrix queries = make(ElementType::u8, 30, d, [&](auto r, auto c) {
        return r % 2 == 0 ? double(3 + c % 2) : c == r % 7 || c == 9 || c == 30 ? 1.0 : 0.0;
      });
      for (const AnyMatrix* base : {&equal, &few_ones})
        for (std::int64_t k : {1, 10, 100}) {
          const Neighbors expected = reference_knn(queries, *base, k, metric);
          for (Isa isa : available_isas()) {
            ForcedIsa forced(isa);
            KnnReport report;
            EXPECT_TRUE(same(knn(queries, *base, k, {.metric = metric}, &report), expected));
            EXPECT_EQ(report.first_pass, "integer");
            EXPECT_LT(report.hits_per_query, 1500 + 20 * k)
                << name_of(metric) << ' ' << odd << ' ' << k << (base == &equal ? " equal" : "");
          }
        }
    }
}

TEST(KnnNasty, TiesInThePanelOfEvenAndOddRows) {
  // Whole numbers are packed with even |y|^2 first. Where both kinds share a panel its first row
  // need not have the smallest id, unless it is put in order; the nearest rows here are odd ones
  // there.
  for (const auto& [rows, dim] : {std::pair<std::int64_t, std::int64_t>{5000, 1}, {300, 4096}})
    for (std::int64_t first : {1, 6, 40})
      for (std::int64_t second : {46, 100, 231}) {
        const AnyMatrix base = make(ElementType::u8, rows, dim, [&](auto r, auto c) {
          return c > 0 ? 0.0 : r == first || r == second ? 1.0 : 2.0;
        });
        const AnyMatrix queries = make(ElementType::u8, 5, dim, [](auto, auto) { return 0.0; });
        for (std::int64_t k : {1, 2, 5}) {
          const Neighbors expected = reference_knn(queries, base, k, Metric::l2);
          for (Isa isa : available_isas()) {
            ForcedIsa forced(isa);
            for (int threads : {1, 2})
              EXPECT_TRUE(same(knn(queries, base, k, {.threads = threads}), expected))
                  << rows << ' ' << first << ' ' << second << ' ' << k << ' ' << threads;
          }
        }
      }
}

TEST(KnnNasty, ProductsBeyondTheRangeOfFloats) {
  const AnyMatrix queries =
      make(ElementType::f32, 5, 2, [](auto, auto c) { return c == 0 ? 1e20 : 0.0; });
  const AnyMatrix base = make(ElementType::f32, 300, 2, [](std::int64_t r, auto c) {
    return c == 1 ? (r == 1 ? 2e19 : 0.0) : r == 0 ? 1e19 : r == 1 ? 1e18 : 1e14 * double(r);
  });
  for (Metric metric : metrics) check_all(queries, base, 5, metric, "1e39");
}

TEST(KnnNasty, AnyScaleIsAsFast) {
  // The first pass that serves at scale 1 serves at every scale.
  for (Metric metric : {Metric::l2, Metric::ip}) {
    KnnReport at_one;
    knn(gaussians(60, 40, 42), gaussians(9000, 40, 41), 10, {.metric = metric}, &at_one);
    for (double scale : {1e20, 1e-20}) {
      const AnyMatrix base = gaussians(9000, 40, 41, scale), queries = gaussians(60, 40, 42, scale);
      KnnReport report;
      const Neighbors got = knn(queries, base, 10, {.metric = metric}, &report);
      EXPECT_TRUE(same(got, reference_knn(queries, base, 10, metric))) << scale;
      EXPECT_EQ(report.first_pass, at_one.first_pass) << scale;
      EXPECT_NEAR(report.survivors_per_query, at_one.survivors_per_query, 3) << scale;
    }
  }
}

TEST(Knn, FormsKeptStayWithinTheBudget) {
  // Each rung of the ladder is tried, and each form fits the budget alone.
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
  if (active_isa() == Isa::avx512_vnni) {
    EXPECT_GT(report.fallback_queries, 0);
  }
  EXPECT_LE(report.memory_bytes, budget);
}

// Two far clusters with differences of `spread` inside, and every `loose`-th row far from all.
AnyMatrix two_clusters(std::int64_t rows, double spread, std::int64_t loose, std::uint64_t seed,
                       std::int64_t dim = 24) {
  Random random(seed);
  return make(ElementType::f32, rows, dim, [&](std::int64_t r, auto) {
    const double noise = gaussian(random);
    return r % loose == 0 ? 300 * noise : (r % 2 ? 1e2 : -1e2) + spread * noise;
  });
}

// Searches, compares with the reference, and says what was done.
KnnReport search_and_compare(const AnyMatrix& queries, const AnyMatrix& base) {
  KnnReport report;
  const Neighbors got = knn(queries, base, 5, {}, &report);
  EXPECT_TRUE(same(got, reference_knn(queries, base, 5, Metric::l2)));
  return report;
}

constexpr std::int64_t none_loose = 1 << 30;

TEST(KnnNasty, BoundsThatPruneNothingAreGivenUpWhileRunning) {
  // Too few rows for a sample; many queries, so that some go ahead of the others.
  const KnnReport report = search_and_compare(two_clusters(300, 1e-3, none_loose, 21, 1024),
                                              two_clusters(1900, 1e-3, none_loose, 22, 1024));
  EXPECT_GT(report.fallback_queries, 250);
  EXPECT_EQ(report.first_pass, "direct");  // not even floats tell these rows apart
}

TEST(KnnNasty, BoundsThatPruneNothingAreNotBegunWith) {
  const KnnReport direct = search_and_compare(two_clusters(300, 1e-3, none_loose, 21),
                                              two_clusters(12000, 1e-3, none_loose, 22));
  EXPECT_EQ(direct.fallback_queries, 0);
  EXPECT_EQ(direct.first_pass, "direct");
  const KnnReport floats = search_and_compare(two_clusters(300, 0.5, none_loose, 21),
                                              two_clusters(12000, 0.5, none_loose, 22));
  EXPECT_EQ(floats.fallback_queries, 0);
  EXPECT_EQ(floats.first_pass, "fp32");
}

TEST(KnnNasty, ASampleOfQueriesUnlikeTheRest) {
  // The sample takes every 20th query, which are the easy ones.
  const KnnReport report =
      search_and_compare(two_clusters(1000, 1e-3, 20, 21), two_clusters(12000, 1e-3, 10, 22));
  if (active_isa() == Isa::avx512_vnni) {
    EXPECT_GT(report.fallback_queries, 900);
  }
}

// ---- filters ------------------------------------------------------------------------------------

// The answer among the allowed rows, by searching a base that has no others.
Neighbors filtered_reference(AnyMatrixView queries, const AnyMatrix& base,
                             const std::vector<Id>& allowed, std::int64_t k, Metric metric) {
  AnyMatrix part(base.type(), static_cast<std::int64_t>(allowed.size()), base.cols());
  for (std::size_t i = 0; i < allowed.size(); ++i)
    std::memcpy(part.row(static_cast<std::int64_t>(i)), base.view().row(allowed[i]),
                static_cast<std::size_t>(base.cols() * size_of(base.type())));
  Neighbors out = reference_knn(queries, part, k, metric);
  for (std::int64_t i = 0; i < out.ids.rows() * k; ++i)
    if (out.ids.data()[i] != no_id) out.ids.data()[i] = allowed[out.ids.data()[i]];
  return out;
}

TEST(KnnFilter, AnswersOfTheAllowedRowsAlone) {
  // Floats with copies of rows, whole numbers with ties, at every way: few and many queries, few
  // and many allowed rows, with the packed base kept or not, in chunks, at every level.
  Random random(31);
  AnyMatrix floats = gaussians(1500, 21, 32);
  for (std::int64_t r = 0; r < 1500; r += 3)
    std::memcpy(floats.row(r), floats.row(r % 300), 21 * 4);
  const AnyMatrix bytes =
      make(ElementType::u8, 1500, 21, [&](auto, auto) { return random.below(4); });
  const AnyMatrix float_queries = gaussians(120, 21, 33);
  const AnyMatrix byte_queries =
      make(ElementType::u8, 120, 21, [&](auto, auto) { return random.below(4); });
  const std::pair<const AnyMatrix*, const AnyMatrix*> cases[] = {{&floats, &float_queries},
                                                                 {&bytes, &byte_queries}};
  for (const auto& [base, queries] : cases)
    for (Metric metric : metrics) {
      const ExactSearcher searcher(*base, {.metric = metric});
      searcher.search(*queries, 3, {.metric = metric});  // packs what is kept
      for (double share : {0.0, 0.002, 0.05, 0.5, 0.98, 1.0}) {
        std::vector<Id> allowed;
        std::vector<std::uint8_t> bits((1500 + 7) / 8);
        for (Id row = 0; row < 1500; ++row)
          if (random.uniform() < share) allowed.push_back(row), bits[row / 8] |= 1 << row % 8;
        const RowFilter filter = RowFilter::of_ids(allowed, 1500);
        EXPECT_EQ(filter.count(), static_cast<std::int64_t>(allowed.size()));
        for (std::int64_t k : {1, 10, 40})
          for (std::int64_t count : {1, 7, 120}) {
            const AnyMatrixView some = queries->view().rows(0, count);
            const Neighbors expected = filtered_reference(some, *base, allowed, k, metric);
            for (Isa isa : available_isas()) {
              ForcedIsa forced(isa);
              SCOPED_TRACE(fmt::format("{} {} share {} k {} queries {} {}", name_of(base->type()),
                                       name_of(metric), share, k, count, name_of(isa)));
              KnnOptions options{.metric = metric, .threads = 2, .filter = filter};
              KnnReport report;
              EXPECT_TRUE(same(knn(some, *base, k, options, &report), expected)) << "once";
              EXPECT_EQ(report.allowed_rows, filter.count());
              EXPECT_TRUE(same(searcher.search(some, k, options), expected)) << "kept";
              options.filter = RowFilter::of_bits(bits, 1500);
              for (FirstPass pass : certified) {
                if (k != 10) continue;
                options.first_pass = pass;
                EXPECT_TRUE(same(knn(some, *base, k, options), expected)) << name_of(pass);
              }
            }
          }
      }
    }
  // In chunks, because memory is short; ids still those of the whole base.
  const AnyMatrix large = gaussians(20000, 40, 34);
  std::vector<Id> odd;
  for (Id row = 1; row < 20000; row += 2) odd.push_back(row);
  const Neighbors expected =
      filtered_reference(float_queries.view().rows(0, 0), large, odd, 5, Metric::l2);
  EXPECT_EQ(expected.ids.rows(), 0);
  const AnyMatrix few = gaussians(9, 40, 35);
  KnnReport report;
  EXPECT_TRUE(same(knn(few, large, 5,
                       {.memory = 2 << 20,
                        .first_pass = FirstPass::int8,
                        .filter = RowFilter::of_ids(odd, 20000)},
                       &report),
                   filtered_reference(few, large, odd, 5, Metric::l2)));
  EXPECT_GT(report.chunks, 1);
}

TEST(KnnFilter, ForbiddenRowsCostLittle) {
  // With the packed form kept and few queries all rows are scanned, and no more than that.
  const AnyMatrix base = gaussians(30000, 64, 36), queries = gaussians(60, 64, 37);
  const ExactSearcher searcher(base, {});
  KnnReport all, most, few;
  searcher.search(queries, 10, {}, &all);
  std::vector<Id> ids;
  for (Id row = 0; row < 30000; ++row)
    if (row % 100 != 0) ids.push_back(row);
  searcher.search(queries, 10, {.filter = RowFilter::of_ids(ids, 30000)}, &most);
  EXPECT_LE(most.multiply_adds, all.multiply_adds);
  EXPECT_LT(most.hits_per_query, 1.2 * all.hits_per_query);
  searcher.search(queries, 10, {.filter = RowFilter::of_ids(std::span(ids).first(300), 30000)},
                  &few);
  EXPECT_LT(few.multiply_adds, 0.02 * all.multiply_adds);
}

// ---- errors -------------------------------------------------------------------------------------

template <class Exception, class F>
void expect_error(F f, const std::string& text) {
  try {
    f();
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    return;
  } catch (const std::exception& error) {
    FAIL() << "another error: " << error.what();
  }
  FAIL() << "no error; expected one that says: " << text;
}

TEST(KnnErrors, NameTheArgumentAndTheValues) {
  AnyMatrix base = gaussians(50, 6, 1), queries = gaussians(4, 6, 2), wide = gaussians(4, 7, 2);
  expect_error<InvalidArgument>([&] { knn(queries, base, 0); }, "k must be at least 1, but is 0");
  expect_error<ShapeMismatch>([&] { knn(wide, base, 1); }, "queries have 7 columns, base has 6");
  expect_error<InvalidArgument>([&] { knn(queries, base, 1, {.threads = -3}); }, "-3");
  expect_error<InvalidArgument>([&] { knn(queries, base, 1, {.first_pass = FirstPass::integer}); },
                                "first_pass is integer");
  set(queries, 2 * 6 + 4, NAN);
  expect_error<InvalidArgument>([&] { knn(queries, base, 1); },
                                "queries must be finite, but row 2 column 4 is nan");
  set(base, 49 * 6, INFINITY);
  expect_error<InvalidArgument>([&] { ExactSearcher(base, {}); },
                                "base must be finite, but row 49 column 0 is inf");
  const AnyMatrix none(ElementType::f32, 3, 0), vast(ElementType::u8, 1, 65537);
  expect_error<InvalidArgument>([&] { knn(none, none, 1); }, "between 1 and 65536 columns");
  expect_error<InvalidArgument>([&] { knn(vast, vast, 1); }, "has 65537");
  const AnyMatrix fine = gaussians(50, 6, 1);
  const ExactSearcher searcher(fine, {.metric = Metric::ip});
  expect_error<InvalidArgument>([&] { searcher.search(fine, 1, {}); }, "metric is l2");
}

TEST(Knn, TheCallersFloatModeChangesNothing) {
  const AnyMatrix base = gaussians(1000, 8, 1);
  for (double size : {1e-40, 1e-20}) {
    const AnyMatrix queries = gaussians(20, 8, 2, size), tiny = gaussians(1000, 8, 3, size);
    for (Metric metric : metrics)
      for (const AnyMatrix* side : {&base, &tiny}) {
        const Neighbors expected = reference_knn(queries, *side, 5, metric);
        const unsigned saved = _mm_getcsr();
        _mm_setcsr(saved | 0x8040);  // denormals are zeros, results are flushed
        const Neighbors got = knn(queries, *side, 5, {.metric = metric});
        const Neighbors again =
            ExactSearcher(*side, {.metric = metric}).search(queries, 5, {.metric = metric});
        _mm_setcsr(saved | 0x2000);  // round down
        const Neighbors down = knn(queries, *side, 5, {.metric = metric});
        _mm_setcsr(saved);
        EXPECT_TRUE(same(got, expected)) << name_of(metric) << ' ' << size;
        EXPECT_TRUE(same(again, expected)) << name_of(metric) << ' ' << size;
        EXPECT_TRUE(same(down, expected)) << name_of(metric) << ' ' << size;
      }
  }
}

TEST(KnnErrors, SizesThatOverflowAreRefused) {
  const AnyMatrix base = gaussians(50, 6, 1);
  EXPECT_THROW(knn(base, base, std::int64_t{1} << 62), InvalidArgument);
  EXPECT_THROW(knn(base, base, (std::int64_t{1} << 60) + 1), InvalidArgument);
  EXPECT_THROW((Matrix<float>(std::int64_t{1} << 40, std::int64_t{1} << 40)), MemoryBudgetError);
  EXPECT_THROW((AnyMatrix(ElementType::f32, std::int64_t{1} << 31, std::int64_t{1} << 31)),
               MemoryBudgetError);
}

TEST(KnnErrors, ProgressCanStopTheWork) {
  const AnyMatrix base = gaussians(20000, 32, 1), queries = gaussians(300, 32, 2);
  int calls = 0;
  const Progress stop = [&](std::string_view, double) { return ++calls < 3; };
  EXPECT_THROW(knn(queries, base, 5, {.progress = stop}), Cancelled);
  double last = 0;
  const Progress watch = [&](std::string_view stage, double fraction) {
    if (stage == "search") {
      EXPECT_GE(fraction, last);
      last = fraction;
    }
    return true;
  };
  knn(queries, base, 5, {.progress = watch});
  EXPECT_EQ(last, 1.0);
}

TEST(KnnErrors, UnknownLevelIsRefused) {
  setenv("KNEAR_ISA", "avx1024", 1);
  const AnyMatrix base = gaussians(5, 3, 1);
  EXPECT_THROW(knn(base, base, 1), InvalidArgument);
  unsetenv("KNEAR_ISA");
}

TEST(KnnErrors, MoreWithinTheRadiusThanMemoryHolds) {
  const AnyMatrix floats = gaussians(20000, 8, 1);
  const AnyMatrix bytes =
      make(ElementType::u8, 20000, 8, [](auto r, auto c) { return (r + c) % 9; });
  for (const AnyMatrix* base : {&floats, &bytes})
    for (FirstPass pass : {FirstPass::automatic, FirstPass::int8, FirstPass::direct}) {
      const AnyMatrixView queries = base->view().rows(0, 200);
      const KnnOptions options{.memory = 40 << 20, .first_pass = pass};
      // Four million rows of 64 bytes: refused while they are found.
      expect_error<MemoryBudgetError>([&] { range_search(queries, *base, 1e9, options); },
                                      "rows lie within the radius");
      KnnReport report;
      const RangeNeighbors few = range_search(queries.rows(0, 9), *base, 1e-3, options, &report);
      EXPECT_GE(few.ids.size(), 9u);  // each finds itself
      EXPECT_LE(report.memory_bytes, options.memory);
      EXPECT_EQ(report.k, 0);
    }
}

TEST(KnnErrors, Filters) {
  const AnyMatrix base = gaussians(10, 3, 1);
  const std::vector<Id> beyond = {3, 10}, negative = {-1};
  expect_error<InvalidArgument>([&] { RowFilter::of_ids(beyond, 10); },
                                "id 10 in place 1, but the base has rows 0 to 9");
  expect_error<InvalidArgument>([&] { RowFilter::of_ids(negative, 10); }, "id -1 in place 0");
  expect_error<ShapeMismatch>([&] { RowFilter::of_bits(std::vector<std::uint8_t>(1), 10); },
                              "1 bytes of bits, but 10 rows make 2");
  expect_error<ShapeMismatch>(
      [&] { knn(base, base, 1, {.filter = RowFilter::of_ids(std::vector<Id>{1}, 9)}); },
      "filter is for 9 rows, base has 10");
  const RowFilter beyond_the_last = RowFilter::of_bits(std::vector<std::uint8_t>{0, 0xff}, 10);
  EXPECT_EQ(beyond_the_last.count(), 2);
}

// Of rows that stand for many copies only as many are listed as can be among the k.
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
