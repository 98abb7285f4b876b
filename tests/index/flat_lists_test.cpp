// tests/index/flat_lists_test.cpp -- a recall below 1 asked of an index that compares all rows: the
// lists that it makes for that keep the promise, and go when the rows change.
#include "knear/index/lists/flat_lists.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

constexpr std::int64_t rows = 60000, dim = 32, k = 5;

// Rows around 300 centres.
Matrix<float> clustered(std::int64_t count, std::uint64_t seed, float scale = 1) {
  Random centre_random(7), random(seed);
  Matrix<float> centres(300, dim), out(count, dim);
  for (std::int64_t i = 0; i < 300 * dim; ++i)
    centres.data()[i] = static_cast<float>(centre_random.uniform() - 0.5);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* centre = centres.row(static_cast<std::int64_t>(random.below(300)));
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] = scale * (centre[j] + static_cast<float>(0.7 * (random.uniform() - 0.5)));
  }
  return out;
}

SearchOptions asking(double recall) {
  SearchOptions out;
  out.method.recall = recall;
  return out;
}

double recall_of(const Neighbors& found, const Neighbors& truth) {
  std::int64_t same = 0;
  for (std::int64_t q = 0; q < truth.ids.rows(); ++q) {
    const std::set<Id> right(truth.ids.row(q), truth.ids.row(q) + k);
    for (std::int64_t j = 0; j < k; ++j)
      same += static_cast<std::int64_t>(right.count(found.ids.row(q)[j]));
  }
  return static_cast<double>(same) / static_cast<double>(truth.ids.rows() * k);
}

// Every row found is at the distance that an exact search of it alone gives.
void expect_true_distances(const Index& index, const Neighbors& found, AnyMatrixView queries) {
  for (std::int64_t q = 0; q < 20; ++q) {
    SearchOptions only;
    std::vector<Id> ids(found.ids.row(q), found.ids.row(q) + k);
    only.filter = IdFilter::of_ids(ids);
    const Neighbors exact = index.search(queries.rows(q, q + 1), k, only);
    for (std::int64_t j = 0; j < k; ++j) {
      EXPECT_EQ(exact.ids.row(0)[j], found.ids.row(q)[j]);
      EXPECT_EQ(exact.distances.row(0)[j], found.distances.row(q)[j]);
    }
  }
}

class FlatLists : public testing::TestWithParam<std::tuple<Metric, std::string>> {};

TEST_P(FlatLists, KeepThePromiseOfRecall) {
  const auto& [metric, factory] = GetParam();
  const bool bytes = factory == "u8";
  const Matrix<float> base = clustered(rows, 1), queries = clustered(1500, 2);
  // Whole numbers, as the index keeps them.
  const auto as_bytes = [](const Matrix<float>& from) {
    Matrix<std::uint8_t> out(from.rows(), from.cols());
    for (std::int64_t i = 0; i < from.rows() * from.cols(); ++i)
      out.data()[i] = static_cast<std::uint8_t>(120 + 100 * from.data()[i]);
    return out;
  };
  const Matrix<std::uint8_t> byte_base = as_bytes(base), byte_queries = as_bytes(queries);
  const AnyMatrixView x = bytes ? AnyMatrixView(byte_base.view()) : AnyMatrixView(base.view()),
                      q = bytes ? AnyMatrixView(byte_queries.view())
                                : AnyMatrixView(queries.view());
  Index index = make_index(bytes ? "Flat" : factory, dim, metric);
  index.train(x);
  index.add(x);
  const Neighbors truth = index.search(q, k);
  const std::int64_t before = index.memory_bytes();
  const std::vector<OperatingPoint> points = index.tune(k);
  EXPECT_GE(index.memory_bytes(), before + rows * dim);
  ASSERT_FALSE(points.empty());
  for (const double recall : {0.7, 0.9}) {
    KnnReport report;
    const Neighbors found = index.search(q, k, asking(recall), &report);
    ASSERT_EQ(report.method, "inverted-lists") << recall;
    // Of transformed and rounded vectors it is kept with respect to these, and not promised.
    const bool altered = index.description() != "Flat";
    EXPECT_EQ(report.promise.recall_argument, altered ? "none" : "calibrated");
    EXPECT_EQ(report.promise.promised_recall, altered ? 0 : recall);
    EXPECT_LT(report.scan.probed_rows, 0.2 * rows);
    EXPECT_EQ(report.rows, rows);
    EXPECT_GE(recall_of(found, truth), recall);
    EXPECT_LT(recall_of(found, truth), 1);
    expect_true_distances(index, found, q);
    // By other threads, and some queries by themselves.
    SearchOptions one = asking(recall);
    one.threads = 1;
    expect_equal(index.search(q, k, one), found);
    const Neighbors some = index.search(q.rows(300, 900), k, one, &report);
    if (report.method == "inverted-lists") {
      for (std::int64_t i = 0; i < 600; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          EXPECT_EQ(some.ids.row(i)[j], found.ids.row(300 + i)[j]);
    }
  }
  // Nothing else of the index changes.
  KnnReport report;
  expect_equal(index.search(q, k, {}, &report), truth);
  EXPECT_EQ(report.method, "exact");
  expect_equal(index.search(q, k, asking(1), &report), truth);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FlatLists,
    testing::Values(std::tuple(Metric::l2, "Flat"), std::tuple(Metric::ip, "Flat"),
                    std::tuple(Metric::cosine, "Flat"), std::tuple(Metric::l2, "u8"),
                    std::tuple(Metric::l2, "SQfp16"), std::tuple(Metric::l2, "PCA24,Flat")),
    [](const auto& one) {
      std::string name =
          std::string(name_of(std::get<0>(one.param))) + "_" + std::get<1>(one.param);
      std::replace(name.begin(), name.end(), ',', '_');
      return name;
    });

// Rows that centroids are learned from are nearer to their own, and by a spread probe fewer lists:
// 0.89 was found of 0.9, calibrated by rows that nothing was learned from.
TEST(FlatListsOfAnIndex, KeepThePromiseForTheRowsThemselves) {
  constexpr std::int64_t many = 100000;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Random random(seed);
    const auto normal = [&] {  // about
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += random.uniform();
      return static_cast<float>(sum);
    };
    Matrix<float> centres(300, dim), base(many, dim);
    for (std::int64_t i = 0; i < 300 * dim; ++i) centres.data()[i] = 3 * normal();
    for (std::int64_t i = 0; i < many; ++i) {
      const float* const centre = centres.row(static_cast<std::int64_t>(random.below(300)));
      for (std::int64_t j = 0; j < dim; ++j) base.row(i)[j] = centre[j] + normal();
    }
    Index index = make_index("Flat", dim, Metric::l2);
    index.add(base.view());
    index.tune(10);
    const AnyMatrixView own = base.view().rows(0, 6000);
    const Neighbors truth = index.search(own, 10);
    for (const double recall : {0.8, 0.9, 0.95}) {
      KnnReport report;
      const Neighbors found = index.search(own, 10, asking(recall), &report);
      EXPECT_EQ(report.method, "inverted-lists") << report.note;
      EXPECT_GE(recall_of(found, truth), recall) << seed;
    }
  }
}

TEST(FlatListsOfAnIndex, AreNotMadeWhereThatIsRefused) {
  const Matrix<float> base = clustered(rows, 1), queries = clustered(2000, 2);
  Index index = make_index("Flat", dim);
  index.add(base.view());
  KnnReport report;
  // Other things that pay sooner are refused first, and made by the one query that is allowed to.
  for (int rounds = 0; rounds < 20 && report.method != "inverted-lists"; ++rounds) {
    {
      const StopCheck check([] {}, Preparing::refused);
      for (int tries = 0; tries < 2000 && !check.has_refused(); ++tries) {
        index.search(queries.view(), k, asking(0.8), &report);
        ASSERT_NE(report.method, "inverted-lists");
      }
      ASSERT_TRUE(check.has_refused()) << "they would have paid by now";
    }
    index.search(queries.view().rows(0, 1), k, asking(0.8), &report);
  }
  const StopCheck check([] {}, Preparing::refused);
  index.search(queries.view(), k, asking(0.8), &report);
  EXPECT_EQ(report.method, "inverted-lists");
  EXPECT_FALSE(check.has_refused());
}

TEST(FlatListsOfAnIndex, AreMadeOnceTheyWouldHavePaid) {
  const Matrix<float> base = clustered(rows, 1), queries = clustered(2000, 2);
  Index index = make_index("Flat", dim);
  index.add(base.view());
  const Neighbors truth = index.search(queries.view(), k);
  KnnReport report;
  int exact = 0;
  for (; exact < 2000; ++exact) {
    const Neighbors found = index.search(queries.view(), k, asking(0.8), &report);
    if (report.method == "inverted-lists") {
      EXPECT_GE(recall_of(found, truth), 0.8);
      EXPECT_GT(report.prepare_seconds, 0);
      EXPECT_GT(report.seconds, 0);
      break;
    }
    EXPECT_EQ(
        report.promise.recall_argument == "exact" || report.promise.recall_argument == "analytic",
        true);
    EXPECT_GE(recall_of(found, truth), 0.8);
  }
  EXPECT_GT(exact, 0);
  EXPECT_LT(exact, 2000);
  // They are of these rows alone.
  const std::int64_t with_lists = index.memory_bytes();
  index.remove(std::vector<Id>{truth.ids.row(0)[0]});
  EXPECT_LT(index.memory_bytes(), with_lists - rows * dim / 2);
  const Neighbors after = index.search(queries.view(), k, asking(0.8), &report);
  EXPECT_NE(report.method, "inverted-lists");
  for (std::int64_t j = 0; j < k; ++j) EXPECT_NE(after.ids.row(0)[j], truth.ids.row(0)[0]);
}

TEST(FlatListsOfAnIndex, AreTheSameWhateverTheHistory) {
  const Matrix<float> base = clustered(rows, 1), queries = clustered(1500, 2);
  Index whole = make_index("Flat", dim), changed = make_index("Flat", dim);
  std::vector<Id> ids(static_cast<std::size_t>(rows));
  std::iota(ids.begin(), ids.end(), 100);
  whole.add(base.view(), ids);
  whole.remove(std::vector<Id>{107, 30000});
  // The last half first, in pieces of different sizes, some rows of which were others before.
  const auto piece = [&](std::int64_t begin, std::int64_t end) {
    changed.add(base.view().rows(begin, end),
                std::span(ids).subspan(static_cast<std::size_t>(begin),
                                       static_cast<std::size_t>(end - begin)));
  };
  piece(35000, rows), piece(20000, 35000), piece(100, 20000), piece(50, 100), piece(0, 50);
  changed.remove(std::vector<Id>{107, 30000, 30001});
  changed.add(base.view().rows(29901, 29902), std::vector<Id>{30001});
  whole.tune(k), changed.tune(k);
  KnnReport one, other;
  const Neighbors a = whole.search(queries.view(), k, asking(0.9), &one),
                  b = changed.search(queries.view(), k, asking(0.9), &other);
  EXPECT_EQ(one.method, "inverted-lists");
  EXPECT_EQ(other.method, "inverted-lists");
  EXPECT_EQ(one.lists.probes, other.lists.probes);
  expect_equal(a, b);
}

TEST(FlatListsOfAnIndex, AreLeftAloneWhereTheyPromiseNothing) {
  const Matrix<float> base = clustered(rows, 1), queries = clustered(1500, 2);
  Index index = make_index("Flat", dim);
  index.add(base.view());
  index.tune(k);
  KnnReport report;
  const auto method_of = [&](AnyMatrixView asked, const SearchOptions& options,
                             std::int64_t wanted = k) {
    index.search(asked, wanted, options, &report);
    EXPECT_NE(report.promise.recall_argument, "none");
    return report.method;
  };
  EXPECT_EQ(method_of(queries.view(), asking(0.9)), "inverted-lists");
  // From elsewhere, many and few.
  const Matrix<float> far = clustered(1500, 3, 5);
  EXPECT_NE(method_of(far.view(), asking(0.9)), "inverted-lists");
  EXPECT_NE(method_of(far.view().rows(0, 100), asking(0.9)), "inverted-lists");
  // Filtered, another k that was not calibrated, a limited memory, another method, one query of a
  // small index.
  SearchOptions filtered = asking(0.9);
  filtered.filter = IdFilter::of_ids(std::vector<Id>{1, 2, 3, 5, 8});
  EXPECT_NE(method_of(queries.view(), filtered), "inverted-lists");
  EXPECT_NE(method_of(queries.view(), asking(0.9), k + 1), "inverted-lists");
  SearchOptions limited = asking(0.9);
  limited.memory = std::int64_t{1} << 30;
  EXPECT_NE(method_of(queries.view(), limited), "inverted-lists");
  SearchOptions reduced = asking(0.9);
  reduced.method.kind = Method::partial_reduce;
  EXPECT_EQ(method_of(queries.view(), reduced), "partial-reduce");
  // Errors are those of every search.
  Matrix<float> wrong = clustered(1500, 2);
  wrong.row(7)[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(index.search(wrong.view(), k, asking(0.9)), InvalidArgument);
  EXPECT_THROW(index.search(queries.view(), k, asking(1.5)), InvalidArgument);
}

TEST(FlatListsOfAnIndex, AreTunedByQueriesToo) {
  const Matrix<float> base = clustered(rows, 1), far = clustered(1500, 3, 1.3f);
  Index index = make_index("Flat", dim);
  index.add(base.view());
  const Neighbors truth = index.search(far.view(), k);
  index.tune(k, clustered(1500, 4, 1.3f).view());
  KnnReport report;
  const Neighbors found = index.search(far.view(), k, asking(0.8), &report);
  EXPECT_EQ(report.method, "inverted-lists");
  EXPECT_GE(recall_of(found, truth), 0.8);
  EXPECT_THROW(index.tune(k, Matrix<float>(5, 3).view()), ShapeMismatch);
}

TEST(FlatListsOfAnIndex, ServeManyThreadsWhileTheyAreMade) {
  const Matrix<float> base = clustered(20000, 1), queries = clustered(400, 2);
  Index index = make_index("Flat", dim);
  index.add(base.view());
  const Neighbors truth = index.search(queries.view(), k);
  std::atomic<bool> tuned = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      SearchOptions options = asking(0.8);
      options.threads = 1;
      for (bool last = false; !last;) {
        last = tuned;
        KnnReport report;
        const Neighbors found = index.search(queries.view(), k, options, &report);
        EXPECT_NE(report.promise.recall_argument, "none");
        EXPECT_GE(recall_of(found, truth), 0.75);
        EXPECT_GT(index.memory_bytes(), 0);
        // What leaves, comes back, and takes the lists with it.
        if (t == 0 && last) index.replace(std::vector<Id>{7}, base.view().rows(7, 8));
      }
    });
  index.tune(k, {}, {.threads = 1});
  tuned = true;
  for (std::thread& thread : threads) thread.join();
  expect_equal(index.search(queries.view(), k), truth);
}

TEST(FlatListsOfAnIndex, StopWhenToldSo) {
  const Matrix<float> base = clustered(rows, 1), queries = clustered(1500, 2);
  Index index = make_index("Flat", dim);
  index.add(base.view());
  EXPECT_THROW(index.tune(k, {}, {.progress = [](std::string_view, double) { return false; }}),
               Cancelled);
  const Neighbors truth = index.search(queries.view(), k);
  index.tune(k);
  EXPECT_GE(recall_of(index.search(queries.view(), k, asking(0.9)), truth), 0.9);
}

}  // namespace
}  // namespace knear
