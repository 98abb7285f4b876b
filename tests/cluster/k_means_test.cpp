// k-means against plain loops: what it assigns, where it puts centroids, and that nothing but the
// arguments changes a bit.
#include "knear/cluster/k_means.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "knear/cluster/codebook.hpp"
#include "knear/core/error.hpp"
#include "tests/core/peer_threads.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using namespace test;

AnyMatrix blobs(std::int64_t rows, std::int64_t dim, int count, std::uint64_t seed,
                ElementType type = ElementType::f32) {
  Random random(seed);
  Matrix<float> centres(count, dim);
  for (std::int64_t i = 0; i < count * dim; ++i)
    centres.data()[i] = static_cast<float>(20 * random.uniform() - 8);
  return make(type, rows, dim, [&](std::int64_t r, std::int64_t c) {
    return centres.row(r % count)[c] + random.uniform();
  });
}

bool same_bits(const Matrix<float>& a, const Matrix<float>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.rows() * a.cols()) * 4) == 0;
}

// The weighted objective by the definition.
double objective(AnyMatrixView rows, const Matrix<float>& centroids, Metric metric,
                 std::span<const float> weights = {}) {
  const Neighbors near = reference_knn(rows, centroids.view(), 1, metric);
  double sum = 0;
  for (std::int64_t i = 0; i < rows.rows(); ++i)
    sum += near.distances.data()[i] *
           (weights.empty() ? 1.0 : double{weights[static_cast<std::size_t>(i)]});
  return sum;
}

TEST(NearestCentroids, AreThoseOfTheReferenceAtEveryLevel) {
  const AnyMatrix rows = blobs(700, 21, 7, 1), some = blobs(40, 21, 7, 2);
  Matrix<float> twice(80, 21);  // each centroid comes twice: ties go to the first
  std::memcpy(twice.row(0), some.view().row(0), 40 * 21 * 4);
  std::memcpy(twice.row(40), some.view().row(0), 40 * 21 * 4);
  for (const Isa isa : test::levels()) {
    const ForcedIsa forced(isa);
    for (const Metric metric : metrics)
      for (const std::int64_t count : {1, 5, 700})
        for (const int threads : {1, 3}) {
          const AnyMatrixView asked = rows.view().rows(0, count);
          const Neighbors wanted = reference_knn(asked, twice.view(), 1, metric);
          const Assignment got = nearest_centroids(twice.view(), asked, metric, threads);
          for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            ASSERT_EQ(got.ids[at], wanted.ids.data()[i]) << name_of(isa) << name_of(metric);
            ASSERT_EQ(got.distances[at], wanted.distances.data()[i]);
            ASSERT_LT(got.ids[at], 40);
          }
        }
  }
}

// So few rows that the threads take some of the centroids each.
TEST(NearestCentroids, OfFewRowsAndManyCentroids) {
  const AnyMatrix rows = gaussians(7, 64, 31), centroids = gaussians(30000, 64, 32);
  for (const Metric metric : metrics) {
    const Neighbors wanted = reference_knn(rows, centroids, 1, metric);
    for (const int threads : {1, 2, 4}) {
      const Assignment got = nearest_centroids(centroids.view().as<float>(), rows, metric, threads);
      for (std::int64_t i = 0; i < 7; ++i) {
        EXPECT_EQ(got.ids[static_cast<std::size_t>(i)], wanted.ids.data()[i]);
        EXPECT_EQ(got.distances[static_cast<std::size_t>(i)], wanted.distances.data()[i]);
      }
    }
  }
}

// Where 8 bits cannot tell the data apart, most centroids would have to be measured.
TEST(NearestCentroids, CodesBecomeWiderWhereTheyDecideTooLittle) {
  Random random(3);
  const auto value = [&](std::int64_t, std::int64_t c) {
    return c == 0 ? 1e4 * random.uniform() : 1e-3 * random.uniform();
  };
  const AnyMatrix rows = make(ElementType::f32, 20000, 12, value),
                  some = make(ElementType::f32, 3000, 12, value);
  const auto centroids = some.view().as<float>();
  const Neighbors wanted = reference_knn(rows.view().rows(0, 300), some, 1, Metric::l2);
  const Assignment got = nearest_centroids(centroids, rows);
  for (std::int64_t i = 0; i < 300; ++i)
    ASSERT_EQ(got.ids[static_cast<std::size_t>(i)], wanted.ids.data()[i]);
}

// Lloyd's iterations as they are written, in double precision.
TEST(KMeans, EveryStepIsThatOfPlainLoops) {
  for (const Metric metric : metrics) {
    const AnyMatrix rows = blobs(900, 9, 12, 4);
    std::vector<float> weights(900);
    Random random(5);
    for (float& weight : weights) weight = static_cast<float>(random.below(4));
    for (const bool weighted : {false, true}) {
      KMeansOptions options{.metric = metric, .iterations = 0, .seed = 7};
      if (weighted) options.weights = weights;
      Matrix<float> plain = k_means(rows.view(), 11, options).centroids;
      for (int iterations = 1; iterations < 4; ++iterations) {
        const Neighbors near = reference_knn(rows.view(), plain.view(), 1, metric);
        Matrix<double> sums(11, 9);
        std::vector<double> sizes(11);
        for (std::int64_t i = 0; i < 900; ++i) {
          const Id c = near.ids.data()[i];
          const float* row = rows.view().as<float>().row(i);
          double squares = 0;
          for (int j = 0; j < 9; ++j) squares += double{row[j]} * row[j];
          const double by = metric == Metric::cosine ? 1 / std::sqrt(squares) : 1;
          const double weight = weighted ? weights[static_cast<std::size_t>(i)] : 1;
          for (int j = 0; j < 9; ++j) sums.row(c)[j] += weight * by * row[j];
          sizes[static_cast<std::size_t>(c)] += weight;
        }
        for (std::int64_t c = 0; c < 11; ++c) {
          double squares = 0;
          for (int j = 0; j < 9; ++j) squares += sums.row(c)[j] * sums.row(c)[j];
          const double by = metric == Metric::l2 ? 1 / sizes[static_cast<std::size_t>(c)]
                                                 : 1 / std::sqrt(squares);
          ASSERT_GT(sizes[static_cast<std::size_t>(c)], 0) << "choose another seed";
          for (int j = 0; j < 9; ++j) plain.row(c)[j] = static_cast<float>(sums.row(c)[j] * by);
        }
        options.iterations = iterations;
        const KMeans got = k_means(rows.view(), 11, options);
        for (int i = 0; i < 11 * 9; ++i)
          EXPECT_NEAR(got.centroids.data()[i], plain.data()[i],
                      1e-6 * (1 + std::fabs(plain.data()[i])))
              << name_of(metric) << ' ' << iterations;
        // The step says what the assignment before it was worth.
        options.iterations = iterations - 1;
        const double before =
            objective(rows, k_means(rows.view(), 11, options).centroids, metric, options.weights);
        EXPECT_NEAR(got.steps.back().objective, before, 1e-4 * std::fabs(before));
      }
    }
  }
}

TEST(KMeans, NothingButTheArgumentsChangesABit) {
  for (const Metric metric : metrics)
    for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus}) {
      const AnyMatrix rows = blobs(5000, 17, 23, 8);
      KMeansOptions options{
          .metric = metric, .iterations = 6, .seed = 3, .seeding = seeding, .threads = 1};
      const KMeans first = k_means(rows.view(), 60, options);
      for (const Isa isa : available_isas()) {
        const ForcedIsa forced(isa);
        options.threads = 3;
        EXPECT_TRUE(same_bits(k_means(rows.view(), 60, options).centroids, first.centroids))
            << name_of(isa);
      }
      const RowBlocks blocks{5000, 17, [&](const std::function<void(AnyMatrixView)>& take) {
                               for (std::int64_t i = 0; i < 5000; i += 777)
                                 take(rows.view().rows(i, std::min<std::int64_t>(5000, i + 777)));
                             }};
      const KMeans by_blocks = k_means(blocks, 60, options);
      EXPECT_TRUE(same_bits(by_blocks.centroids, first.centroids));
      EXPECT_EQ(by_blocks.steps.back().objective, first.steps.back().objective);
      options.seed = 4;
      EXPECT_FALSE(same_bits(k_means(rows.view(), 60, options).centroids, first.centroids));
    }
}

// Codes of rows that are kept from one iteration to the next are those of the rows at hand: several
// iterations give what as many k-means of one iteration each do. With so many centroids rows are
// scored by codes; so many rows come in several blocks, of which the first has a part that is tried
// before the others; and where neighbours are close for the length of the rows, codes become wider.
TEST(KMeans, IterationsTogetherAreThoseOneByOne) {
  struct Case {
    std::int64_t rows, dim;
    double offset;  // from centroids that are given
    double noise;
  };
  for (const Case& c : {Case{9000, 24, 0, 1}, Case{140000, 5, 0, 1}, Case{9000, 24, 1000, 1},
                        Case{9000, 24, 0, 1e-3}}) {
    Random random(31);
    const AnyMatrix rows =
        make(ElementType::f32, c.rows, c.dim, [&](std::int64_t r, std::int64_t j) {
          return (r % 7 == j % 7 ? 1 : 0) + c.noise * random.uniform();
        });
    Matrix<float> given(600, c.dim);
    for (std::int64_t i = 0; i < 600; ++i)
      for (std::int64_t j = 0; j < c.dim; ++j)
        given.row(i)[j] = static_cast<float>(rows.view().as<float>().row(i)[j] + c.offset);
    KMeansOptions options{.iterations = 4, .initial = given.view(), .threads = 2};
    const KMeans together = k_means(rows.view(), 1100, options);
    options.iterations = 1;
    KMeans last = k_means(rows.view(), 1100, options);
    for (int step = 1; step < 4; ++step) {
      options.initial = last.centroids.view();
      KMeans next = k_means(rows.view(), 1100, options);
      EXPECT_EQ(next.steps[0].objective, together.steps[static_cast<std::size_t>(step)].objective)
          << c.rows << ' ' << c.offset << ' ' << c.noise << " step " << step;
      last = std::move(next);
    }
    EXPECT_TRUE(same_bits(last.centroids, together.centroids))
        << c.rows << ' ' << c.offset << ' ' << c.noise;
  }
}

// Sums in whole numbers: the order of the rows is nothing to them, nor is an offset that float64
// sums would lose digits by.
TEST(KMeans, TheOrderOfTheRowsChangesNoSum) {
  const AnyMatrix rows = blobs(3000, 5, 9, 10, ElementType::f64);
  AnyMatrix turned(ElementType::f64, 3000, 5);
  for (std::int64_t i = 0; i < 3000; ++i)
    std::memcpy(turned.row(i), rows.view().row(2999 - i), 5 * 8);
  const Matrix<float> start = k_means(rows.view(), 20, {.iterations = 0}).centroids;
  const KMeansOptions options{.iterations = 5, .initial = start.view()};
  EXPECT_TRUE(same_bits(k_means(rows.view(), 20, options).centroids,
                        k_means(turned.view(), 20, options).centroids));
}

TEST(KMeans, EveryIterationLowersTheObjective) {
  for (const ElementType type : all_element_types) {
    const AnyMatrix rows = blobs(4000, 8, 50, 11, type);
    for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus}) {
      const KMeans found = k_means(rows.view(), 40, {.iterations = 30, .seeding = seeding});
      for (std::size_t i = 1; i < found.steps.size(); ++i)
        EXPECT_LE(found.steps[i].objective, found.steps[i - 1].objective * (1 + 1e-6))
            << name_of(type);
      // It ends where nothing moves any more.
      EXPECT_TRUE(found.steps.size() == 30 || found.steps.back().moved == 0);
    }
  }
  const AnyMatrix rows = blobs(4000, 8, 50, 12);
  const KMeans far = k_means(rows.view(), 50,
                             {.iterations = 3, .seeding = Seeding::k_means_plus_plus}),
               random = k_means(rows.view(), 50, {.iterations = 3});
  EXPECT_LT(far.steps.back().objective, 0.7 * random.steps.back().objective);
}

TEST(KMeans, RestartsKeepTheBestAndToleranceEndsEarly) {
  const AnyMatrix rows = blobs(2000, 6, 30, 13);
  double least = 1e300;
  for (std::uint64_t seed = 5; seed < 9; ++seed)
    least = std::min(
        least, k_means(rows.view(), 30, {.iterations = 8, .seed = seed}).steps.back().objective);
  int calls = 0;
  const KMeans best =
      k_means(rows.view(), 30,
              {.iterations = 8, .seed = 5, .restarts = 4, .report = [&](const KMeansStep& step) {
                 calls += step.restart == 3;
               }});
  EXPECT_EQ(best.steps.back().objective, least);
  EXPECT_GT(calls, 0);
  const KMeans early = k_means(rows.view(), 30, {.iterations = 100, .tolerance = 0.02}),
               late = k_means(rows.view(), 30, {.iterations = 100});
  EXPECT_LT(early.steps.size(), late.steps.size());
}

TEST(KMeans, GivenCentroidsAreWhereItBeginsAndFrozenOnesStay) {
  const AnyMatrix rows = blobs(1500, 4, 10, 14);
  Matrix<float> given(3, 4);
  for (int i = 0; i < 12; ++i) given.data()[i] = static_cast<float>(i);
  KMeansOptions options{.iterations = 0, .initial = given.view()};
  EXPECT_EQ(std::memcmp(k_means(rows.view(), 8, options).centroids.data(), given.data(), 48), 0);
  options.iterations = 5;
  EXPECT_NE(std::memcmp(k_means(rows.view(), 8, options).centroids.data(), given.data(), 48), 0);
  options.frozen_rows = 3;
  const KMeans frozen = k_means(rows.view(), 8, options);
  EXPECT_EQ(std::memcmp(frozen.centroids.data(), given.data(), 48), 0);
  EXPECT_EQ(std::memcmp(k_means(rows.view(), 3, options).centroids.data(), given.data(), 48), 0);
}

TEST(KMeans, SomeOfTheGivenCentroidsAreFrozenAndTheOthersMove) {
  const AnyMatrix rows = blobs(1500, 4, 10, 14);
  Matrix<float> given(8, 4);
  for (std::int64_t c = 0; c < 8; ++c)
    std::copy_n(rows.view().as<float>().row(c * 180), 4, given.row(c));
  const KMeans found =
      k_means(rows.view(), 8, {.iterations = 1, .initial = given.view(), .frozen_rows = 3});
  EXPECT_EQ(std::memcmp(found.centroids.data(), given.data(), 48), 0);
  // The others are where one iteration from the same first centroids puts them, frozen ones or not.
  const KMeans all = k_means(rows.view(), 8, {.iterations = 1, .initial = given.view()});
  ASSERT_EQ(all.steps[0].empty, 0);
  EXPECT_EQ(std::memcmp(found.centroids.row(3), all.centroids.row(3), 80), 0);
  EXPECT_NE(std::memcmp(found.centroids.row(3), given.row(3), 80), 0);
}

TEST(KMeans, CentroidsWithoutRowsSplitOthers) {
  // Two of three first centroids lie where no row is.
  const AnyMatrix rows = blobs(600, 3, 3, 15);
  Matrix<float> given(3, 3);
  for (int i = 0; i < 9; ++i) given.data()[i] = i < 3 ? 0 : 1e6f + static_cast<float>(i);
  const KMeans found = k_means(rows.view(), 3, {.iterations = 40, .initial = given.view()});
  EXPECT_EQ(found.steps[0].empty, 2);
  EXPECT_EQ(found.steps.back().empty, 0);
  const Assignment near = nearest_centroids(found.centroids.view(), rows);
  for (std::int64_t c = 0; c < 3; ++c)
    EXPECT_GT(std::count(near.ids.begin(), near.ids.end(), c), 50);
  // All centroids are far away, and the nearest of them gets all rows: the others go where it went,
  // at the distance at which its rows are now.
  const AnyMatrix around = gaussians(2000, 64, 16);
  Matrix<float> far(50, 64);
  for (std::int64_t i = 0; i < 50; ++i)
    for (std::int64_t j = 0; j < 64; ++j)
      far.row(i)[j] = around.view().as<float>().row(i)[j] + 1e4f;
  const KMeans gathered = k_means(around.view(), 50, {.iterations = 40, .initial = far.view()});
  const KMeans usual = k_means(around.view(), 50, {.iterations = 40});
  EXPECT_GT(gathered.steps[0].empty, 40);
  EXPECT_LT(gathered.steps.back().objective, 1.02 * usual.steps.back().objective);
  // Equal rows: all but one centroid have none, however often they are moved.
  const AnyMatrix equal = make(ElementType::f32, 100, 4, [](auto, auto) { return 2.0; });
  const KMeans still = k_means(equal.view(), 10, {.iterations = 3});
  EXPECT_EQ(still.steps.back().objective, 0);
}

// A centroid that went off in a direction of its own got no row, at each step again.
TEST(KMeans, OneRowFarFromEqualOnesGetsACentroid) {
  const AnyMatrix far = gaussians(30, 33, 8);
  for (const Metric metric : {Metric::l2, Metric::cosine, Metric::ip})
    for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus})
      for (const std::int64_t dim : {2, 8, 33})
        for (std::uint64_t seed = 1; seed <= 30; ++seed) {
          const float* other = far.view().as<float>().row(static_cast<std::int64_t>(seed) - 1);
          const AnyMatrix rows =
              make(ElementType::f32, 249, dim, [&](std::int64_t r, std::int64_t c) {
                return r == 100 ? 10.0 * static_cast<double>(other[c]) : 1.0;
              });
          double best = 0;  // of ip: each row's own direction gives its length
          for (std::int64_t r = 0; r < 249 && traits_of(metric).product; ++r) {
            double squares = 0;
            for (std::int64_t c = 0; c < dim; ++c)
              squares += std::pow(double{rows.view().as<float>().row(r)[c]}, 2);
            best += std::sqrt(squares);
          }
          for (const bool measured : {true, false}) {
            const KMeansOptions options{.metric = metric, .seed = seed, .seeding = seeding};
            const Matrix<float> centroids = measured ? k_means(rows.view(), 2, options).centroids
                                                     : detail::codebook(rows, 2, options);
            EXPECT_NEAR(objective(rows, centroids, metric), best, 1e-4)
                << name_of(metric) << " seed " << seed << " dim " << dim;
          }
        }
  // Two groups of equal rows are far, and there are more centroids than different rows.
  const AnyMatrix groups = make(ElementType::f32, 300, 4, [](std::int64_t r, std::int64_t c) {
    return r < 260 ? 1.0 : r < 290 ? 50.0 + static_cast<double>(c) : -70.0;
  });
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    EXPECT_EQ(k_means(groups.view(), 6, {.seed = seed}).steps.back().objective, 0) << seed;
}

// Empty texts and items without a buyer are zero rows, which have no direction. A centroid of one
// was all zeros, and k-means that went on from there refused it.
TEST(KMeans, ZeroRowsAreNoCentroidsOfSphericalKMeans) {
  const AnyMatrix some = gaussians(600, 8, 21);
  for (const Metric metric : {Metric::ip, Metric::cosine})
    for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus})
      for (const std::int64_t zeros : {1, 2, 600}) {  // each row, or each second one, or one of all
        const AnyMatrix rows = make(ElementType::f32, 600, 8, [&](std::int64_t r, std::int64_t c) {
          return zeros == 600     ? (r == 5 ? 0.0 : double{some.view().as<float>().row(r)[c]})
                 : r % zeros == 0 ? 0.0
                                  : double{some.view().as<float>().row(r)[c]};
        });
        const KMeans found =
            k_means(rows.view(), 20, {.metric = metric, .iterations = 4, .seeding = seeding});
        for (std::int64_t c = 0; c < 20; ++c) {
          double squares = 0;
          for (std::int64_t j = 0; j < 8; ++j)
            squares += std::pow(double{found.centroids.row(c)[j]}, 2);
          EXPECT_NEAR(squares, 1, 1e-5) << name_of(metric) << " " << zeros << " centroid " << c;
        }
        EXPECT_NO_THROW(
            k_means(rows.view(), 20,
                    {.metric = metric, .iterations = 2, .initial = found.centroids.view()}));
      }
}

// Row 7 has nearly all the weight, so nearly every draw begins with it.
TEST(KMeans, RandomSeedingDrawsRowsByTheirWeights) {
  const AnyMatrix rows = gaussians(500, 3, 5);
  std::vector<float> weights(500, 1);
  weights[7] = 1e6f, weights[9] = 0;
  int heavy = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const KMeans found =
        k_means(rows.view(), 3, {.iterations = 0, .seed = seed, .weights = weights});
    for (std::int64_t c = 0; c < 3; ++c) {
      heavy += std::memcmp(found.centroids.row(c), rows.view().row(7), 12) == 0;
      EXPECT_NE(std::memcmp(found.centroids.row(c), rows.view().row(9), 12), 0);
      for (std::int64_t other = 0; other < c; ++other)
        EXPECT_NE(std::memcmp(found.centroids.row(c), found.centroids.row(other), 12), 0);
    }
  }
  EXPECT_GE(heavy, 39);
  // All rows of a weight are drawn if there are centroids for them.
  std::fill(weights.begin(), weights.end(), 0.0f);
  for (int i = 0; i < 5; ++i) weights[static_cast<std::size_t>(90 * i)] = static_cast<float>(1 + i);
  const KMeans all = k_means(rows.view(), 5, {.iterations = 0, .weights = weights});
  for (std::int64_t i = 0; i < 5; ++i)
    EXPECT_EQ(std::memcmp(all.centroids.row(i), rows.view().row(90 * i), 12), 0);
  // Equal weights are those of rows without weights.
  weights.assign(500, 0.25f);
  EXPECT_TRUE(same_bits(k_means(rows.view(), 9, {.iterations = 3, .weights = weights}).centroids,
                        k_means(rows.view(), 9, {.iterations = 3}).centroids));
}

// Most rows are equal: dividing those gains nothing, so centroids have to go to the others.
TEST(KMeans, CentroidsLeaveEqualRowsAlone) {
  for (const double offset : {0.0, 1e6}) {
    const AnyMatrix rows = make(ElementType::f32, 3000, 2, [&](std::int64_t r, std::int64_t c) {
      return offset + static_cast<double>(r % 10 == 0 ? r / 10 % 16 >> 2 * c & 3 : 0);
    });
    Matrix<float> given(16, 2);
    std::fill_n(given.data(), 32, static_cast<float>(offset));
    const KMeansOptions options{.iterations = 60, .initial = given.view()};
    const KMeans found = k_means(rows.view(), 16, options);
    EXPECT_EQ(found.steps.back().objective, 0) << offset;
    EXPECT_TRUE(same_bits(detail::codebook(rows.view(), 16, options), found.centroids));
  }
}

TEST(KMeans, WeightsCountAsCopies) {
  const AnyMatrix rows = blobs(400, 5, 6, 16);
  std::vector<float> weights(400);
  std::vector<std::int64_t> copies;
  for (std::int64_t i = 0; i < 400; ++i) {
    weights[static_cast<std::size_t>(i)] = static_cast<float>(i % 3);
    for (std::int64_t c = 0; c < i % 3; ++c) copies.push_back(i);
  }
  const AnyMatrix copied = make(ElementType::f32, std::ssize(copies), 5, [&](auto r, auto c) {
    return double{rows.view().as<float>().row(copies[static_cast<std::size_t>(r)])[c]};
  });
  const Matrix<float> start = k_means(rows.view(), 7, {.iterations = 0}).centroids;
  const KMeans a = k_means(rows.view(), 7,
                           {.iterations = 4, .initial = start.view(), .weights = weights}),
               b = k_means(copied.view(), 7, {.iterations = 4, .initial = start.view()});
  for (int i = 0; i < 35; ++i) EXPECT_NEAR(a.centroids.data()[i], b.centroids.data()[i], 1e-6 * 20);
}

TEST(KMeans, ASampleAndTwoLevels) {
  const AnyMatrix rows = blobs(20000, 12, 100, 17);
  const double all =
      objective(rows, k_means(rows.view(), 100, {.iterations = 8}).centroids, Metric::l2);
  const double fewer = objective(
      rows, k_means(rows.view(), 100, {.iterations = 8, .rows_per_centroid = 30}).centroids,
      Metric::l2);
  EXPECT_LT(fewer, 2 * all);
  for (const int threads : {1, 2}) {
    const KMeans two =
        k_means(rows.view(), 100, {.iterations = 8, .levels = 2, .threads = threads});
    EXPECT_EQ(two.centroids.rows(), 100);
    EXPECT_LT(objective(rows, two.centroids, Metric::l2), 2 * all);
    EXPECT_TRUE(same_bits(two.centroids,
                          k_means(rows.view(), 100, {.iterations = 8, .levels = 2}).centroids));
    // Steps of all clusters together: the last began with centroids that one more made no worse.
    ASSERT_FALSE(two.steps.empty());
    EXPECT_LE(two.steps.size(), 8u);
    for (std::size_t i = 1; i < two.steps.size(); ++i)
      EXPECT_LE(two.steps[i].objective, two.steps[i - 1].objective * (1 + 1e-9));
    EXPECT_EQ(two.steps[0].moved, rows.rows());
    EXPECT_GE(two.steps.back().objective * (1 + 1e-6), objective(rows, two.centroids, Metric::l2));
    EXPECT_LE(two.steps.back().objective, 1.1 * objective(rows, two.centroids, Metric::l2));
  }
  // As many centroids as rows: each row is one.
  const AnyMatrix few = blobs(60, 4, 60, 18);
  for (const int levels : {1, 2})
    EXPECT_NEAR(objective(few, k_means(few.view(), 60, {.levels = levels}).centroids, Metric::l2),
                0, 1e-6);
}

TEST(KMeans, StopsWhenAskedTo) {
  const AnyMatrix rows = blobs(3000, 8, 10, 19);
  int calls = 0;
  EXPECT_THROW(k_means(rows.view(), 50,
                       {.iterations = 1000,
                        .progress = [&](std::string_view, double) { return ++calls < 5; }}),
               Cancelled);
}

TEST(KMeans, BadArgumentsAreNamed) {
  const AnyMatrix rows = blobs(50, 4, 3, 20);
  const auto says = [&](std::int64_t count, const KMeansOptions& options, const std::string& words,
                        AnyMatrixView of) {
    try {
      k_means(of, count, options);
      ADD_FAILURE() << "took what should be refused: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const auto refuses = [&](std::int64_t count, const KMeansOptions& options,
                           const std::string& words) { says(count, options, words, rows); };
  says(1, {}, "rows must have between 1 and 65536 columns, but has 0",
       AnyMatrixView(ElementType::f32, nullptr, 5, 0, 0));
  says(1, {}, "rows must have between 1 and 65536 columns, but has 65537",
       AnyMatrixView(ElementType::u8, nullptr, 5, 65537, 65537));
  says(1, {}, "rows are 0, but k-means takes one at least", rows.view().rows(0, 0));
  refuses(0, {}, "k must be from 1 to 50, the number of rows, but is 0");
  refuses(51, {}, "but is 51");
  refuses(5, {.iterations = -1}, "iterations must not be negative, but is -1");
  refuses(5, {.restarts = 0}, "restarts must be at least 1, but is 0");
  refuses(5, {.tolerance = std::nan("")}, "tolerance must be from 0 to below 1, but is nan");
  refuses(5, {.levels = 3}, "levels must be 1 or 2, but is 3");
  refuses(5, {.metric = Metric::ip, .levels = 2},
          "levels is 2, which is for metric l2, but metric is ip");
  refuses(5, {.threads = -2}, "threads");
  refuses(5, {.frozen_rows = 1}, "frozen_rows must be from 0 to 0, the rows of initial, but is 1");
  Matrix<float> initial(6, 4), other(2, 5);
  refuses(6, {.initial = initial.view(), .frozen_rows = 7}, "from 0 to 6, the rows of initial");
  refuses(6, {.initial = initial.view(), .frozen_rows = -1}, "but is -1");
  refuses(5, {.initial = initial.view()}, "initial has 6 rows, but k is 5");
  refuses(5, {.initial = other.view()}, "initial has 5 columns, rows have 4");
  refuses(7, {.metric = Metric::cosine, .initial = initial.view()}, "row 0 is one");
  initial.row(3)[2] = std::nanf("");
  refuses(7, {.initial = initial.view()}, "initial must be finite, but row 3 column 2 is nan");
  std::vector<float> weights(49, 1);
  refuses(5, {.weights = weights}, "weights are 49, rows are 50");
  weights.assign(50, 0);
  refuses(5, {.weights = weights}, "weights must not all be 0");
  weights[3] = 1;
  refuses(5, {.weights = weights}, "k is 5, but only 1 rows have a weight above 0");
  weights[7] = -1;
  refuses(5, {.weights = weights}, "weight 7 is -1");
  AnyMatrix bad = blobs(50, 4, 3, 21);
  set(bad, 4 * 17 + 2, std::numeric_limits<double>::infinity());
  says(5, {}, "rows must be finite, but row 17 column 2 is inf", bad);
  EXPECT_THROW(nearest_centroids(other.view(), rows), ShapeMismatch);
  EXPECT_THROW(parse_seeding("best"), InvalidArgument);
  for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus})
    EXPECT_EQ(parse_seeding(name_of(seeding)), seeding);
}

// Rows [begin, end) in blocks.
RowBlocks some_blocks(AnyMatrixView rows, std::int64_t begin, std::int64_t end) {
  return {end - begin, rows.cols(), [=](const std::function<void(AnyMatrixView)>& take) {
            for (std::int64_t i = begin; i < end; i += 100)
              take(rows.rows(i, std::min(end, i + 100)));
          }};
}

// Where the rows of each of so many processes begin: uneven, and one has none.
std::vector<std::int64_t> uneven(std::int64_t rows, int size) {
  std::vector<std::int64_t> out{0};
  for (int rank = 1; rank < size; ++rank)
    out.push_back(rank == 2 ? out.back() : rows * rank * rank / (size * size));
  out.push_back(rows);
  return out;
}

TEST(KMeansOfManyProcesses, HasTheBitsOfOne) {
  const AnyMatrix rows = blobs(1500, 9, 6, 3), few = blobs(40, 9, 3, 5, ElementType::u8);
  std::vector<float> weights(1500);
  Random random(9);
  for (float& weight : weights)
    weight = random.below(4) == 0 ? 0 : static_cast<float>(random.uniform() / 8);
  struct Case {
    AnyMatrixView rows;
    std::int64_t k;
    KMeansOptions options;
  };
  std::vector<Case> cases;
  for (const Metric metric : metrics)
    for (const Seeding seeding : {Seeding::random, Seeding::k_means_plus_plus})
      for (const bool weighted : {false, true}) {
        KMeansOptions options{.metric = metric, .iterations = 6, .seed = 4, .seeding = seeding};
        if (weighted) options.weights = weights;
        cases.push_back({rows, 12, options});
        options.restarts = 3, options.iterations = 3, options.tolerance = 1e-3;
        cases.push_back({rows, 5, options});
        options.restarts = 1, options.rows_per_centroid = 30;
        cases.push_back({rows, 20, options});
      }
  // More centroids than there are different rows: many are empty, and split.
  const AnyMatrix copies =
      make(ElementType::u8, 300, 4, [](std::int64_t i, std::int64_t) { return i % 5; });
  cases.push_back({copies, 40, {.iterations = 4, .seed = 2}});
  // One row is far: a centroid without rows takes it.
  const AnyMatrix far = make(ElementType::f32, 249, 5, [](std::int64_t i, std::int64_t j) {
    return i == 140 ? (j % 3 == 1 ? 9.0 : -4.0) : i == 60 ? -20.0 : 1.0;
  });
  for (const Metric metric : {Metric::l2, Metric::cosine, Metric::ip})
    cases.push_back({far, 4, {.metric = metric, .iterations = 9, .seed = 2}});
  cases.push_back({few, 30, {.iterations = 5, .seeding = Seeding::k_means_plus_plus}});
  const Matrix<float> initial = k_means(rows, 4, {.iterations = 1}).centroids;
  cases.push_back({rows, 9, {.iterations = 5, .initial = initial.view(), .frozen_rows = 2}});
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const Case& one = cases[c];
    const KMeans wanted = k_means(one.rows, one.k, one.options);
    for (const int size : {1, 2, 3, 5}) {
      const std::vector<std::int64_t> begin = uneven(one.rows.rows(), size);
      test::as_peers(size, [&](Peers& peers) {
        const std::int64_t first = begin[static_cast<std::size_t>(peers.rank())],
                           last = begin[static_cast<std::size_t>(peers.rank()) + 1];
        KMeansOptions options = one.options;
        options.threads = 1 + peers.rank() % 2;
        if (!options.weights.empty())
          options.weights = options.weights.subspan(static_cast<std::size_t>(first),
                                                    static_cast<std::size_t>(last - first));
        const KMeans got = k_means(some_blocks(one.rows, first, last), peers, one.k, options);
        EXPECT_TRUE(same_bits(got.centroids, wanted.centroids)) << "case " << c << " of " << size;
        ASSERT_EQ(got.steps.size(), wanted.steps.size()) << "case " << c << " of " << size;
        for (std::size_t i = 0; i < got.steps.size(); ++i) {
          EXPECT_EQ(got.steps[i].objective, wanted.steps[i].objective);
          EXPECT_EQ(got.steps[i].moved, wanted.steps[i].moved);
          EXPECT_EQ(got.steps[i].empty, wanted.steps[i].empty);
        }
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(KMeansOfManyProcesses, WhatOneRefusesAllRefuse) {
  AnyMatrix rows = blobs(300, 4, 3, 1);
  static_cast<float*>(rows.row(250))[1] = std::numeric_limits<float>::infinity();
  test::as_peers(3, [&](Peers& peers) {
    const std::int64_t first = 100 * peers.rank();
    const RowBlocks own = some_blocks(rows, first, first + 100);
    const auto expect = [&](std::int64_t k, const KMeansOptions& options, const std::string& what) {
      try {
        k_means(own, peers, k, options);
        ADD_FAILURE() << "nothing was thrown for " << what;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      }
    };
    expect(4, {}, "row 250");
    expect(301, {}, "from 1 to 300");
    expect(4, {.levels = 2}, "levels = 2");
    const std::vector<float> ones(100, 1.0f), zeros(100, 0.0f);
    expect(4, {.weights = zeros}, "not all be 0");
    KMeansOptions mixed;
    if (peers.rank() == 1) mixed.weights = ones;
    expect(4, mixed, "weights are given in 1 of the 3 processes");
    const Progress stops = [&](std::string_view, double) { return peers.rank() != 2; };
    const RowBlocks good = some_blocks(rows, peers.rank() * 50, peers.rank() * 50 + 50);
    EXPECT_THROW(k_means(good, peers, 4, {.progress = stops}), Cancelled);
  });
}

}  // namespace
}  // namespace knear
