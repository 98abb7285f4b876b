// The scan in two stages: its map makes no distance longer, its answers are those of the reference
// on data that suit it and on data made to defeat it, and it is used where it pays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/rows/prefix_form.hpp"
#include "knear/transform/orthonormal.hpp"
#include "knear/transform/pca.hpp"
#include "tests/knn/kept_reference.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using detail::BaseRows;
using detail::PrefixMap;
using detail::PrefixStudy;

double normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return sum;
}

// Clusters, with a spectrum that falls like 1 / (1 + i)^slope in rotated coordinates.
Matrix<float> decaying(std::int64_t rows, std::int64_t dim, double slope, std::uint64_t seed,
                       double scale = 1, double offset = 0) {
  Random random(seed), centres(77);
  const Rotation turn = random_rotation(dim, 5);
  Matrix<double> centre(20, dim);
  for (std::int64_t i = 0; i < 20 * dim; ++i) centre.data()[i] = 2 * normal(centres);
  Matrix<float> out(rows, dim);
  std::vector<double> x(dim);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* c = centre.row(static_cast<std::int64_t>(random.below(20)));
    for (std::int64_t i = 0; i < dim; ++i)
      x[i] = (c[i] + normal(random)) * std::pow(1 + double(i), -slope);
    for (std::int64_t i = 0; i < dim; ++i) {
      double sum = offset;
      for (std::int64_t j = 0; j < dim; ++j) sum += turn.matrix.row(j)[i] * x[j];
      out.row(r)[i] = static_cast<float>(scale * sum);
    }
  }
  return out;
}

PrefixMap map_of(const PrefixStudy& study, std::int64_t columns) {
  const Rotation rotation = random_rotation(columns, 1);
  return PrefixMap::from_basis(study.metric, study.pca.mean,
                               study.pca.basis.view().rows(0, columns - 1), study.pca.defect,
                               rotation.matrix, rotation.defect, study.usual_length, active_isa());
}

void expect_no_longer(const Matrix<float>& x, Metric metric, std::int64_t columns) {
  const PrefixStudy study = detail::study_prefix(BaseRows(x.view()), metric, 2);
  const PrefixMap map = map_of(study, columns);
  const std::int64_t n = x.rows(), dim = x.cols();
  Matrix<float> prefixes(n, columns);
  detail::PrefixMapper mapper(map, 5);
  for (std::int64_t i = 0; i < n; ++i) mapper.add(x.view(), i, prefixes.row(i));
  mapper.finish();
  const auto length = [&](std::int64_t i) {
    long double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c)
      sum += static_cast<long double>(prefixes.row(i)[c]) * prefixes.row(i)[c];
    return std::sqrt(sum);
  };
  double closest = 0;
  for (std::int64_t a = 0; a < n; ++a) {
    const std::int64_t b = (a * 7 + 1) % n;
    long double xa = 0, xb = 0, exact = 0, prefix = 0;
    for (std::int64_t j = 0; j < dim; ++j)
      xa += static_cast<long double>(x.row(a)[j]) * x.row(a)[j],
          xb += static_cast<long double>(x.row(b)[j]) * x.row(b)[j];
    const bool unit = metric == Metric::cosine;
    const long double sa = unit && xa > 0 ? 1 / std::sqrt(xa) : 1;
    const long double sb = unit && xb > 0 ? 1 / std::sqrt(xb) : 1;
    for (std::int64_t j = 0; j < dim; ++j) {
      const long double difference = x.row(a)[j] * sa - x.row(b)[j] * sb;
      exact += difference * difference;
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      const long double difference =
          static_cast<long double>(prefixes.row(a)[c]) - prefixes.row(b)[c];
      prefix += difference * difference;
    }
    const long double off =
        map.parts().off_relative * (length(a) + length(b)) + 2 * map.parts().off_absolute;
    ASSERT_LE(std::sqrt(prefix), std::sqrt(exact) + off) << a << ' ' << b;
    closest = std::max(closest, double(std::sqrt(prefix) / std::max(exact, 1e-300L)));
  }
  EXPECT_LT(map.parts().off_relative, 1e-5);
}

TEST(Prefix, MakesNoDistanceLonger) {
  for (const Metric metric : {Metric::l2, Metric::cosine}) {
    expect_no_longer(decaying(300, 40, 1, 1), metric, 16);
    expect_no_longer(decaying(300, 40, 0, 2), metric, 40);
    expect_no_longer(decaying(300, 24, 1, 3, 1, 1000), metric, 24);
    expect_no_longer(decaying(300, 9, 0.5, 4, 1e-12), metric, 8);
    expect_no_longer(decaying(300, 9, 0.5, 4, 1e12), metric, 8);
    // There is nothing beside the prefix, and then only rounding.
    Matrix<float> flat(300, 40);
    Random random(5);
    for (std::int64_t i = 0; i < 300; ++i)
      for (std::int64_t j = 0; j < 4; ++j) flat.row(i)[j] = static_cast<float>(random.uniform());
    expect_no_longer(flat, metric, 16);
    for (std::int64_t i = 0; i < 300; ++i) flat.row(i)[30] = 1e-6f * float(i % 3);
    expect_no_longer(flat, metric, 8);
    expect_no_longer(Matrix<float>(300, 16), metric, 16);  // all zero
  }
}

// For ip: the product of two prefixes is no less than that of a scaled query with a row, the mean
// taken off both; with the row's term and what the query has beside, it bounds the product itself.
void expect_no_less(const Matrix<float>& x, std::int64_t columns, double queries_scale) {
  const PrefixStudy study = detail::study_prefix(BaseRows(x.view()), Metric::ip, 2);
  const PrefixMap map = map_of(study, columns);
  const std::int64_t n = x.rows(), dim = x.cols();
  Matrix<float> queries(n, dim), prefixes(n, columns), of_queries(n, columns);
  for (std::int64_t i = 0; i < n * dim; ++i)
    queries.data()[i] = static_cast<float>(queries_scale * x.data()[n * dim - 1 - i]);
  std::vector<double> terms;
  std::vector<detail::ScaledQuery> scaled;
  detail::PrefixMapper mapper(map, 5), query_mapper(map, 3);
  for (std::int64_t i = 0; i < n; ++i) {
    terms.push_back(mapper.add(x.view(), i, prefixes.row(i)));
    scaled.push_back(query_mapper.add_query(queries.view(), i, of_queries.row(i)));
  }
  mapper.finish(), query_mapper.finish();
  const auto length = [](const float* v, std::int64_t count) {
    long double sum = 0;
    for (std::int64_t c = 0; c < count; ++c) sum += static_cast<long double>(v[c]) * v[c];
    return std::sqrt(sum);
  };
  const double slack = (static_cast<double>(dim) + 32) * 0x1p-50;
  for (std::int64_t q = 0; q < n; ++q) {
    const long double scale = scaled[q].scale;
    if (length(queries.row(q), dim) > 0) {
      ASSERT_GE(scale * length(queries.row(q), dim), 0.99 * study.usual_length);
      ASSERT_LE(scale * length(queries.row(q), dim), 2.01 * study.usual_length);
    }
    for (std::int64_t i = q % 7; i < n; i += 7) {
      long double exact = 0, bound = terms[i] + static_cast<long double>(scaled[q].product);
      for (std::int64_t j = 0; j < dim; ++j)
        exact += scale * queries.row(q)[j] * static_cast<long double>(x.row(i)[j]);
      for (std::int64_t c = 0; c < columns; ++c)
        bound += static_cast<long double>(of_queries.row(q)[c]) * prefixes.row(i)[c];
      const long double u = length(of_queries.row(q), columns),
                        v = length(prefixes.row(i), columns), m = map.mean_norm();
      const long double off =
          map.parts().off_relative * 2.1 * u * v + map.parts().off_absolute * (u + v + 1);
      ASSERT_GE(bound + off + slack * (u + m) * (v + m), exact) << q << ' ' << i;
    }
  }
}

TEST(Prefix, MakesNoProductSmaller) {
  for (const double scale : {1.0, 1e-20, 1e15}) {
    expect_no_less(decaying(200, 40, 1, 1), 16, scale);
    expect_no_less(decaying(200, 40, 0, 2), 40, scale);
    expect_no_less(decaying(200, 24, 1, 3, 1, 1000), 24, scale);
    expect_no_less(decaying(200, 9, 0.5, 4, 1e-12), 8, scale);
    expect_no_less(decaying(200, 9, 0.5, 4, 1e12), 8, scale);
    expect_no_less(Matrix<float>(200, 16), 16, scale);  // all zero
  }
}

// Where the map is an isometry nothing can hide a threshold that is too high: it must not exceed
// the g of any row whose key it was made from, and must not be far below it.
TEST(Prefix, ThresholdsAreWhatKeysSay) {
  Matrix<float> x = decaying(400, 16, 0.2, 1);
  for (std::int64_t i = 0; i < 400; ++i) std::fill(x.row(i) + 12, x.row(i) + 16, 0.0f);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const bool ip = metric == Metric::ip;
    const PrefixStudy study = detail::study_prefix(BaseRows(x.view()), metric, 2);
    const PrefixMap map = map_of(study, 16);
    Matrix<float> prefixes(400, 16), of_queries(400, 16);
    std::vector<double> terms;
    std::vector<detail::ScaledQuery> scaled;
    detail::PrefixMapper mapper(map, 5), query_mapper(map, 5);
    for (std::int64_t i = 0; i < 400; ++i) {
      terms.push_back(mapper.add(x.view(), i, prefixes.row(i)));
      scaled.push_back(query_mapper.add_query(x.view(), i, of_queries.row(i)));
    }
    mapper.finish(), query_mapper.finish();
    detail::CodingSpace space =
        detail::CodingSpace::choose(prefixes.view(), ip ? Metric::ip : Metric::l2, active_isa());
    space.off_relative = map.parts().off_relative, space.off_absolute = map.parts().off_absolute;
    std::vector<double> mean = space.mean, u(16), v(16);
    mean.resize(16);
    for (std::int64_t a = 0; a < 400; ++a) {
      const std::int64_t b = (a * 7 + 1) % 400;
      space.load(of_queries.view(), a, u.data()), space.load(prefixes.view(), b, v.data());
      double uu = 0, uv = 0, vv = 0, um = 0, vm = 0, mm = 0;
      for (std::size_t j = 0; j < 16; ++j) {
        uu += u[j] * u[j], uv += u[j] * v[j], vv += v[j] * v[j];
        um += u[j] * mean[j], vm += v[j] * mean[j], mm += mean[j] * mean[j];
      }
      const double key = order_key(metric, reference_distance(metric, x.row(a), x.row(b), 16));
      const double threshold =
          detail::PrefixKeyScale(metric, space, 48 * 0x1p-50, uu, um + mm, scaled[a])
              .threshold_for(key);
      const double g = uv + (ip ? vm + terms[b] : -vv / 2),
                   length = std::sqrt(uu) + std::sqrt(vv) + std::sqrt(mm);
      const double off = 4 * space.off_of(length) * length;
      ASSERT_LE(threshold, g + off) << name_of(metric);
      ASSERT_GE(threshold, g - 4 * off - 1e-12) << name_of(metric);
    }
  }
}

void expect_reference(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, KnnOptions options,
                      std::string_view first_pass = "prefix") {
  const Neighbors expected = test::kept_reference(queries, base, k, options.metric);
  ExactSearcher searcher(base, {.metric = options.metric});
  for (int threads : {1, 3}) {
    options.threads = threads;
    for (int call = 0; call < 2; ++call) {
      KnnReport report;
      const Neighbors got = call == 0 ? knn(queries, base, k, options, &report)
                                      : searcher.search(queries, k, options, &report);
      if (!first_pass.empty()) {
        EXPECT_EQ(report.scan.first_pass, first_pass);
      }
      ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(),
                            std::size_t(queries.rows() * k) * sizeof(Id)),
                0)
          << queries.rows() << " queries, k " << k;
      ASSERT_EQ(std::memcmp(got.distances.data(), expected.distances.data(),
                            std::size_t(queries.rows() * k) * sizeof(float)),
                0);
    }
  }
}

class PrefixLevels : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { setenv("KNEAR_ISA", std::string(name_of(GetParam())).c_str(), 1); }
  void TearDown() override { unsetenv("KNEAR_ISA"); }
};

TEST_P(PrefixLevels, AnswersAsTheReference) {
  const Matrix<float> base = decaying(3000, 70, 1, 1), queries = decaying(100, 70, 1, 2);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (std::int64_t k : {1, 10, 33, 150})
      expect_reference(queries.view(), base.view(), k,
                       {.metric = metric, .first_pass = FirstPass::prefix});
  for (std::int64_t count : {1, 5, 13})
    expect_reference(queries.view().rows(0, count), base.view(), 10,
                     {.first_pass = FirstPass::prefix});
}

TEST_P(PrefixLevels, AnswersWholeNumbersExactly) {
  Random random(1);
  for (const bool is_signed : {false, true}) {
    const ElementType type = is_signed ? ElementType::i8 : ElementType::u8;
    AnyMatrix base(type, 4000, 48), queries(type, 60, 48);
    for (AnyMatrix* m : {&base, &queries})
      for (std::int64_t i = 0; i < m->view().rows() * 48; ++i) {
        const int value = static_cast<int>(random.below(200)) >> (i % 48 / 8);
        if (is_signed)
          static_cast<std::int8_t*>(m->row(0))[i] = static_cast<std::int8_t>(value / 2 - 20);
        else
          static_cast<std::uint8_t*>(m->row(0))[i] = static_cast<std::uint8_t>(value);
      }
    for (const Metric metric : {Metric::l2, Metric::ip})
      for (std::int64_t k : {1, 10, 70})
        expect_reference(queries.view(), base.view(), k,
                         {.metric = metric, .first_pass = FirstPass::prefix});
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, PrefixLevels, testing::ValuesIn(test::levels()),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

TEST(Prefix, TiesCopiesAndOrderOfTheBaseChangeNothing) {
  // Sorted by class; a third of the rows are copies; whole numbers tie all over.
  Matrix<float> base = decaying(3000, 40, 1, 1);
  for (std::int64_t r = 0; r < 3000; ++r)
    for (std::int64_t j = 0; j < 40; ++j)
      base.row(r)[j] = std::round(4 * base.row(r)[j]) / 4 + (r < 1000 ? 0 : r < 2000 ? 3 : -3);
  for (std::int64_t r = 0; r < 1000; ++r) std::memcpy(base.row(r), base.row(2000 + r / 3), 160);
  Matrix<float> queries(50, 40);
  for (std::int64_t q = 0; q < 50; ++q) std::memcpy(queries.row(q), base.row(q * 59), 160);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (std::int64_t k : {1, 7, 40, 700})
      expect_reference(queries.view(), base.view(), k,
                       {.metric = metric, .first_pass = FirstPass::prefix}, {});
  // One vector only.
  Matrix<float> equal(2000, 16);
  for (std::int64_t i = 0; i < 2000 * 16; ++i) equal.data()[i] = 1.5f;
  expect_reference(equal.view().rows(0, 30), equal.view(), 10, {.first_pass = FirstPass::prefix},
                   {});
}

TEST(Prefix, ServesDataThatItDoesNotSuit) {
  // No direction matters more than others; queries from far away; norms over many powers of ten.
  expect_reference(decaying(60, 64, 0, 2).view(), decaying(2500, 64, 0, 1).view(), 10,
                   {.first_pass = FirstPass::prefix}, {});
  expect_reference(decaying(60, 64, 1, 2, 100, 50).view(), decaying(2500, 64, 1, 1).view(), 10,
                   {.first_pass = FirstPass::prefix}, {});
  Matrix<float> base = decaying(2500, 32, 1, 1), queries = decaying(60, 32, 1, 2);
  for (std::int64_t r = 0; r < 2500; ++r)
    for (std::int64_t j = 0; j < 32; ++j) base.row(r)[j] *= std::pow(10.0f, float(r % 61 - 30));
  for (std::int64_t r = 0; r < 60; ++r)
    for (std::int64_t j = 0; j < 32; ++j) queries.row(r)[j] *= std::pow(10.0f, float(r - 30));
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    expect_reference(queries.view(), base.view(), 10,
                     {.metric = metric, .first_pass = FirstPass::prefix}, {});
  // Values beyond what floats can hold of a prefix.
  for (std::int64_t j = 0; j < 32; ++j) queries.row(3)[j] = 3e38f, base.row(7)[j] = -3e38f;
  for (const Metric metric : {Metric::l2, Metric::ip})
    expect_reference(queries.view(), base.view(), 10,
                     {.metric = metric, .first_pass = FirstPass::prefix}, {});
}

// For ip rows of any length may be the best, and queries have no length that matters.
TEST(Prefix, ServesProductsOfRowsAndQueriesOfAnyLength) {
  Matrix<float> base = decaying(3000, 40, 1, 1, 1, 0.5), queries = decaying(60, 40, 1, 2);
  for (std::int64_t r = 0; r < 3000; ++r)  // some rows are ten times as long, one 10^6 times
    for (std::int64_t j = 0; j < 40; ++j)
      base.row(r)[j] *= r == 77 ? 1e6f : r % 50 == 0 ? 10.0f : 0.5f + float(r % 11) / 10;
  for (std::int64_t q = 0; q < 60; ++q)
    for (std::int64_t j = 0; j < 40; ++j) queries.row(q)[j] *= std::pow(10.0f, float(q % 30 - 15));
  for (std::int64_t k : {1, 10, 70})
    expect_reference(queries.view(), base.view(), k,
                     {.metric = Metric::ip, .first_pass = FirstPass::prefix});
  for (std::int64_t j = 0; j < 40; ++j) base.row(77)[j] *= 1e13f;
  expect_reference(queries.view(), base.view(), 10,
                   {.metric = Metric::ip, .first_pass = FirstPass::prefix}, {});
  // Products of either sign that all but cancel.
  for (std::int64_t r = 1; r < 3000; r += 2)
    for (std::int64_t j = 0; j < 40; ++j) base.row(r)[j] = -base.row(r - 1)[j];
  expect_reference(queries.view(), base.view(), 10,
                   {.metric = Metric::ip, .first_pass = FirstPass::prefix}, {});
}

TEST(Prefix, HonoursFiltersAndBudgets) {
  const Matrix<float> base = decaying(3000, 40, 1, 1), queries = decaying(30, 40, 1, 2);
  Random random(3);
  for (const double share : {0.01, 0.5, 0.98}) {
    std::vector<Id> allowed;
    for (Id i = 0; i < 3000; ++i)
      if (random.uniform() < share) allowed.push_back(i);
    Matrix<float> part(std::ssize(allowed), 40);
    for (std::size_t i = 0; i < allowed.size(); ++i)
      std::memcpy(part.row(std::int64_t(i)), base.row(allowed[i]), 160);
    const Neighbors expected = reference_knn(queries.view(), part.view(), 10, Metric::l2);
    KnnReport report;
    const Neighbors got =
        knn(queries.view(), base.view(), 10,
            {.first_pass = FirstPass::prefix, .filter = RowFilter::of_ids(allowed, 3000)}, &report);
    EXPECT_EQ(report.scan.first_pass, "prefix");
    for (std::int64_t i = 0; i < 300; ++i)
      ASSERT_EQ(got.ids.data()[i], allowed[static_cast<std::size_t>(expected.ids.data()[i])]);
  }
  // Within a budget the base is prepared in chunks, or refused.
  const Neighbors expected = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  bool parts = false;
  for (std::int64_t budget = 1 << 20; budget < 16 << 20; budget += 1 << 19) {
    KnnReport report;
    try {
      const Neighbors got =
          knn(queries.view(), base.view(), 10,
              {.threads = 1, .memory = budget, .first_pass = FirstPass::prefix}, &report);
      EXPECT_LE(report.memory_bytes, budget);
      parts |= report.scan.chunks > 1;
      EXPECT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 300 * sizeof(Id)), 0);
    } catch (const MemoryBudgetError&) {
      EXPECT_FALSE(parts);
    }
  }
}

TEST(Prefix, IsAnErrorWhereThereIsNone) {
  const Matrix<float> wide(20, 9), narrow(20, 7);
  const KnnOptions options{.first_pass = FirstPass::prefix};
  EXPECT_THROW(knn(narrow.view(), narrow.view(), 1, options), InvalidArgument);
  EXPECT_THROW(range_search(wide.view(), wide.view(), 1, options), InvalidArgument);
  EXPECT_EQ(knn(wide.view(), wide.view(), 1, options).ids.row(5)[0], 0);
  EXPECT_EQ(knn(wide.view(), wide.view().rows(0, 1), 1, options).ids.row(5)[0], 0);
  EXPECT_EQ(knn(wide.view(), wide.view().rows(0, 0), 1, options).ids.row(5)[0], no_id);
}

// The bias of a row was once a float in absolute units.
TEST(Prefix, AnswersAtEveryScale) {
  for (int exponent = -45; exponent <= 37; ++exponent) {
    const double scale = std::pow(10.0, exponent);
    Matrix<float> base = decaying(600, 16, 0.3, 1), queries = decaying(25, 16, 0.3, 2);
    for (Matrix<float>* m : {&base, &queries})
      for (std::int64_t i = 0; i < m->rows() * 16; ++i)
        m->data()[i] = static_cast<float>(scale * m->data()[i]);
    SCOPED_TRACE(exponent);
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
      expect_reference(queries.view(), base.view(), 10,
                       {.metric = metric, .first_pass = FirstPass::prefix}, {});
    // Large rows in pairs around the origin, and queries of length 1; and the other way round.
    for (std::int64_t i = 0; i < 25 * 16; ++i)
      queries.data()[i] = static_cast<float>(queries.data()[i] / scale);
    for (std::int64_t r = 1; r < 600; r += 2)
      for (std::int64_t j = 0; j < 16; ++j) base.row(r)[j] = -base.row(r - 1)[j];
    expect_reference(queries.view(), base.view(), 10, {.first_pass = FirstPass::prefix}, {});
    // A few rows of that size among others.
    for (std::int64_t r = 10; r < 600; ++r)
      for (std::int64_t j = 0; j < 16; ++j)
        base.row(r)[j] = static_cast<float>(base.row(r)[j] / scale);
    for (const Metric metric : {Metric::l2, Metric::ip})
      expect_reference(queries.view(), base.view(), 10,
                       {.metric = metric, .first_pass = FirstPass::prefix}, {});
  }
}

TEST(Prefix, QueriesThatFitNoPrefixAreAnsweredWithoutOne) {
  const Matrix<float> base = decaying(2000, 32, 1, 1);
  Matrix<float> queries(3, 32);
  for (std::int64_t i = 0; i < 3 * 32; ++i) queries.data()[i] = 1e20f;
  ExactSearcher searcher(base.view(), {});
  for (const std::int64_t count : {1, 2, 3}) {
    const AnyMatrixView some = queries.view().rows(0, count);
    const Neighbors expected = reference_knn(some, base.view(), 5, Metric::l2);
    KnnReport report;
    const Neighbors got = searcher.search(some, 5, {.first_pass = FirstPass::prefix}, &report);
    EXPECT_EQ(report.scan.fallback_queries, count);
    EXPECT_EQ(std::memcmp(got.ids.data(), expected.ids.data(),
                          static_cast<std::size_t>(count * 5) * sizeof(Id)),
              0);
  }
}

// Whole numbers [16000 x 512], of which the first coordinates matter most.
AnyMatrix decaying_bytes() {
  Random random(1);
  AnyMatrix base(ElementType::u8, 16000, 512);
  for (std::int64_t i = 0; i < 16000 * 512; ++i) {
    const double spread = 60 / std::pow(1.0 + static_cast<double>(i % 512), 0.7);
    static_cast<std::uint8_t*>(base.row(0))[i] =
        static_cast<std::uint8_t>(std::clamp(128 + spread * normal(random), 0.0, 255.0));
  }
  return base;
}

TEST(Prefix, SearchesForFewQueriesComeToUseOne) {
  const AnyMatrix base = decaying_bytes();
  const ExactSearcher searcher(base, {});
  const Neighbors expected = reference_knn(base.view().rows(0, 40), base, 5, Metric::l2);
  std::int64_t columns = 0, searches = 0;
  for (; columns == 0 && searches < 20000; ++searches) {
    KnnReport report;
    const std::int64_t q = searches % 40;
    const Neighbors got = searcher.search(base.view().rows(q, q + 1), 5, {.threads = 2}, &report);
    ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.row(q), 5 * sizeof(Id)), 0);
    columns = report.scan.prefix_columns;
  }
  EXPECT_GT(columns, 0);
  EXPECT_GT(searches, 10);
  const Neighbors got = searcher.search(base.view().rows(0, 40), 5, {.threads = 2});
  EXPECT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 200 * sizeof(Id)), 0);
}

// A server's searches make none: it would hold up those behind them. Rows are studied first, and
// the prefix is made once that has shown that it pays.
TEST(Prefix, IsNotMadeWhereThatIsRefused) {
  const AnyMatrix base = decaying_bytes();
  for (const bool studied : {false, true}) {
    const ExactSearcher searcher(base, {});
    bool studies = false, cancels = studied;
    const auto columns = [&](std::int64_t q, std::int64_t queries) {
      KnnReport report;
      const Progress progress = [&](std::string_view stage, double) {
        studies |= stage == "study rows";
        return !cancels || stage != "k-means";  // of the prefix
      };
      searcher.search(base.view().rows(q, q + queries), 5, {.threads = 2, .progress = progress},
                      &report);
      return report.scan.prefix_columns;
    };
    try {
      for (int i = 0; cancels && i < 20000; ++i) ASSERT_EQ(columns(i % 40, 1), 0);
    } catch (const Cancelled&) {
      cancels = false;
    }
    EXPECT_FALSE(cancels);
    EXPECT_EQ(studies, studied);
    {
      const StopCheck check([] {}, Preparing::refused);
      for (int i = 0; i < 20000 && !check.has_refused(); ++i) ASSERT_EQ(columns(i % 40, 1), 0);
      EXPECT_TRUE(check.has_refused()) << "it would have paid by now";
      EXPECT_EQ(columns(0, 500), 0);
      EXPECT_EQ(studies, studied);
    }
    int more = 0;
    while (more < 100 && columns(0, 1) == 0) ++more;
    EXPECT_LT(more, 100);
    const StopCheck check([] {}, Preparing::refused);
    EXPECT_GT(columns(0, 1), 0);
    EXPECT_FALSE(check.has_refused());
  }
}

TEST(Prefix, MakingOneCanBeCancelledAndReportsItsTimeOnce) {
  const Matrix<float> base = decaying(3000, 64, 1, 1), queries = decaying(40, 64, 1, 2);
  for (const std::string_view stage :
       {"study rows", "principal components", "map rows", "k-means", "pack base", "code rows"}) {
    bool asked = false;
    KnnOptions options{.first_pass = FirstPass::prefix};
    options.progress = [&](std::string_view now, double) {
      asked |= now == stage;
      return now != stage;
    };
    EXPECT_THROW(knn(queries.view(), base.view(), 5, options), Cancelled) << stage;
    EXPECT_TRUE(asked) << stage;
  }
  KnnReport report;
  knn(queries.view(), base.view(), 5, {.first_pass = FirstPass::prefix}, &report);
  EXPECT_GT(report.prepare_seconds, 0);
  EXPECT_GE(report.seconds, 0);
}

TEST(Prefix, ManyQueriesCountTowardsTheBudget) {
  const Matrix<float> base = decaying(500, 64, 1, 1);
  Matrix<float> queries(200000, 64);
  EXPECT_THROW(
      knn(queries.view(), base.view(), 1, {.memory = 100 << 20, .first_pass = FirstPass::prefix}),
      MemoryBudgetError);
  // Codes of other passes are dropped when a prefix needs their memory.
  const Matrix<float> more = decaying(20000, 64, 1, 3), few = decaying(30, 64, 1, 2);
  ExactSearcher searcher(more.view(), {});
  KnnReport report;
  searcher.search(few.view(), 5, {.memory = 40 << 20, .first_pass = FirstPass::fp32}, &report);
  searcher.search(few.view(), 5, {.memory = 40 << 20, .first_pass = FirstPass::prefix}, &report);
  EXPECT_EQ(report.scan.first_pass, "prefix");
  EXPECT_LE(report.memory_bytes, 40 << 20);
}

TEST(Prefix, KindsOfQueriesMayAlternate) {
  Random random(1);
  Matrix<float> base(2000, 16), whole(40, 16), halves(40, 16);
  for (std::int64_t i = 0; i < 2000 * 16; ++i)
    base.data()[i] = static_cast<float>(random.below(100));
  for (std::int64_t i = 0; i < 40 * 16; ++i) {
    whole.data()[i] = static_cast<float>(random.below(100));
    halves.data()[i] = whole.data()[i] + 0.5f;
  }
  ExactSearcher searcher(base.view(), {});
  for (int round = 0; round < 3; ++round)
    for (const Matrix<float>* queries : {&whole, &halves}) {
      const Neighbors expected = reference_knn(queries->view(), base.view(), 9, Metric::l2);
      KnnReport report;
      const Neighbors got =
          searcher.search(queries->view(), 9, {.first_pass = FirstPass::prefix}, &report);
      EXPECT_EQ(report.scan.first_pass, "prefix");
      ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 360 * sizeof(Id)), 0);
      ASSERT_EQ(std::memcmp(got.distances.data(), expected.distances.data(), 360 * 4), 0);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Prefix, IsUsedOnceItHasPaidAndOnlyWhereItDoes) {
  for (const double slope : {1.0, 0.0}) {
    Random random(1);
    Matrix<float> base(20000, 512), queries(500, 512);
    for (Matrix<float>* m : {&base, &queries})
      for (std::int64_t r = 0; r < m->rows(); ++r)
        for (std::int64_t j = 0; j < 512; ++j)
          m->row(r)[j] = static_cast<float>((random.uniform() + random.uniform() - 1) *
                                            std::pow(1 + double(j), -slope));
    ExactSearcher searcher(base.view(), {});
    const Neighbors expected = searcher.search(queries.view(), 10, {.first_pass = FirstPass::int8});
    int with = 0;
    bool last = false;
    for (int call = 0; call < 24; ++call) {
      KnnReport report;
      const Neighbors got = searcher.search(queries.view(), 10, {}, &report);
      last = report.scan.first_pass == "prefix";
      with += last;
      EXPECT_EQ(report.scan.prefix_columns > 0, last);
      ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 5000 * sizeof(Id)), 0);
    }
    EXPECT_EQ(last, slope == 1.0);
    EXPECT_LT(with, 24);  // the first searches go without
    if (slope == 1) {
      EXPECT_GE(with, 12);  // but no more than a few thousand queries do
    }
    if (slope == 0) {
      EXPECT_EQ(with, 0);
    }
    // Few queries use it too, but never with a memory budget.
    KnnReport report;
    searcher.search(queries.view().rows(0, 5), 10, {}, &report);
    EXPECT_EQ(report.scan.first_pass == "prefix", slope == 1.0);
    searcher.search(queries.view(), 10, {.memory = 512 << 20}, &report);
    EXPECT_NE(report.scan.first_pass, "prefix");
  }
}
#endif

}  // namespace
}  // namespace knear
