// tests/index/coarse_index_test.cpp -- inverted lists whose centroids are found by an index: which
// lists that names, and that everything else is as with centroids that are all compared.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "knear/index/quantizers/coarse_quantizer.hpp"
#include "knear/knn/knn.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

constexpr Clusters many{.count = 40, .spread = 0.5};

// hold_out: of what transforms learn from too, where there are lists.
Index filled(const std::string& factory, Metric metric, MatrixView<float> base,
             bool hold_out = true) {
  Index index = make_index(factory, base.cols(), metric);
  index.train(base, {.hold_out = hold_out});
  index.add(base);
  return index;
}

SearchOptions probing(std::int64_t probes) {
  SearchOptions out;
  out.method.probes = probes;
  return out;
}

const detail::CoarseQuantizer& coarse_of(const Index& index) {
  return *index.body().one().state()->coarse;
}

struct Case {
  std::string factory;
  Metric metric;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.factory << ' ' << name_of(one.metric);
}

class CoarseIndex : public testing::TestWithParam<Case> {
 protected:
  const std::string factory = GetParam().factory;
  const Metric metric = GetParam().metric;
  const Matrix<float> base = clustered(9000, 12, 1, many), queries = clustered(60, 12, 2, many);
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, CoarseIndex,
    testing::Values(
        Case{"IVF300(IVF16,Flat),Flat", Metric::l2}, Case{"IVF300(IVF16,Flat),Flat", Metric::ip},
        Case{"IVF300(IVF16,Flat),Flat", Metric::cosine}, Case{"IVF300(SQfp16),Flat", Metric::ip},
        Case{"IVF300(SQ8),Flat", Metric::ip}, Case{"IVF300(IVF16,SQ8,RFlat),Flat", Metric::ip},
        Case{"IVF300(IVF16,SQ8),Flat", Metric::l2}, Case{"IVF300(PQ4,RFlat),Flat", Metric::cosine},
        Case{"IVF300(PCA11,IVF16,Flat),Flat", Metric::l2},
        Case{"PCA8,IVF300(IVF16,Flat),Flat", Metric::l2}),
    [](const auto& p) {
      std::string name = p.param.factory + "_" + std::string(name_of(p.param.metric));
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST_P(CoarseIndex, NamesEachListOnceAndFewListsAreTheFirstOfMany) {
  const Index index = filled(factory, metric, base.view());
  EXPECT_EQ(index.description(), factory);
  const detail::CoarseQuantizer& coarse = coarse_of(index);
  ASSERT_TRUE(coarse.indexes().plain);
  EXPECT_EQ(coarse.indexes().lifted != nullptr, metric == Metric::ip);
  const auto& transform = index.body().one().state()->transform;
  const Matrix<float> inner = transform ? transform->apply(queries.view(), 1) : Matrix<float>();
  const MatrixView<float> asked = transform ? inner.view() : queries.view();
  const Neighbors all = coarse.probe(asked, 300, 2);
  for (std::int64_t q = 0; q < 60; ++q) {
    const Id* ids = all.ids.row(q);
    EXPECT_EQ(std::set<Id>(ids, ids + 300).size(), 300u);
    EXPECT_TRUE(std::is_sorted(all.distances.row(q), all.distances.row(q) + 300));
  }
  for (const std::int64_t probes : {1, 2, 7, 60, 150, 299}) {
    const Neighbors few = coarse.probe(asked, probes, 1);
    for (std::int64_t q = 0; q < 60; ++q)
      for (std::int64_t p = 0; p < probes; ++p) {
        ASSERT_EQ(few.ids.row(q)[p], all.ids.row(q)[p]) << probes << ' ' << q << ' ' << p;
        ASSERT_EQ(few.distances.row(q)[p], all.distances.row(q)[p]);
      }
  }
}

TEST_P(CoarseIndex, FindsNearlyTheListsOfCentroidsThatAreAllCompared) {
  const Index index = filled(factory, metric, base.view());
  const std::string inner = factory.substr(factory.find("IVF300"));
  const std::string plain =
      factory.substr(0, factory.find("IVF300")) + "IVF300" + inner.substr(inner.find("),") + 1);
  const Index compared = filled(plain, metric, base.view());
  const Matrix<float> a = index.centroids(), b = compared.centroids();
  ASSERT_TRUE(std::equal(a.data(), a.data() + a.rows() * a.cols(), b.data()));
  // Rows are in the same lists, and queries find the same rows, but for few.
  EXPECT_EQ(index.lists_of(index.ids()), compared.lists_of(index.ids()));
  const Neighbors found = index.search(queries.view(), 10, probing(10)),
                  wanted = compared.search(queries.view(), 10, probing(10));
  std::int64_t there = 0;
  for (std::int64_t q = 0; q < 60; ++q)
    for (std::int64_t i = 0; i < 10; ++i)
      there += std::find(found.ids.row(q), found.ids.row(q) + 10, wanted.ids.row(q)[i]) !=
               found.ids.row(q) + 10;
  EXPECT_GE(there, 560);
}

TEST_P(CoarseIndex, IsExactAtAllProbesAndSaysTheTruthAtFewer) {
  const Index index = filled(factory, metric, base.view(), false);
  const std::string before = factory.substr(0, factory.find("IVF300"));
  const Index flat = filled(before + "Flat", metric, base.view());
  const Neighbors truth = flat.search(queries.view(), 10);
  expect_equal(index.search(queries.view(), 10, probing(300)), truth);
  SearchOptions options;
  options.method.recall = 1;
  expect_equal(index.search(queries.view(), 10, options), truth);
  if (!before.empty()) return;  // of transformed vectors nothing is proven
  for (const std::int64_t probes : {3, 40}) {
    options = probing(probes);
    options.method.lists.certify = true;
    KnnReport report;
    const Neighbors found = index.search(queries.view(), 10, options, &report);
    const std::set<std::int64_t> open(report.promise.uncertified.begin(),
                                      report.promise.uncertified.end());
    for (std::int64_t q = 0; q < 60; ++q)
      EXPECT_TRUE(open.contains(q) ||
                  std::equal(found.ids.row(q), found.ids.row(q) + 10, truth.ids.row(q)))
          << q;
  }
}

TEST_P(CoarseIndex, IsTheSameForAnyBatchThreadsAndHistory) {
  Index index = filled(factory, metric, base.view());
  Index slowly = make_index(factory, 12, metric);
  slowly.train(base.view(), {.threads = 1});
  for (std::int64_t begin = 0, step = 1; begin < 9000; begin += step, step = 2 * step + 3)
    slowly.add(base.view().rows(begin, std::min<std::int64_t>(9000, begin + step)));
  EXPECT_EQ(index.list_sizes(), slowly.list_sizes());
  SearchOptions options = probing(6);
  const Neighbors all = index.search(queries.view(), 10, options);
  expect_equal(slowly.search(queries.view(), 10, options), all);
  options.threads = 1;
  for (std::int64_t q = 0; q < 60; q += 7) {
    const Neighbors one = index.search(queries.view().rows(q, q + 1), 10, options);
    EXPECT_TRUE(std::equal(one.ids.row(0), one.ids.row(0) + 10, all.ids.row(q)));
  }
  // More lists for queries that find too few, none of them twice.
  options = probing(1), options.method.lists.widen = true;
  const Neighbors wide = index.search(queries.view(), 500, options);
  for (std::int64_t q = 0; q < 60; ++q) {
    const Id* ids = wide.ids.row(q);
    EXPECT_EQ(std::set<Id>(ids, ids + 500).size(), 500u);
  }
  // As many as a recall takes, query by query.
  options = {}, options.method.recall = 0.9;
  KnnReport report;
  const Neighbors nine = index.search(queries.view(), 10, options, &report);
  EXPECT_LT(report.lists.probes, 300);
  for (std::int64_t q = 0; q < 60; ++q) {
    const Id* ids = nine.ids.row(q);
    EXPECT_EQ(std::set<Id>(ids, ids + 10).size(), 10u);
  }
  std::vector<Id> odd;
  for (Id id = 1; id < 9000; id += 2) odd.push_back(id);
  index.remove(odd), slowly.remove(odd);
  slowly.compact();
  expect_equal(slowly.search(queries.view(), 10, probing(6)),
               index.search(queries.view(), 10, probing(6)));
}

TEST_P(CoarseIndex, IsKeptByFilesTrainedOrNot) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("coarse_" + std::to_string(getpid()) + ".knear"))
          .string();
  Index untrained = make_index(factory, 12, metric);
  untrained.save(path);
  Index again = Index::load(path);
  EXPECT_EQ(again.description(), factory);
  EXPECT_FALSE(again.is_trained());
  again.train(base.view());
  again.add(base.view());
  Index index = filled(factory, metric, base.view());
  expect_equal(again.search(queries.view(), 10, probing(6)),
               index.search(queries.view(), 10, probing(6)));
  index.save(path);
  Index loaded = Index::load(path);
  EXPECT_EQ(loaded.description(), factory);
  for (const std::int64_t probes : {1, 6, 290})
    expect_equal(loaded.search(queries.view(), 10, probing(probes)),
                 index.search(queries.view(), 10, probing(probes)));
  // It grows as the other does.
  const Matrix<float> more = clustered(500, 12, 3, many);
  loaded.add(more.view()), index.add(more.view());
  EXPECT_EQ(loaded.list_sizes(), index.list_sizes());
  loaded.save(path);
  loaded.merge(Index::load(path), MergeIds::shifted);
  EXPECT_EQ(loaded.size(), 19000);
  if (metric == Metric::l2) {
    write_faiss(index, path);
    const Index from_faiss = Index::load(path);
    EXPECT_EQ(from_faiss.list_sizes(), index.list_sizes());
    if (factory.find("PCA") == factory.npos) {  // whose name is lost, and what it took away
      EXPECT_EQ(from_faiss.description(), factory);
      for (const std::int64_t probes : {1, 6, 290})
        expect_equal(from_faiss.search(queries.view(), 10, probing(probes)),
                     index.search(queries.view(), 10, probing(probes)));
    }
  } else {
    EXPECT_THROW(write_faiss(index, path + ".faiss"), InvalidArgument);
  }
  std::filesystem::remove(path);
}

TEST(CoarseIndexOfCodes, TakesCodesInItsLists) {
  const Matrix<float> base = clustered(9000, 12, 1, many), queries = clustered(60, 12, 2, many);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Index index = filled("IVF300(IVF16,Flat),PQ6,RFlat", metric, base.view()),
                compared = filled("IVF300,PQ6,RFlat", metric, base.view());
    SearchOptions options = probing(300);
    options.method.codes.refine_factor = 40;
    const Neighbors truth = filled("Flat", metric, base.view()).search(queries.view(), 10);
    expect_equal(index.search(queries.view(), 10, options),
                 compared.search(queries.view(), 10, options));
    const Neighbors found = index.search(queries.view(), 10, options);
    std::int64_t same = 0;
    for (std::int64_t q = 0; q < 60; ++q) same += found.ids.row(q)[0] == truth.ids.row(q)[0];
    EXPECT_GE(same, 58);
  }
}

// Beyond 131,072 lists rows are assigned by the index too.
TEST(CoarseIndexOfManyLists, PutsRowsWhereQueriesLook) {
  const Matrix<float> all = clustered(140000, 2, 1, many);
  const MatrixView<float> base = all.view().rows(0, 25000);  // each is compared with many
  Index index = make_index("IVF132000(IVF400,Flat),Flat", 2);
  index.train(all.view(), {.iterations = 1});
  // Trained once: by how many threads makes no difference, as the kinds above show.
  const std::string path =
      (std::filesystem::temp_directory_path() / ("coarse_" + std::to_string(getpid()) + ".knear"))
          .string();
  index.save(path);
  Index other = Index::load(path);
  std::filesystem::remove(path);
  index.add(base);
  for (std::int64_t begin = 0; begin < 25000; begin += 7777)
    other.add(base.rows(begin, std::min<std::int64_t>(25000, begin + 7777)), {.threads = 1});
  EXPECT_EQ(index.lists_of(index.ids()), other.lists_of(other.ids()));
  const Matrix<float> centroids = index.centroids();
  const Neighbors nearest = knn(base.rows(0, 2000), centroids.view(), 1);
  std::vector<Id> ids(2000);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<std::int64_t> of = index.lists_of(ids);
  std::int64_t same = 0;
  for (std::int64_t i = 0; i < 2000; ++i)
    same += of[static_cast<std::size_t>(i)] == nearest.ids.row(i)[0];
  EXPECT_GE(same, 1980);
  // A row finds itself in the first list, or its twin.
  const Neighbors found = index.search(base.rows(0, 2000), 1, probing(1));
  for (std::int64_t i = 0; i < 2000; ++i) EXPECT_EQ(found.distances.row(i)[0], 0) << i;
}

TEST(CoarseIndexTraining, SaysWhatIsMissing) {
  Index index = make_index("IVF300(IVF16,Flat),Flat", 12);
  const Matrix<float> base = clustered(9000, 12, 1, many);
  EXPECT_THROW(index.add(base.view()), InvalidArgument);
  EXPECT_THROW(index.train(base.view().rows(0, 299)), InvalidArgument);
  EXPECT_FALSE(index.is_trained());
  index.train(base.view().rows(0, 300));
  EXPECT_TRUE(index.is_trained());
}

// Each list keeps its vectors, its lift and its place among the nearest, under its new number.
TEST(CoarseQuantizer, NumbersOfListsMayBeOthers) {
  const Matrix<float> base = clustered(4000, 8, 3, many), queries = clustered(40, 8, 4, many);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Index index = filled("IVF50,Flat", metric, base.view());
    const detail::CoarseQuantizer& coarse = coarse_of(index);
    std::vector<std::uint32_t> order(50);
    for (std::uint32_t i = 0; i < 50; ++i) order[i] = (7 * i + 3) % 50;
    const auto other = coarse.renumbered(order);
    EXPECT_EQ(metric == Metric::ip, coarse.lifts().longest > 0);
    EXPECT_EQ(other->lifts().longest, coarse.lifts().longest);
    const auto is_of = coarse.assign(base.view(), 1, {}),
               is_now = other->assign(base.view(), 1, {});
    for (std::size_t row = 0; row < is_of.list_of.size(); ++row)
      ASSERT_EQ(order[is_now.list_of[row]], is_of.list_of[row]) << row;
    const Neighbors near = coarse.probe(queries.view(), 50, 1),
                    now = other->probe(queries.view(), 50, 1);
    for (std::int64_t i = 0; i < 40; ++i)
      for (std::int64_t j = 0; j < 50; ++j) {
        ASSERT_EQ(order[static_cast<std::size_t>(now.ids.row(i)[j])], near.ids.row(i)[j]);
        ASSERT_EQ(now.distances.row(i)[j], near.distances.row(i)[j]);
      }
  }
}

}  // namespace
}  // namespace knear
