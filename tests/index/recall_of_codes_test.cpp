// tests/index/recall_of_codes_test.cpp -- recall as an argument of searches of codes: the
// neighbours by which it is calibrated, that it is met, and that it is refused where it cannot be.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/knn.hpp"
#include "tests/index/index_model.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

// Ids of any size come back as they are, at 8 bytes a neighbour while none needs more.
TEST(Known, IdsOfAnySizeAreKept) {
  using Known = detail::KnownNeighbors;
  const std::vector<Known::Row> small{{1.0f, 7}, {2.0f, 0xffffffff}};
  const std::vector<Known::Row> large{{1.0f, 7}, {2.0f, Id{1} << 32}, {2.5f, (Id{1} << 62) + 5}};
  EXPECT_EQ(Known::Rows(small).all(), small);
  EXPECT_EQ(Known::Rows(large).all(), large);
  EXPECT_EQ(Known::Rows(small).bytes(), 2 * 8);
  EXPECT_EQ(Known::Rows(large).bytes(), 3 * 12);
}

// Without vectors that are held out nothing is kept to know recall by, and nothing is promised
// until somebody tunes the index.
TEST(Known, NothingIsKeptWhereNothingIsHeldOut) {
  const Matrix<float> base = clustered(6000, 16, 9);
  for (const char* name : {"IVF16,PQ4", "PQ4", "SQ8", "IVF16,PQ4x4,Refine(SQ8)"}) {
    SCOPED_TRACE(name);
    std::int64_t bytes[2];
    for (const bool hold_out : {false, true}) {
      Index index = make_index(name, 16);
      index.train(base.view(), {.hold_out = hold_out});
      index.add(base.view());
      bytes[hold_out] = index.memory_bytes();
      if (hold_out) continue;
      SearchOptions options;
      options.method.recall = 0.2;
      EXPECT_THROW(index.search(base.view().rows(0, 10), 5, options), InvalidArgument);
      index.tune(5, {}, base.view(), {});
      EXPECT_NO_THROW(index.search(base.view().rows(0, 10), 5, options));
    }
    EXPECT_EQ(bytes[1] - bytes[0], 600 * (128 * 8 + 16 * 4));
  }
}

// Principal components and rotations were learned from all rows.
TEST(Known, NothingIsLearnedFromWhatIsHeldOut) {
  for (const char* name : {"PCA4,IVF4,Flat", "OPQ2_4,IVF4,PQ2x4", "PCA6,OPQ2,IVF4,PQ2x4"}) {
    SCOPED_TRACE(name);
    constexpr std::int64_t rows = 200;
    const auto centroids = [&](const Matrix<float>& x) {
      Index index = make_index(name, 8);
      index.train(x.view(), {.threads = 1});
      return index.centroids();
    };
    Matrix<float> x = clustered(rows, 8, 1);
    const Matrix<float> usual = centroids(x);
    const auto bytes = static_cast<std::size_t>(usual.rows() * usual.cols()) * sizeof(float);
    // Of a tenth of the rows what they are makes no difference.
    std::int64_t unused = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<float> kept(x.row(row), x.row(row) + 8);
      for (std::int64_t j = 0; j < 8; ++j) x.row(row)[j] += static_cast<float>(j % 3 + 1);
      const Matrix<float> other = centroids(x);
      unused += std::memcmp(other.data(), usual.data(), bytes) == 0;
      std::copy_n(kept.data(), 8, x.row(row));
    }
    EXPECT_EQ(unused, rows / 10);
  }
}

// The neighbours that an index keeps to measure recall by stay those of its vectors.
TEST(Known, NeighboursFollowEveryChange) {
  Random random(3);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    OpenIndex index(make_index("IVF8,PQ4", 8, metric));
    const Matrix<float> base = clustered(1500, 8, 1);
    index.train(base.view());
    std::map<Id, std::vector<float>> rows;
    const auto check = [&] {
      const auto known = index.state()->known;
      ASSERT_EQ(known->queries().rows(), 1000);
      for (std::int64_t q = 0; q < 1000; q += 37) {
        const auto& list = known->lists()[static_cast<std::size_t>(q)];
        std::vector<detail::KnownNeighbors::Row> want;
        for (const auto& [id, row] : rows)
          want.emplace_back(
              static_cast<float>(order_key(
                  metric,
                  reference_distance(metric, static_cast<const float*>(known->queries().row(q)),
                                     row.data(), 8))),
              id);
        std::sort(want.begin(), want.end());
        ASSERT_LE(list.rows.size(), want.size());
        if (list.all) {
          ASSERT_EQ(list.rows.size(), want.size());
        }
        want.resize(list.rows.size());
        ASSERT_EQ(list.rows.all(), want);
      }
    };
    const auto add = [&](const Matrix<float>& x, Id first) {
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < x.rows(); ++i) {
        ids.push_back(first + 2 * i);
        rows[ids.back()].assign(x.row(i), x.row(i) + 8);
      }
      index.add(x.view(), ids);
    };
    add(clustered(40, 8, 5), 100000);
    check();
    EXPECT_TRUE(index.state()->known->lists()[0].all);
    add(base, 0);
    check();
    EXPECT_EQ(index.state()->known->lists()[0].rows.size(), 128u);
    std::vector<Id> gone;
    for (const auto& [id, row] : rows)
      if (random.below(3) == 0) gone.push_back(id);
    index.remove(gone);
    for (const Id id : gone) rows.erase(id);
    check();
    add(clustered(300, 8, 6), 200000);
    check();
    std::string file = std::filesystem::temp_directory_path() / "knear-codes-XXXXXX";
    close(mkstemp(file.data()));
    index.save(file);
    index = OpenIndex(Index::load(file));
    unlink(file.c_str());
    check();
    EXPECT_GE(index.state()->known->truth(10).queries.size(), 900u);
    EXPECT_TRUE(index.state()->known->truth(129).queries.empty());
  }
}

// What several indexes know of their rows is what one knows of all; of rows that a part does not
// hold, it says nothing.
TEST(Known, NeighboursOfSeveralIndexes) {
  using Known = detail::KnownNeighbors;
  const Matrix<float> base = clustered(3000, 8, 1);
  const auto nothing = Known::of(base.view(), Metric::l2, 1);
  std::vector<Id> ids(3000);
  std::iota(ids.begin(), ids.end(), 0);
  const auto add = [&](const std::shared_ptr<const Known>& to, Id from, Id end) {
    return to->with(base.view().rows(from, end),
                    std::span(ids).subspan(static_cast<std::size_t>(from),
                                           static_cast<std::size_t>(end - from)),
                    2);
  };
  const auto whole = add(nothing, 0, 3000);
  // The second knows of rows of the first too, with which it has nothing to do; the third is small.
  std::shared_ptr<const Known> parts[] = {
      add(nothing, 0, 1400), add(add(nothing, 0, 1400), 1400, 2970), add(nothing, 2970, 3000)};
  const auto holds = [](std::size_t part, Id id) {
    return part == (id < 1400 ? 0u : id < 2970 ? 1u : 2u);
  };
  const auto check = [&](const Known& both, std::size_t least) {
    for (std::size_t q = 0; q < both.lists().size(); ++q) {
      const auto got = both.lists()[q].rows.all();
      auto wanted = whole->lists()[q].rows.all();
      ASSERT_GE(got.size(), least);
      wanted.resize(std::min(wanted.size(), got.size()));
      ASSERT_EQ(got, wanted) << "query " << q;
      ASSERT_FALSE(both.lists()[q].all);
    }
  };
  check(*Known::together(parts, holds, 2), 128);
  // What was removed leaves no gap that the others would fill.
  parts[0] = parts[0]->without(std::span(ids).first(1400));
  const auto rest = Known::together(parts, holds, 2);
  for (const auto& list : rest->lists()) ASSERT_EQ(list.rows.size(), 0u);
  // A few rows are known completely.
  std::shared_ptr<const Known> few[] = {add(nothing, 0, 40), add(nothing, 40, 90)};
  const auto all = Known::together(
      few, [](std::size_t part, Id id) { return part == (id < 40 ? 0u : 1u); }, 1);
  for (const auto& list : all->lists()) {
    ASSERT_EQ(list.rows.size(), 90u);
    ASSERT_TRUE(list.all);
  }
  // Of other vectors, or of nothing, nothing is known together.
  few[1] = Known::of(base.view(), Metric::l2, 2);
  EXPECT_EQ(Known::together(few, holds, 1), nullptr);
  few[1] = nullptr;
  EXPECT_EQ(Known::together(few, holds, 1), nullptr);
}

// As many neighbours as are kept, though each vector is a row and no neighbour of its own; with the
// vectors at hand any number.
TEST(Known, NeighboursAreEnough) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Index index = make_index("IVF8,PQ8", 8, metric);
    const Matrix<float> base = clustered(3000, 8, 1);
    index.train(base.view());
    index.add(base.view());
    EXPECT_GT(index.tune(100).back().promised_recall, 0.3);
    EXPECT_THROW(index.tune(300), InvalidArgument);
    EXPECT_GT(index.tune(300, {}, base.view(), {}).back().promised_recall, 0.3);
    EXPECT_GT(index.tune(300, base.view().rows(0, 500), base.view(), {}).back().promised_recall,
              0.3);
    // What came later is known too.
    index.add(clustered(200, 8, 2).view());
    EXPECT_GT(index.tune(250).back().promised_recall, 0.3);
  }
}

// What was seen of other rows is found out again, whatever their number.
TEST(RecallOfCodes, IsForgottenOnceManyRowsAreOthers) {
  for (const char* name : {"IVF8,PQ4", "IVF8,Flat", "PQ4"}) {
    SCOPED_TRACE(name);
    OpenIndex index(make_index(name, 8));
    const Matrix<float> base = clustered(2000, 8, 1);
    index.train(base.view());
    index.add(base.view());
    const auto replace = [&](Id begin, Id end) {
      std::vector<Id> ids(static_cast<std::size_t>(end - begin));
      std::iota(ids.begin(), ids.end(), begin);
      index.replace(ids, base.view().rows(begin, end));
    };
    const auto known = [&] { return index.state()->recall->all().size(); };
    index.tune(10);
    replace(0, 200);
    EXPECT_EQ(known(), 1u);
    std::string path = std::filesystem::temp_directory_path() / "knear-changed-XXXXXX";
    close(mkstemp(path.data()));
    index.save(path);
    index = OpenIndex(Index::load(path));
    unlink(path.c_str());
    EXPECT_EQ(known(), 1u);
    replace(200, 300);
    EXPECT_EQ(known(), 0u) << "300 taken out and 300 added are more than a quarter of 2,000";
    index.tune(10);
    replace(300, 400);
    EXPECT_EQ(known(), 1u);
  }
}

// What `exact` means where rows are in lists or codes.
TEST(RecallOfCodes, ExactIsAllThereIs) {
  const Matrix<float> base = clustered(2000, 8, 1), queries = clustered(20, 8, 2);
  const auto made = [&](const char* name) {
    Index index = make_index(name, 8);
    index.train(base.view());
    index.add(base.view());
    return index;
  };
  const SearchMethod exact{.kind = Method::exact};
  KnnReport report;
  const Index lists = made("IVF8,Flat"), codes = made("IVF8,PQ4"), plain = made("PQ4");
  const Neighbors truth = knn(queries.view(), base.view(), 5);
  const Neighbors got = lists.search(queries.view(), 5, {.method = exact}, &report);
  for (std::int64_t q = 0; q < 20; ++q)
    for (std::int64_t j = 0; j < 5; ++j) EXPECT_EQ(got.ids.row(q)[j], truth.ids.row(q)[j]);
  EXPECT_EQ(report.promise.recall_argument, "exact");
  EXPECT_EQ(report.promise.certified_queries, 20);
  EXPECT_TRUE(report.promise.uncertified.empty());
  for (const Index* index : {&codes, &plain}) {
    std::vector<Id> ids(2000);
    std::iota(ids.begin(), ids.end(), 0);
    const AnyMatrix decoded = index->reconstruct(ids);
    const Neighbors by_codes = index->search(queries.view(), 5, {.method = exact}, &report);
    EXPECT_EQ(report.promise.recall_argument, "none");
    EXPECT_EQ(report.note, "exact with respect to the vectors that codes stand for");
    const Neighbors want = knn(queries.view(), decoded, 5);
    for (std::int64_t q = 0; q < 20; ++q)
      EXPECT_NEAR(by_codes.distances.row(q)[4], want.distances.row(q)[4], 1e-4);
  }
  const auto refused = [&](const Index& index, SearchMethod method) {
    method.kind = Method::exact;
    try {
      index.search(queries.view(), 5, {.method = method});
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refused(lists, {.recall = 0.9}), "method is exact, but recall is 0.9");
  EXPECT_EQ(refused(codes, {.probes = 3}), "method is exact, but probes is 3");
  EXPECT_EQ(refused(plain, {.recall = 0.5}), "method is exact, but recall is 0.5");
  EXPECT_EQ(refused(lists, {.recall = 1.0}), "no error");
  EXPECT_NE(refused(codes, {.recall = 1.0}).find("is the highest that is promised"),
            std::string::npos);
  EXPECT_NE(refused(made("IVF8,PQ4,RFlat"), {}).find("refines only what its codes find"),
            std::string::npos);
}

double recall_of(const Neighbors& got, const Neighbors& truth, std::int64_t k) {
  double sum = 0;
  for (std::int64_t q = 0; q < got.ids.rows(); ++q)
    for (std::int64_t j = 0; j < k; ++j)
      sum += std::count(got.ids.row(q), got.ids.row(q) + k, truth.ids.row(q)[j]) > 0;
  return sum / static_cast<double>(got.ids.rows() * k);
}

// Rows that come sorted: the first of them are easy to tell apart by their codes.
TEST(RecallOfCodes, IsThatOfAllRowsNotOfTheFirst) {
  Random random(5);
  Matrix<float> base(8000, 16), queries(1000, 16);
  const auto fill = [&](Matrix<float>& out) {
    for (std::int64_t i = 0; i < out.rows(); ++i)
      for (std::int64_t j = 0; j < 16; ++j) {
        const double x = random.uniform();
        out.row(i)[j] =
            static_cast<float>(2 * i >= out.rows() ? (j == 0 ? 100 * x : 0) : 5 * x - 50);
      }
  };
  fill(base), fill(queries);
  Index index = make_index("PQ4", 16);
  index.train(base.view());
  index.add(base.view());
  const Neighbors truth = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  const double highest = index.tune(10).back().promised_recall;
  const Neighbors got = index.search(queries.view(), 10, {.method = {.recall = highest}});
  EXPECT_GE(recall_of(got, truth, 10), highest);
}

// What two tests of recall are trained on: with more rows training takes most of their time and
// nothing else is seen. Queries there are from elsewhere anyway.
constexpr std::int64_t trained_rows = 2000;

// Queries that are not like the rows, and rows that the index has lost sight of.
TEST(RecallOfCodes, IsTunedByTheVectorsThatSomeoneKept) {
  const Matrix<float> base = clustered(4000, 16, 1);
  Matrix<float> far = clustered(2200, 16, 3);
  for (std::int64_t i = 0; i < 2200 * 16; ++i) far.data()[i] += i % 3 == 0 ? 0.2f : 0.0f;
  for (const char* name : {"IVF16,PQ8x4,RFlat", "PQ8", "PCA14,IVF16,PQ7,Refine(SQ8)"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 16);
    index.train(base.view().rows(0, trained_rows));
    index.add(base.view());
    // Half of the rows go, of which it knew most neighbours.
    std::vector<Id> odd, even;
    for (Id id = 0; id < 4000; ++id) (id % 2 == 0 ? even : odd).push_back(id);
    index.remove(odd);
    const MatrixView<float> asked = far.view().rows(0, 1000), others = far.view().rows(1000, 2200);
    const std::vector<OperatingPoint> points = index.tune(10, asked, base.view(), {});
    ASSERT_FALSE(points.empty());
    const Neighbors truth = knn(others, base.view(), 10, {.filter = RowFilter::of_ids(even, 4000)});
    for (const double share : {0.7, 1.0}) {
      const double recall = share * points.back().promised_recall;
      KnnReport report;
      const Neighbors got = index.search(others, 10, {.method = {.recall = recall}}, &report);
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
      EXPECT_GE(recall_of(got, truth, 10), recall - 0.01) << recall;
    }
    // What is kept in a file, and by what it follows from then on.
    std::string path = std::filesystem::temp_directory_path() / "knear-tuned-XXXXXX";
    close(mkstemp(path.data()));
    index.save(path);
    Index loaded = Index::load(path);
    EXPECT_EQ(loaded.tune(10).back().promised_recall, points.back().promised_recall);
    std::filesystem::remove(path);
    // Under other ids, of rows in another order, by rows of the base.
    Index renamed = make_index(name, 16);
    renamed.train(base.view().rows(0, trained_rows));
    std::vector<Id> ids(4000);
    for (std::size_t i = 0; i < 4000; ++i) ids[i] = 100000 - 7 * static_cast<Id>(i);
    renamed.add(base.view(), ids);
    Index nothing = make_index(name, 16);
    nothing.train(base.view().rows(0, trained_rows));
    nothing.merge(renamed);
    const bool has_vectors = std::string(name).ends_with("RFlat");  // which tell what is nearest
    if (!has_vectors) {
      EXPECT_THROW(nothing.tune(10), InvalidArgument);
    }
    const auto own = nothing.tune(10, {}, base.view(), ids);
    KnnReport report;
    const double recall = own.back().promised_recall;
    nothing.search(clustered(500, 16, 9).view(), 10, {.method = {.recall = recall}}, &report);
    EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;

    const auto refused = [&](auto call) {
      try {
        call();
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string("no error");
    };
    EXPECT_EQ(refused([&] { nothing.tune(10, {}, base.view(), {}); }).substr(0, 9), "base has ");
    EXPECT_EQ(refused([&] { nothing.tune(10, {}, base.view().rows(0, 200), ids); }),
              "ids are 4000, base is 200 rows");
    EXPECT_EQ(refused([&] { nothing.tune(10, asked.rows(0, 50), base.view(), ids); }),
              "queries have 50 rows, but recall of codes is calibrated by 100 at least");
    EXPECT_EQ(refused([&] { nothing.tune(10, {}, Matrix<float>(200, 3).view(), {}); }),
              "base has 3 columns, index has 16");
    if (!has_vectors) {
      EXPECT_NE(refused([&] { nothing.tune(10, asked); }).find("without base"), std::string::npos);
    }
    ids[3] = ids[4];
    EXPECT_NE(refused([&] { nothing.tune(10, {}, base.view(), ids); }), "no error");
  }
  Index few = make_index("PQ8x4", 16);
  few.train(base.view().rows(0, 50));
  few.add(base.view().rows(0, 50));
  try {
    few.tune(10, {}, base.view().rows(0, 50), {});
    ADD_FAILURE();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "base has 50 rows, but recall of codes is calibrated by 100 at least");
  }
  Index vectors = make_index("IVF8,Flat", 16);
  vectors.train(base.view());
  vectors.add(base.view());
  EXPECT_THROW(vectors.tune(10, {}, base.view(), {}), InvalidArgument);
}

TEST(RecallOfCodes, IsMetOrRefusedWithTheHighest) {
  const Matrix<float> base = clustered(8000, 16, 1), queries = clustered(1500, 16, 2);
  const Neighbors truth = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  for (const char* name :
       {"IVF16,PQ8", "IVF16,PQ8x4,RFlat", "PQ8", "SQ8", "PCA14,IVF16,PQ7,Refine(SQ8)"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 16);
    index.train(base.view());
    index.add(base.view());
    const std::vector<OperatingPoint> points = index.tune(10);
    ASSERT_FALSE(points.empty());
    const double highest = points.back().promised_recall;
    for (const double share : {0.6, 0.9, 1.0}) {
      KnnReport report;
      const double asked = highest * share;
      const Neighbors got =
          index.search(queries.view(), 10, {.method = {.recall = asked}}, &report);
      EXPECT_GE(recall_of(got, truth, 10), asked) << asked;
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.promise.promised_recall, asked);
      EXPECT_GE(report.promise.expected_recall, asked);
      // One by one it is the same answer.
      const Neighbors one =
          index.search(queries.view().rows(7, 8), 10, {.method = {.recall = asked}});
      for (std::int64_t j = 0; j < 10; ++j) EXPECT_EQ(one.ids.row(0)[j], got.ids.row(7)[j]);
    }
    if (highest < 0.999) {
      try {
        index.search(queries.view(), 10, {.method = {.recall = 0.9999}});
        ADD_FAILURE();
      } catch (const InvalidArgument& e) {
        EXPECT_NE(std::string(e.what()).find("is the highest that is promised"), std::string::npos)
            << e.what();
      }
    }
    // Of a filter and of queries from elsewhere nothing is promised, and that is said.
    KnnReport report;
    index.search(
        queries.view().rows(0, 900), 10,
        {.filter = IdFilter::of_ids(std::vector<Id>{1, 2, 3}), .method = {.recall = highest / 2}},
        &report);
    EXPECT_EQ(report.promise.recall_argument, "none");
    EXPECT_NE(report.note.find("filter"), std::string::npos);
    Matrix<float> far = clustered(200, 16, 3);
    for (std::int64_t i = 0; i < 200 * 16; ++i) far.data()[i] += 3;
    index.search(far.view(), 10, {.method = {.recall = highest / 2}}, &report);
    EXPECT_EQ(report.promise.recall_argument, "none");
    EXPECT_NE(report.note.find("unlike"), std::string::npos);
    // What was merged is not known, unless there are vectors.
    Index other = make_index(name, 16);
    other.train(base.view());
    other.add(base.view().rows(0, 4000));
    index.merge(other, MergeIds::shifted);
    if (std::string(name).ends_with("RFlat")) {
      const Neighbors got = index.search(queries.view(), 10, {.method = {.recall = 0.9}}, &report);
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
    } else {
      EXPECT_THROW(index.search(queries.view(), 10, {.method = {.recall = 0.1}}), InvalidArgument);
    }
  }
}

// Vectors beside codes tell what is nearest to any query.
TEST(RecallOfCodes, IsCalibratedByTheBatchWhereVectorsAreKept) {
  const Matrix<float> base = clustered(4000, 16, 1), queries = clustered(1500, 16, 2);
  Matrix<float> far = clustered(1500, 16, 3);
  for (std::int64_t i = 0; i < 1500 * 16; ++i) far.data()[i] += i % 3 == 0 ? 0.4f : 0.0f;
  std::vector<Id> third;
  for (Id id = 0; id < 4000; id += 3) third.push_back(id);
  for (const char* name : {"IVF16,PQ8x4,RFlat", "PQ8x4,RFlat", "PCA14,IVF16,PQ7,RFlat"})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      if (metric != Metric::l2 && std::string(name) != "IVF16,PQ8x4,RFlat") continue;
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(metric)));
      Index index = make_index(name, 16, metric);
      index.train(base.view().rows(0, trained_rows));
      index.add(base.view());
      index.remove(std::vector<Id>{5, 50, 500});
      std::vector<Id> left;
      for (Id id = 0; id < 4000; ++id)
        if (id != 5 && id != 50 && id != 500) left.push_back(id);
      const Neighbors truth = knn(far.view(), base.view(), 10,
                                  {.metric = metric, .filter = RowFilter::of_ids(left, 4000)});
      const double asked = 0.9;
      KnnReport report;
      Neighbors got = index.search(far.view(), 10, {.method = {.recall = asked}}, &report);
      EXPECT_GE(recall_of(got, truth, 10), asked);
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.promise.promised_recall, asked);
      EXPECT_NE(report.note.find("calibrated on 500 queries of this batch; tune()"),
                std::string::npos)
          << report.note;
      // Fewer are told what it takes.
      const MatrixView<float> few = far.view().rows(0, 300);
      index.search(few, 10, {.method = {.recall = asked}}, &report);
      EXPECT_EQ(report.promise.recall_argument, "none");
      EXPECT_EQ(report.promise.promised_recall, 0);
      EXPECT_NE(report.note.find("a batch of 1000 queries is calibrated by itself"),
                std::string::npos)
          << report.note;
      // So is a batch with a filter, by the rows that it leaves.
      std::vector<Id> allowed = third;
      std::erase_if(allowed,
                    [&](Id id) { return !std::binary_search(left.begin(), left.end(), id); });
      const auto filter = IdFilter::of_ids(allowed);
      got = index.search(queries.view(), 10, {.filter = filter, .method = {.recall = asked}},
                         &report);
      EXPECT_GE(recall_of(got,
                          knn(queries.view(), base.view(), 10,
                              {.metric = metric, .filter = RowFilter::of_ids(allowed, 4000)}),
                          10),
                asked);
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
      EXPECT_NE(report.note.find("filter"), std::string::npos) << report.note;
      // A filter of fewer rows than are wanted.
      got = index.search(
          queries.view(), 10,
          {.filter = IdFilter::of_ids(std::vector<Id>{1, 2}), .method = {.recall = 0.5}}, &report);
      EXPECT_EQ(got.ids.row(0)[2], no_id);
      // Tuned by such queries, few of them are promised it too.
      const auto points = index.tune(10, few);
      ASSERT_GE(points.back().promised_recall, asked);
      got = index.search(far.view().rows(300, 1500), 10, {.method = {.recall = asked}}, &report);
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.note, "");
      double found = 0;
      for (std::int64_t q = 0; q < 1200; ++q)
        for (std::int64_t j = 0; j < 10; ++j)
          found += std::count(got.ids.row(q), got.ids.row(q) + 10, truth.ids.row(q + 300)[j]) > 0;
      EXPECT_GE(found / 12000, asked - 0.005);
    }
}

// By every third of 1,500 queries all were judged, though the two between them were others.
TEST(RecallOfCodes, IsMetForBatchesWithAPeriod) {
  const Matrix<float> base = clustered(8000, 16, 1);
  Matrix<float> queries = clustered(1500, 16, 2);
  Random random(3);
  for (std::int64_t q = 0; q < 1500; ++q)
    for (std::int64_t j = 0; j < 16 && q % 3 != 0; ++j)
      queries.row(q)[j] += static_cast<float>(3 * (random.uniform() - 0.5));
  std::vector<Id> most;
  for (Id id = 0; id < 8000; ++id)
    if (id % 7 != 0) most.push_back(id);
  for (const char* name : {"IVF64,PQ8x4,RFlat", "PQ8x4,RFlat"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 16);
    index.train(base.view());
    index.add(base.view());
    for (const bool filtered : {false, true}) {
      SearchOptions options{.method = {.recall = 0.9}};
      KnnOptions exact;
      if (filtered) {
        options.filter = IdFilter::of_ids(most);
        exact.filter = RowFilter::of_ids(most, 8000);
      }
      KnnReport report;
      const Neighbors got = index.search(queries.view(), 10, options, &report);
      EXPECT_NE(report.note.find("calibrated on 500 queries of this batch"), std::string::npos)
          << report.note;
      EXPECT_GE(recall_of(got, knn(queries.view(), base.view(), 10, exact), 10), 0.895);
    }
  }
}

// What is not known to be reached among all rows may be among those that a filter leaves.
TEST(RecallOfCodes, IsRefusedByTheRowsThatAreSearched) {
  const Matrix<float> base = clustered(6000, 24, 1), queries = clustered(1000, 24, 2);
  Index index = make_index("IVF32,PQ1x4,RFlat", 24);
  index.train(base.view());
  index.add(base.view());
  const double highest = index.tune(10).back().promised_recall;
  ASSERT_LT(highest, 0.96);
  const SearchMethod method{.recall = 0.98};
  EXPECT_THROW(index.search(queries.view(), 10, {.method = method}), InvalidArgument);
  const auto filter = IdFilter::of_ids(std::vector<Id>{1, 2, 77, 1000});
  KnnReport report;
  const Neighbors got =
      index.search(queries.view(), 4, {.filter = filter, .method = method}, &report);
  EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
  EXPECT_GE(report.promise.expected_recall, 0.98);
  double found = 0;
  for (std::int64_t i = 0; i < 4000; ++i) found += got.ids.data()[i] != no_id;
  EXPECT_GE(found / 4000, 0.97);
  EXPECT_THROW(index.search(queries.view().rows(0, 10), 4, {.filter = filter, .method = method}),
               InvalidArgument);
}

// Queries from another distribution than the rows: a recall that is asked for is met by batches
// that are large enough to be calibrated by themselves, and is not promised to smaller ones.
TEST(RealData, RecallIsMetForQueriesFromElsewhere) {
  const char* named = std::getenv("KNEAR_DATA");
  const std::filesystem::path folder =
      std::filesystem::path(named && *named ? named : "../shared/data") / "bge-bible";
  if (!std::filesystem::exists(folder))
    GTEST_SKIP() << "no bge-bible in " << folder.parent_path() << ": set KNEAR_DATA";
  const io::VectorFile base_file = io::VectorFile::open((folder / "base.npy").string()),
                       query_file = io::VectorFile::open((folder / "queries.npy").string());
  const AnyMatrixView base = base_file.view(), queries = query_file.view();
  for (const auto& [name, metric] : {std::pair("IVF48,Flat", Metric::cosine),
                                     std::pair("PCA64,IVF48,PQ32x4,RFlat", Metric::ip)}) {
    SCOPED_TRACE(std::string(name) + " " + std::string(name_of(metric)));
    Index index = make_index(name, base.cols(), metric);
    index.train(base);
    index.add(base);
    const Neighbors truth = knn(queries, base, 10, {.metric = metric});
    // Lists of vectors keep what they learn of a kind of queries.
    const bool learns = !index.has_codes();
    const std::int64_t least = learns ? 256 : 1000;
    int calibrated = 0;
    for (const auto& [asked, count] : {std::pair(0.9, least - 1), std::pair(0.8, queries.rows()),
                                       std::pair(0.9, std::int64_t{1000})}) {
      KnnReport report;
      const Neighbors got =
          index.search(queries.rows(0, count), 10, {.method = {.recall = asked}}, &report);
      if (count < least) {
        EXPECT_EQ(report.promise.recall_argument, "none") << report.note;
        EXPECT_EQ(report.promise.promised_recall, 0);
        EXPECT_NE(report.note.find("a batch of " + std::to_string(least) +
                                   " queries is calibrated by itself"),
                  std::string::npos)
            << report.note;
        continue;
      }
      EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
      EXPECT_EQ(report.promise.promised_recall, asked);
      EXPECT_NE(report.note.find(learns && calibrated++ > 0
                                     ? "so recall is that of an earlier batch of queries like these"
                                     : "calibrated on 500 queries of this batch"),
                std::string::npos)
          << report.note;
      double sum = 0, squares = 0;
      for (std::int64_t q = 0; q < count; ++q) {
        double found = 0;
        for (std::int64_t j = 0; j < 10; ++j)
          found +=
              std::count(got.ids.row(q), got.ids.row(q) + 10, truth.ids.row(q)[j]) > 0 ? 0.1 : 0;
        sum += found, squares += found * found;
      }
      // 500 of these queries said that their mean is above `asked` but once in a hundred times;
      // with the others it is within as many of its own standard errors.
      const auto n = static_cast<double>(count);
      const double mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
      EXPECT_GE(mean, asked - 2.33 * deviation / std::sqrt(n)) << count << " for " << asked;
    }
  }
}

// Certificates that nobody asked for, and of codes none can have, read like a failure.
TEST(Reports, NameNoQueryUncertifiedUnasked) {
  const Matrix<float> x = clustered(1000, 8, 1);
  for (const char* kind : {"IVF8,Flat", "IVF8,PQ4x4", "PQ4x4"}) {
    Index index = make_index(kind, 8);
    index.train(x.view());
    index.add(x.view());
    KnnReport report;
    index.search(x.view().rows(0, 50), 5, {.method = {.probes = index.lists() > 0 ? 1 : 0}},
                 &report);
    EXPECT_TRUE(report.promise.uncertified.empty()) << kind;
    EXPECT_LT(report.promise.certified_queries, 50) << kind;
  }
}

// A recall of nothing was seen to be no number, which the file kept and nobody read again.
// What reaches more than a recall does is named.
TEST(RecallOfCodes, RefusalsNameWhatIsMissing) {
  const auto refused = [](const Index& index, std::int64_t k, double recall) -> std::string {
    try {
      index.search(clustered(5, 16, 2).view(), k, {.method = {.recall = recall}});
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  const Matrix<float> base = clustered(5000, 16, 1);
  for (const char* name : {"IVF8,PQ2x4,RFlat", "PQ2x4,Refine(SQ8)"})
    for (const double recall : {0.999, 1.0}) {
      Index index = make_index(name, 16);
      index.train(base.view());
      index.add(base.view());
      const std::string message = refused(index, 10, recall);
      EXPECT_NE(message.find("with refine_factor up to 32: a larger one, which is passed"),
                std::string::npos)
          << message;
      EXPECT_EQ(message.find("with probes instead") != std::string::npos, name[0] == 'I');
    }
  Index index = make_index("IVF8,PQ8", 16);
  index.train(base.view());
  index.add(base.view());
  const std::string message = refused(index, 200, 0.5);
  EXPECT_EQ(message.find("k is 200, but recall of index IVF8,PQ8 is known of 100 neighbours"), 0u)
      << message;
}

TEST(RecallOfCodes, OfAnEmptyIndexIsNotKept) {
  for (const char* name : {"IVF4,SQ8,RFlat", "SQ8,RFlat", "IVF4,SQ8"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 8);
    index.train(clustered(60, 8, 1).view());
    const Matrix<float> queries = clustered(5, 8, 2);
    // Nothing is found, as by lists of vectors.
    for (const double recall : {0.1, 1.0})
      EXPECT_EQ(index.search(queries.view(), 3, {.method = {.recall = recall}}).ids.row(4)[0],
                no_id);
    EXPECT_THROW(index.search(queries.view(), 3, {.method = {.recall = 2.0}}), InvalidArgument);
    std::string path = std::filesystem::temp_directory_path() / "knear-empty-XXXXXX";
    close(mkstemp(path.data()));
    index.save(path);
    EXPECT_EQ(Index::load(path).size(), 0);
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace knear
