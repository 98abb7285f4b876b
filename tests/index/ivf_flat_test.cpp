// tests/index/ivf_flat_test.cpp -- vectors in inverted lists: training, which queries are
// certified, wider probing, memory, and what is refused. Its life is in index_changes_test.cpp.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/index/life/segment_store.hpp"
#include "tests/index/index_model.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

// Tight clusters, so that lists differ.
constexpr Clusters tight{.count = 20, .spread = 0.15}, spread_out{.count = 20, .spread = 0.5};

Matrix<float> whole(std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                    const Clusters& how = tight) {
  Matrix<float> out = clustered(rows, dim, seed, how);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = std::round((out.data()[i] + 1) * 100);
  return out;
}

template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class IvfFlat : public testing::TestWithParam<std::tuple<Metric, bool>> {
 protected:
  const Metric metric = std::get<0>(GetParam());
  const bool integer = std::get<1>(GetParam());

  Matrix<float> rows(std::int64_t n, std::int64_t dim, std::uint64_t seed) const {
    return integer ? whole(n, dim, seed) : clustered(n, dim, seed, tight);
  }
};

INSTANTIATE_TEST_SUITE_P(Metrics, IvfFlat,
                         testing::Combine(testing::Values(Metric::l2, Metric::ip, Metric::cosine),
                                          testing::Bool()),
                         [](const auto& p) {
                           return std::string(name_of(std::get<0>(p.param))) +
                                  (std::get<1>(p.param) ? "_whole" : "_real");
                         });

TEST_P(IvfFlat, IsTheSameForAnyBatchThreadsAndOrderOfAdding) {
  const std::int64_t n = test::small() ? 2000 : 6000;
  const Matrix<float> base = rows(n, 24, 1), queries = rows(300, 24, 2);
  Index index = make_index("IVF50,Flat", 24, metric), slowly = make_index("IVF50,Flat", 24, metric);
  EXPECT_FALSE(index.is_trained());
  index.train(base.view(), {.seed = 3, .threads = 2});
  slowly.train(base.view(), {.seed = 3, .threads = 1});
  EXPECT_TRUE(index.is_trained());
  EXPECT_EQ(index.description(), "IVF50,Flat");
  index.add(base.view());
  for (std::int64_t begin = 0, step = 1; begin < n; begin += step, step = 2 * step + 3)
    slowly.add(base.view().rows(begin, std::min<std::int64_t>(n, begin + step)));
  EXPECT_EQ(index.list_sizes(), slowly.list_sizes());
  const SearchOptions options{.threads = 2, .method = {.probes = 5}};
  KnnReport report;
  const Neighbors all = index.search(queries.view(), 10, options, &report);
  EXPECT_EQ(report.lists.count, 50);
  EXPECT_EQ(report.lists.probes, 5);
  EXPECT_EQ(report.method, "inverted-lists");
  EXPECT_EQ(report.promise.recall_argument, "none");
  EXPECT_EQ(report.promise.promised_recall, 0);
  EXPECT_EQ(report.scan.first_pass, integer && metric != Metric::cosine ? "integer" : "int8");
  EXPECT_GT(report.scan.probed_rows, 0);
  EXPECT_LE(report.scan.probed_rows, n);
  expect_equal(slowly.search(queries.view(), 10, options), all);
  SearchOptions narrow = options;
  narrow.threads = 1, narrow.memory = 1 << 20;
  expect_equal(index.search(queries.view(), 10, narrow), all);
  for (std::int64_t q = 0; q < 300; q += 29) {
    const Neighbors one = index.search(queries.view().rows(q, q + 1), 10, options);
    for (std::int64_t j = 0; j < 10; ++j) {
      ASSERT_EQ(one.ids.row(0)[j], all.ids.row(q)[j]);
      ASSERT_EQ(one.distances.row(0)[j], all.distances.row(q)[j]);
    }
  }
}

// So that they are scanned as one. Rows that are unlike those of the training would have coarse
// codes there; they are found all the same.
TEST(IvfFlatSegments, AreCodedInOneSpaceWhereThatSuitsThem) {
  const Matrix<float> base = clustered(4000, 16, 1), far = clustered(600, 16, 2, {.offset = 40});
  OpenIndex index(make_index("IVF20,Flat", 16));
  index.train(base.view());
  IndexModel model(index);
  const auto put = [&](MatrixView<float> rows) {
    for (std::int64_t i = 0; i < rows.rows(); ++i) model.put(index.next_id() + i, rows, i);
    index.add(rows);
  };
  const auto space = [&](std::size_t segment) -> const detail::CodingSpace& {
    return index.state()->segments.at(segment).rows->lists()->first_form()->packed.space;
  };
  put(base.view().rows(0, 2700)), put(base.view().rows(2700, 4000)), put(far.view());
  ASSERT_EQ(index.state()->segments.size(), 3u);
  EXPECT_TRUE(space(0) == space(1));
  EXPECT_FALSE(space(0) == space(2));
  for (const MatrixView<float> queries : {base.view().rows(0, 40), far.view().rows(0, 40)})
    for (const std::int64_t k : {1, 10, 50}) {
      const Neighbors near = index.search(queries, k, {.method = {.probes = 4}});
      for (std::int64_t q = 0; q < queries.rows(); ++q) {
        const auto expected = model.search(queries, q, k, {.probes = 4}, [](Id) { return true; });
        for (std::int64_t j = 0; j < k; ++j)
          ASSERT_EQ(near.ids.row(q)[j],
                    j < std::ssize(expected) ? expected[static_cast<std::size_t>(j)].second : no_id)
              << "query " << q << ", place " << j << " of " << k;
      }
    }
}

TEST_P(IvfFlat, ListsAreThoseOfTheNearestCentroids) {
  const Matrix<float> base = rows(3000, 10, 4);
  Index index = make_index("IVF30,Flat", 10, metric);
  index.train(base.view(), {.iterations = 3});
  index.add(base.view());
  const Matrix<float> centroids = index.centroids();
  const Metric by = metric == Metric::cosine ? Metric::cosine : Metric::l2;
  const Neighbors nearest = reference_knn(base.view(), centroids.view(), 1, by);
  std::vector<Id> ids = index.ids();
  const std::vector<std::int64_t> lists = index.lists_of(ids);
  std::vector<std::int64_t> sizes(30);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(lists[i], nearest.ids.row(ids[i])[0]);
    ++sizes[static_cast<std::size_t>(lists[i])];
  }
  EXPECT_EQ(index.list_sizes(), sizes);
  EXPECT_EQ(message([&] {
              index.lists_of(std::vector<Id>{1, 9000});
            }),
            "ids hold 9000 in place 1, which the index does not hold");
  // Centroids that are given make the same index.
  Index given = index_with_centroids(centroids.view(), metric);
  EXPECT_TRUE(given.is_trained());
  given.add(base.view());
  EXPECT_EQ(given.list_sizes(), sizes);
}

// Rows in an element type; of those that are whole, i8 are 100 less.
AnyMatrix in_type(ElementType type, Matrix<float> from) {
  if (type == ElementType::f16 || type == ElementType::bf16)
    return detail::rounded_to(type, from.view(), 1, 0);
  AnyMatrix out(type, from.rows(), from.cols());
  for (std::int64_t i = 0; type == ElementType::i8 && i < from.rows() * from.cols(); ++i)
    from.data()[i] -= 100;
  EXPECT_EQ(detail::copy_exactly(from.view(), type, out.row(0)), -1);
  for (std::int64_t i = 0; type == ElementType::f64 && i < from.rows() * from.cols(); ++i)
    if (double& x = static_cast<double*>(out.row(0))[i]; x != std::trunc(x))
      x += 0x1p-40;  // no float32
  return out;
}
std::vector<double> doubles_of(AnyMatrixView rows, std::int64_t i) {
  return visit(rows, [&](auto typed) {
    std::vector<double> out;
    for (std::int64_t j = 0; j < typed.cols(); ++j) out.push_back(to_double(typed.row(i)[j]));
    return out;
  });
}

// By a plain loop: certified queries have the flat index's answer, and those are certified whose
// lists' radii say so; at all probes, and by recall = 1, all are.
void expect_certified_by_radii(Metric metric, AnyMatrixView base, AnyMatrixView queries) {
  Index trained = make_index("IVF40,Flat", 12, metric);
  trained.train(base);
  Index index = index_with_centroids(trained.centroids().view(),
                                     metric);  // by ip, the order is that of products
  index.add(base);
  EXPECT_EQ(index.element_type(), base.type());
  Index flat = make_index("Flat", 12, metric);
  flat.add(base);
  const Neighbors truth = flat.search(queries, 5);
  const Matrix<float> centroids = index.centroids();
  const std::vector<Id> ids = index.ids();
  const std::vector<std::int64_t> lists = index.lists_of(ids);
  const auto unit = [&](AnyMatrixView rows, std::int64_t i) {  // of length 1 for cosine
    std::vector<double> out = doubles_of(rows, i);
    const double norm = std::sqrt(std::inner_product(out.begin(), out.end(), out.begin(), 0.0));
    if (metric == Metric::cosine)
      for (double& v : out) v /= norm;
    return out;
  };
  const auto apart = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t j = 0; j < a.size(); ++j) sum += (a[j] - b[j]) * (a[j] - b[j]);
    return std::sqrt(sum);
  };
  std::vector<double> radii(40);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    double& radius = radii[static_cast<std::size_t>(lists[i])];
    radius = std::max(radius, apart(unit(base, ids[i]), unit(centroids.view(), lists[i])));
  }
  std::int64_t certified = 0;
  for (const std::int64_t probes : {1, 4, 20, 40}) {
    KnnReport report;
    const Neighbors near = index.search(
        queries, 5, {.method = {.probes = probes, .lists = {.certify = true}}}, &report);
    const Neighbors order = reference_knn(queries, centroids.view(), 40, metric);
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      const bool said = !std::binary_search(report.promise.uncertified.begin(),
                                            report.promise.uncertified.end(), q);
      for (std::int64_t j = 0; j < 5 && said; ++j)
        ASSERT_EQ(near.ids.row(q)[j], truth.ids.row(q)[j]);
      const std::vector<double> x = unit(queries, q);
      const double kth = near.distances.row(q)[4];
      double slack = std::numeric_limits<double>::infinity();  // of the list that is nearest to it
      for (std::int64_t p = probes; p < 40; ++p) {
        const Id list = order.ids.row(q)[p];
        const double radius = radii[static_cast<std::size_t>(list)];
        const std::vector<double> c = unit(centroids.view(), list);
        if (metric == Metric::ip) {
          const double norm = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
          const double most =
              std::inner_product(x.begin(), x.end(), c.begin(), 0.0) + norm * radius;
          slack = std::min(slack, (kth - most) / std::abs(kth));
        } else {
          const double gap = std::max(0.0, apart(x, c) - radius);
          const double key = metric == Metric::cosine ? gap * gap / 2 : gap * gap;
          slack = std::min(slack, (key - kth) / (kth + 1e-9));
        }
      }
      if (std::abs(slack) < 1e-4) continue;
      ASSERT_EQ(said, slack > 0) << "query " << q << ", probes " << probes << ", slack " << slack;
    }
    EXPECT_EQ(report.promise.certified_queries,
              queries.rows() - std::ssize(report.promise.uncertified));
    certified += report.promise.certified_queries;
    if (probes == 40) {
      expect_equal(near, truth);
      EXPECT_EQ(report.promise.certified_queries, queries.rows());
      EXPECT_EQ(report.promise.promised_recall, 1);
      EXPECT_EQ(report.promise.recall_argument, "exact");
    }
  }
  EXPECT_GT(certified, queries.rows());
  // recall = 1 goes on until all are.
  KnnReport report;
  expect_equal(index.search(queries, 5, {.method = {.recall = 1}}, &report), truth);
  EXPECT_EQ(report.promise.certified_queries, queries.rows());
  EXPECT_EQ(report.promise.promised_recall, 1);
  EXPECT_EQ(report.promise.recall_argument, "exact");
  EXPECT_TRUE(report.promise.uncertified.empty());
  if (metric != Metric::ip) {
    EXPECT_LT(report.lists.probes, 40);
  }
  // And of lists in the order in which an index that was trained probes them, for products another.
  trained.add(base);
  for (const std::int64_t probes : {4, 20}) {
    const Neighbors near = trained.search(
        queries, 5, {.method = {.probes = probes, .lists = {.certify = true}}}, &report);
    for (std::int64_t q = 0; q < queries.rows(); ++q)
      if (!std::binary_search(report.promise.uncertified.begin(), report.promise.uncertified.end(),
                              q)) {
        for (std::int64_t j = 0; j < 5; ++j) ASSERT_EQ(near.ids.row(q)[j], truth.ids.row(q)[j]);
      }
  }
  expect_equal(trained.search(queries, 5, {.method = {.recall = 1}}, &report), truth);
  EXPECT_EQ(report.promise.certified_queries, queries.rows());
}

TEST_P(IvfFlat, CertifiesWhatTheRadiiProve) {
  // Clusters that are so wide that some bounds hold by little.
  const auto rows = [&](std::int64_t n, std::uint64_t seed) {
    return integer ? whole(n, 12, seed, spread_out) : clustered(n, 12, seed, spread_out);
  };
  std::vector<ElementType> types{ElementType::f32, ElementType::f64, ElementType::f16,
                                 ElementType::bf16};
  if (integer) types.insert(types.end(), {ElementType::u8, ElementType::i8});
  for (const ElementType type : types) {
    SCOPED_TRACE(name_of(type));
    const std::int64_t n = test::small() ? 1500 : 4000;
    const AnyMatrix base = in_type(type, rows(n, 5)), queries = in_type(type, rows(n * 3 / 100, 6));
    expect_certified_by_radii(metric, base, queries);
    if (HasFatalFailure()) return;
  }
}

// The rows of the lists that a query probes are all known from a search for as many as there are;
// a plain loop over these asks the filter.
TEST_P(IvfFlat, FiltersGiveTheSameAsALoopOverTheRowsThatAreProbed) {
  const std::int64_t n = test::small() ? 1500 : 6000, many = test::small() ? 40 : 300;
  const Matrix<float> base = rows(n, 16, 31), queries = rows(many, 16, 32);
  Index index = make_index("IVF20,Flat", 16, metric);
  index.train(base.view());
  Random random(33);
  const auto check = [&] {
    const std::vector<Id> ids = index.ids();
    const Neighbors all = index.search(queries.view(), index.size(), {.method = {.probes = 6}});
    for (const double share : {0.0, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.99}) {
      std::vector<Id> some;
      for (const Id id : ids)
        if (random.uniform() < share) some.push_back(id);
      if (share == 0.0001) some.assign(1, ids[ids.size() / 3]);
      std::vector<std::uint8_t> bits(static_cast<std::size_t>((index.next_id() + 7) / 8));
      for (const Id id : some) bits[static_cast<std::size_t>(id / 8)] |= 1 << id % 8;
      for (const IdFilter& filter :
           {IdFilter::of_ids(some), IdFilter::of_bits(bits, index.next_id())})
        for (const std::int64_t step : {many, std::int64_t{1}}) {
          for (std::int64_t q = 0; q < many; q += step == 1 ? many / 7 : step) {
            const Neighbors got =
                index.search(queries.view().rows(q, q + step), 10,
                             {.threads = 2, .filter = filter, .method = {.probes = 6}});
            for (std::int64_t i = 0; i < step; ++i) {
              std::int64_t places = 0;
              for (std::int64_t j = 0; j < all.ids.cols() && places < 10; ++j) {
                const Id id = all.ids.row(q + i)[j];
                if (id == no_id || !std::binary_search(some.begin(), some.end(), id)) continue;
                ASSERT_EQ(got.ids.row(i)[places], id) << "query " << q + i << ", share " << share;
                ASSERT_EQ(got.distances.row(i)[places++], all.distances.row(q + i)[j]);
              }
              for (; places < 10; ++places) ASSERT_EQ(got.ids.row(i)[places], no_id);
            }
          }
        }
    }
  };
  index.add(base.view().rows(0, n * 2 / 3));
  check();
  for (std::int64_t begin = n * 2 / 3; begin < n; begin += n / 20)  // in several segments
    index.add(base.view().rows(begin, std::min<std::int64_t>(n, begin + n / 20)));
  check();
  std::vector<Id> removed;
  for (const Id id : index.ids())
    if (id % 5 == 0) removed.push_back(id);
  index.remove(removed);
  check();
  Index other = make_index("IVF20,Flat", 16, metric);
  other.train(base.view());
  other.add(base.view().rows(0, n / 4));
  index.merge(other, MergeIds::shifted);
  check();
}

// What a filter leaves is counted as what was measured, where nothing was scored.
TEST_P(IvfFlat, FiltersThatLeaveLittlePassNoOtherRow) {
  const Matrix<float> base = rows(6000, 16, 34), queries = rows(300, 16, 35);
  Index index = make_index("IVF20,Flat", 16, metric);
  index.train(base.view());
  index.add(base.view());
  std::vector<Id> few;
  for (Id id = 0; id < 6000; id += 200) few.push_back(id);
  for (const std::int64_t count : {300, 1}) {
    KnnReport report;
    index.search(queries.view().rows(0, count), 10,
                 {.filter = IdFilter::of_ids(few), .method = {.probes = 6}}, &report);
    EXPECT_EQ(report.scan.hits_per_query, 0);
    EXPECT_GT(report.scan.survivors_per_query, 0);
    EXPECT_LE(report.scan.survivors_per_query, 30);
    EXPECT_EQ(report.scan.first_pass, "direct");
    EXPECT_GT(report.scan.probed_rows, 300);
  }
}

TEST_P(IvfFlat, WidensUntilEnoughRowsAreFound) {
  const Matrix<float> base = rows(2000, 8, 7), queries = rows(30, 8, 8);
  Index index = make_index("IVF60,Flat", 8, metric);
  index.train(base.view());
  index.add(base.view());
  std::vector<Id> few;
  for (Id id = 0; id < 2000; id += 100) few.push_back(id);
  const IdFilter filter = IdFilter::of_ids(few);
  KnnReport report;
  const Neighbors narrow =
      index.search(queries.view(), 8, {.filter = filter, .method = {.probes = 2}}, &report);
  EXPECT_GT(report.short_queries, 0);
  std::int64_t padded = 0;
  for (std::int64_t q = 0; q < 30; ++q) padded += narrow.ids.row(q)[7] == no_id;
  EXPECT_EQ(report.short_queries, padded);
  const Neighbors wide =
      index.search(queries.view(), 8,
                   {.filter = filter, .method = {.probes = 2, .lists = {.widen = true}}}, &report);
  EXPECT_EQ(report.short_queries, 0);
  EXPECT_GT(report.lists.probes, 2);
  for (std::int64_t i = 0; i < 30 * 8; ++i) EXPECT_NE(wide.ids.data()[i], no_id);
  // Alone or among others.
  for (std::int64_t q = 0; q < 30; q += 7) {
    const Neighbors one =
        index.search(queries.view().rows(q, q + 1), 8,
                     {.filter = filter, .method = {.probes = 2, .lists = {.widen = true}}});
    for (std::int64_t j = 0; j < 8; ++j) EXPECT_EQ(one.ids.row(0)[j], wide.ids.row(q)[j]);
  }
  // More than there are.
  index.search(queries.view(), 25,
               {.filter = filter, .method = {.probes = 2, .lists = {.widen = true}}}, &report);
  EXPECT_EQ(report.short_queries, 30);
  EXPECT_EQ(report.lists.probes, 60);
}

// Lists are trained for products by one more column, with which all rows have one length.
TEST(IvfFlatProducts, AreProbedByLiftedDistances) {
  Matrix<float> base = clustered(3000, 12, 11, tight);
  Random random(12);
  for (std::int64_t i = 0; i < 3000; ++i) {
    const auto scale = static_cast<float>(0.5 + random.uniform());
    for (std::int64_t j = 0; j < 12; ++j) base.row(i)[j] *= scale;
  }
  const Matrix<float> queries = clustered(40, 12, 13, tight);
  Index index = make_index("IVF30,Flat", 12, Metric::ip);
  index.train(base.view());  // from all of them
  index.add(base.view());
  const std::string path =
      std::filesystem::temp_directory_path() / ("knear-lifts-" + std::to_string(getpid()));
  index.save(path);
  const Matrix<float> centroids = index.centroids();
  const std::vector<std::int64_t> lists = index.lists_of(index.ids());
  const auto product = [](const float* a, const float* b) {
    double sum = 0;
    for (int j = 0; j < 12; ++j) sum += double(a[j]) * b[j];
    return sum;
  };
  double longest = 0;
  for (std::int64_t i = 0; i < 3000; ++i)
    longest = std::max(longest, std::sqrt(product(base.row(i), base.row(i))));
  std::vector<double> lifts(30), counts(30);
  for (std::int64_t i = 0; i < 3000; ++i) {
    const auto list = static_cast<std::size_t>(lists[static_cast<std::size_t>(i)]);
    lifts[list] += std::sqrt(std::max(0.0, longest * longest - product(base.row(i), base.row(i))));
    counts[list] += 1;
  }
  for (std::size_t l = 0; l < 30; ++l) lifts[l] /= counts[l];
  for (const std::int64_t probes : {1, 3, 10}) {
    const SearchOptions options{.method = {.probes = probes}};
    const Neighbors near = index.search(queries.view(), 5, options);
    expect_equal(Index::load(path).search(queries.view(), 5, options), near);
    for (std::int64_t q = 0; q < 40; ++q) {
      std::vector<std::pair<double, std::int64_t>> order;
      const double scale = longest / std::sqrt(product(queries.row(q), queries.row(q)));
      for (std::int64_t l = 0; l < 30; ++l) {
        double sum = lifts[static_cast<std::size_t>(l)] * lifts[static_cast<std::size_t>(l)];
        for (std::int64_t j = 0; j < 12; ++j) {
          const double gap = scale * queries.row(q)[j] - centroids.row(l)[j];
          sum += gap * gap;
        }
        order.emplace_back(sum, l);
      }
      std::sort(order.begin(), order.end());
      std::vector<std::pair<double, Id>> expected;
      for (std::int64_t i = 0; i < 3000; ++i)
        for (std::int64_t p = 0; p < probes; ++p)
          if (order[static_cast<std::size_t>(p)].second == lists[static_cast<std::size_t>(i)])
            expected.emplace_back(-product(queries.row(q), base.row(i)), i);
      std::sort(expected.begin(), expected.end());
      for (std::size_t j = 0; j < 5; ++j) ASSERT_EQ(near.ids.row(q)[j], expected[j].second);
    }
  }
  std::filesystem::remove(path);
}

// A list of one row, zero vectors, and queries that are zero: where scales and lengths are none.
TEST_P(IvfFlat, ZeroVectors) {
  Matrix<float> base = rows(900, 6, 9), queries = rows(4, 6, 10);
  for (std::int64_t i = 0; i < 900; i += 5) std::fill_n(base.row(i), 6, 0.0f);
  std::fill_n(queries.row(1), 6, 0.0f);
  Index index = make_index("IVF8,Flat", 6, metric);
  index.train(base.view());
  index.add(base.view());
  Index flat = make_index("Flat", 6, metric);
  flat.add(base.view());
  for (const std::int64_t k : {1, 20, 900}) {
    expect_equal(index.search(queries.view(), k, {.method = {.probes = 8}}),
                 flat.search(queries.view(), k));
    expect_equal(index.search(queries.view(), k, {.method = {.recall = 1}}),
                 flat.search(queries.view(), k));
  }
}

TEST(IvfFlatFiles, KeepListsOfAllSizes) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("knear-ivf-" + std::to_string(getpid()));
  const Matrix<float> base = clustered(3000, 16, 1, tight), queries = clustered(40, 16, 2, tight);
  Index untrained = make_index("IVF12,Flat", 16, Metric::ip);
  untrained.save(path);
  Index again = Index::load(path);
  EXPECT_FALSE(again.is_trained());
  EXPECT_EQ(again.lists(), 12);
  EXPECT_EQ(again.metric(), Metric::ip);
  for (const std::int64_t n : {0, 1, 40, 3000}) {  // none, not packed, packed
    Index index = make_index("IVF12,Flat", 16);
    index.train(base.view());
    index.add(base.view().rows(0, n));
    index.save(path);
    const Index loaded = Index::load(path);
    EXPECT_EQ(loaded.description(), "IVF12,Flat");
    EXPECT_EQ(loaded.size(), n);
    const SearchOptions options{.method = {.probes = 3}};
    expect_equal(loaded.search(queries.view(), 5, options),
                 index.search(queries.view(), 5, options));
    EXPECT_EQ(Index::load(path).list_sizes(), index.list_sizes());
  }
  std::filesystem::remove(path);
}

TEST(IvfFlatMemory, IsWhatTheHeaderStates) {
  const std::int64_t n = 40000, d = 96, lists = 100;
  const Matrix<float> base = clustered(n, d, 1, tight);
  Index index = make_index(fmt::format("IVF{},Flat", lists), d);
  index.train(base.view());
  index.add(base.view());
  EXPECT_LE(index.memory_bytes(), n * (4 * d + d + 16) * 106 / 100 + 4 * d * lists);
  Index bytes = make_index(fmt::format("IVF{},Flat", lists), d);
  const Matrix<float> numbers = whole(n, d, 1);
  bytes.train(numbers.view());
  bytes.add(numbers.view());
  EXPECT_LE(bytes.memory_bytes(), n * (d * 105 / 100 + 16) * 106 / 100 + 4 * d * lists);
}

// Those of all queries lie beside the buffers of the threads, and were not counted once. With fewer
// probes a thread codes its queries itself, for each list.
TEST(IvfFlatMemory, OfASearchCountsTheCodesOfQueries) {
  const std::int64_t dim = 512, queries = 2000;
  constexpr Clusters one{.count = 1, .spread = 1};  // whose lists are as wide as all rows
  const Matrix<float> base = clustered(3000, dim, 1, one), asked = clustered(queries, dim, 2, one);
  Index index = make_index("IVF16,Flat", dim);
  index.train(base.view(), {.iterations = 2});
  index.add(base.view());
  const auto bytes = [&](std::int64_t probes) {
    KnnReport report;
    index.search(asked.view(), 1, {.threads = 2, .method = {.probes = probes}}, &report);
    return report.memory_bytes;
  };
  EXPECT_GE(bytes(8) - bytes(7), queries * dim);
  const auto within = [&](std::int64_t probes) {
    KnnReport report;
    index.range_search(asked.view(), 0, {.threads = 2, .method = {.probes = probes}}, &report);
    return report.memory_bytes;
  };
  EXPECT_GE(within(8) - within(7), queries * dim);
}

// Of two columns the rows of a list are closer to one another than a unit of 8-bit codes of all
// rows, so each list is coded around its centroid: few rows are measured, in memory and in files.
// A search that proves its answers looks at few lists.
TEST(IvfFlatOfFewColumns, MeasuresFewRows) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("knear-few-" + std::to_string(getpid()));
  constexpr Clusters uniform{.count = 1, .spread = 1};
  const Matrix<float> base = clustered(20000, 2, 1, uniform),
                      queries = clustered(300, 2, 2, uniform);
  Index flat = make_index("Flat", 2);
  flat.add(base.view());
  Index index = make_index("IVF200,Flat", 2);
  index.train(base.view(), {.iterations = 4});
  index.add(base.view().rows(0, 9000));
  index.add(base.view().rows(9000, 20000));
  index.save(path);
  const Index loaded = Index::load(path);
  std::vector<Id> gone;
  for (Id id = 0; id < 20000; id += 3) gone.push_back(id);
  const auto check = [&](const Index& of, const Index& all) {
    KnnReport report;
    expect_equal(of.search(queries.view(), 10, {.method = {.recall = 1}}, &report),
                 all.search(queries.view(), 10));
    EXPECT_LT(report.scan.survivors_per_query, 60);
    EXPECT_LT(report.lists.probes, 20);
    EXPECT_EQ(report.promise.certified_queries, 300);
    of.search(queries.view(), 10, {.method = {.probes = 8}}, &report);
    EXPECT_LT(report.scan.survivors_per_query, 60);
    // One query by itself is coded for each of its lists.
    const auto one = queries.view().rows(7, 8);
    expect_equal(of.search(one, 10, {.method = {.recall = 1}}), all.search(one, 10));
    const IdFilter even = IdFilter::of_bits(std::vector<std::uint8_t>(2500, 0x55), 20000);
    expect_equal(of.search(queries.view(), 10, {.filter = even, .method = {.recall = 1}}),
                 all.search(queries.view(), 10, {.filter = even}));
    const auto within = of.range_search(queries.view(), 1e-4, {.method = {.probes = 200}});
    const auto expected = all.range_search(queries.view(), 1e-4);
    EXPECT_EQ(within.ids, expected.ids);
    EXPECT_EQ(within.distances, expected.distances);
  };
  check(index, flat);
  check(loaded, flat);
  index.remove(gone), flat.remove(gone);
  check(index, flat);
  index.compact();
  check(index, flat);
  std::filesystem::remove(path);
}

TEST(IvfFlatErrors, SayWhatIsWrong) {
  const Matrix<float> base = clustered(500, 4, 1, tight);
  EXPECT_EQ(message([] { make_index("IVF10,Flat", 0); }),
            "dim must be between 1 and 65536, but is 0");
  EXPECT_EQ(message([] { index_with_centroids(Matrix<float>(0, 4).view()); }),
            "lists must be between 1 and 16777216, but is 0");
  Index index = make_index("IVF16,Flat", 4);
  EXPECT_EQ(message([&] { index.add(base.view()); }),
            "index IVF16,Flat is not trained, which comes before adding vectors");
  EXPECT_EQ(message([&] { index.search(base.view(), 1, {.method = {.probes = 1}}); }),
            "index IVF16,Flat is not trained, which comes before searching");
  EXPECT_EQ(message([&] { index.train(base.view().rows(0, 15)); }),
            "vectors are 15 rows, but training 16 lists takes as many at least");
  EXPECT_EQ(message([&] { index.train(clustered(50, 5, 1, tight).view()); }),
            "vectors have 5 columns, index has 4");
  Matrix<float> bad = clustered(50, 4, 1, tight);
  bad.row(7)[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(message([&] { index.train(bad.view(), {.rows = 20}); }),  // drawn or not
            "vectors must be finite, but row 7 column 2 is nan");
  EXPECT_EQ(message([&] { index.train(base.view(), {.rows = 15}); }),
            "rows is 15, but training 16 lists takes as many at least");
  EXPECT_FALSE(index.is_trained());
  index.train(base.view());
  index.add(base.view());
  EXPECT_EQ(message([&] { index.train(base.view()); }),
            "index IVF16,Flat holds 500 rows, and is trained before any are added");
  const auto search = [&](SearchOptions options) {
    return message([&] { index.search(base.view(), 3, options); });
  };
  EXPECT_EQ(search({}),
            "neither probes nor recall is given, and a search of 16 inverted lists needs one of "
            "them");
  EXPECT_EQ(search({.method = {.probes = 17}}),
            "probes must be between 1 and the 16 lists, but is 17");
  EXPECT_EQ(search({.method = {.probes = -1}}),
            "probes must be between 1 and the 16 lists, but is -1");
  EXPECT_EQ(search({.method = {.recall = 1, .probes = 2}}),
            "probes is 2 and recall is 1, but only one of them can be asked for");
  EXPECT_EQ(search({.method = {.kind = Method::threshold_heap, .probes = 2}}),
            "method is threshold-heap, but a search of inverted lists has only auto and exact");
  EXPECT_EQ(search({.first_pass = FirstPass::int16, .method = {.probes = 2}}),
            "first_pass is int16, but inverted lists have none to choose");
  EXPECT_EQ(search({.tuning = {.group = 4}, .method = {.probes = 2}}),
            "choices are for a scan of all rows, and inverted lists have none");
  EXPECT_NE(search({.memory = 1000, .method = {.probes = 2}}).find("needs at least"),
            std::string::npos);
  EXPECT_EQ(message([&] {
              Index flat = make_index("Flat", 4);
              flat.add(base.view());
              flat.search(base.view(), 1, {.method = {.probes = 2}});
            }),
            "probes is 2, but there are no inverted lists");
  EXPECT_EQ(message([&] { index.merge(make_index("Flat", 4)); }),
            "other is an index Flat, this one is IVF16,Flat");
  EXPECT_THROW(index.search(base.view(), 3,
                            {.progress = [](std::string_view, double) { return false; },
                             .method = {.probes = 2}}),
               Cancelled);
}

// A device searches lists of vectors and codes; what it does not search says so, whatever devices
// are here.
TEST(IvfFlat, SaysWhichSearchesADeviceHas) {
  const Matrix<float> base = clustered(400, 4, 1, tight);
  const auto made = [&](auto index) {
    if (!index.is_trained()) index.train(base.view(), {.iterations = 2});
    index.add(base.view());
    return index;
  };
  const Index lists = made(make_index("IVF16,Flat", 4));
  const Index codes = made(make_index("IVF4,PQ2x4", 4));
  const Index graph = made(make_index("Graph8", 4));
  const auto on = [](std::string device, SearchMethod method) {
    return SearchOptions{.method = method, .device = std::move(device)};
  };
  const std::string alone = " runs on the processor alone";
  EXPECT_EQ(message([&] { codes.range_search(base.view(), 1, on("cuda", {.probes = 2})); }),
            "device is cuda, but a range search of codes" + alone);
  EXPECT_THROW(codes.search(base.view(), 1, on("cuda:99", {.probes = 2})), DeviceUnavailable);
  EXPECT_EQ(message([&] { graph.search(base.view(), 1, on("cuda:1", {.ef = 9})); }),
            "device is cuda:1, but a search of a graph" + alone);
  EXPECT_EQ(message([&] { lists.range_search(base.view(), 1, on("cuda", {.probes = 2})); }),
            "device is cuda, but a range search of some inverted lists" + alone);
  EXPECT_EQ(message([&] { lists.search(base.view(), 1, on("gpu", {.probes = 2})); }),
            "device must be cpu, cuda or cuda:N, or cuda:N,N,... of several GPUs, but is 'gpu'");
  EXPECT_THROW(lists.search(base.view(), 1, on("cuda:99", {.probes = 2})), DeviceUnavailable);
}

}  // namespace
}  // namespace knear
