// tests/index/few_rows_test.cpp -- one query among few rows, which is answered without a plan: the
// same bits and the same report as a planned search, and arguments that only that one takes.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/impl/index_body.hpp"
#include "knear/index/index.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/knn/search/few_rows_search.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

// Returns true if the search is made without a plan.
bool is_at_once(const Index& index, AnyMatrixView queries, std::int64_t k,
                const SearchOptions& options = {}) {
  detail::FewRowsSearch search;
  return index.body().nearest_at_once(queries, k, options, search);
}

// The options with which a search is planned: nothing else about them differs.
SearchOptions planned(SearchOptions options = {}) {
  options.progress = [](std::string_view, double) { return true; };
  return options;
}

void expect_same_bits(const Neighbors& a, const Neighbors& b) {
  expect_equal(a, b);
  EXPECT_EQ(std::memcmp(a.distances.data(), b.distances.data(),
                        static_cast<std::size_t>(a.distances.cols()) * sizeof(float)),
            0);
}

// Reports without the times.
void expect_same_report(const KnnReport& a, const KnnReport& b) {
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(a.queries, b.queries);
  EXPECT_EQ(a.k, b.k);
  EXPECT_EQ(a.allowed_rows, b.allowed_rows);
  EXPECT_EQ(a.metric, b.metric);
  EXPECT_EQ(a.threads, b.threads);
  EXPECT_EQ(a.method, b.method);
  EXPECT_EQ(a.prepare_seconds, b.prepare_seconds);
  EXPECT_EQ(a.memory_bytes, b.memory_bytes);
  EXPECT_EQ(a.note, b.note);
  EXPECT_EQ(a.device.name, b.device.name);
  EXPECT_EQ(a.scan.isa, b.scan.isa);
  EXPECT_EQ(a.scan.first_pass, b.scan.first_pass);
  EXPECT_EQ(a.scan.survivors_per_query, b.scan.survivors_per_query);
  EXPECT_EQ(a.scan.hits_per_query, b.scan.hits_per_query);
  EXPECT_EQ(a.scan.chunks, b.scan.chunks);
  EXPECT_EQ(a.scan.group, b.scan.group);
  EXPECT_EQ(a.scan.parts, b.scan.parts);
  EXPECT_EQ(a.scan.tile_rows, b.scan.tile_rows);
  EXPECT_EQ(a.scan.multiply_adds, b.scan.multiply_adds);
  EXPECT_EQ(a.scan.bytes_read, b.scan.bytes_read);
  EXPECT_EQ(a.promise.promised_recall, b.promise.promised_recall);
  EXPECT_EQ(a.promise.expected_recall, b.promise.expected_recall);
  EXPECT_EQ(a.promise.recall_argument, b.promise.recall_argument);
  EXPECT_EQ(a.promise.certified_queries, b.promise.certified_queries);
  EXPECT_GE(a.seconds, 0);
  EXPECT_LT(a.seconds, 10);
}

// Compares both ways to search for row 0 of `queries`.
void expect_as_planned(const Index& index, MatrixView<float> queries, std::int64_t k,
                       const SearchOptions& options = {}) {
  ASSERT_TRUE(is_at_once(index, queries.rows(0, 1), k, options));
  ASSERT_FALSE(is_at_once(index, queries.rows(0, 1), k, planned(options)));
  KnnReport report, wanted;
  const Neighbors got = index.search(queries.rows(0, 1), k, options, &report);
  expect_same_bits(got, index.search(queries.rows(0, 1), k, planned(options), &wanted));
  expect_same_report(report, wanted);
  expect_same_bits(got, index.search(queries.rows(0, 1), k, options));
}

// Whole numbers, so that many rows are as near as others.
Matrix<float> whole(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Matrix<float> out(rows, dim);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * dim; ++i) out.data()[i] = static_cast<float>(random.below(3));
  return out;
}

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine, Metric::l1};

TEST(FewRows, AreFoundAsByAPlanForEveryShape) {
  for (const Metric metric : metrics)
    for (const std::int64_t dim : {1, 3, 16, 17, 128})
      for (const std::int64_t rows : {1, 4, 15, 16, 20, 255}) {
        const Matrix<float> base = clustered(rows, dim, 3), queries = clustered(1, dim, 5);
        Index index = make_index("Flat", dim, metric);
        index.add(base.view());
        for (const std::int64_t k : {1, 5, 32, 33, 100, 255, 300}) {
          SCOPED_TRACE(fmt::format("{} {}x{}, k = {}", name_of(metric), rows, dim, k));
          expect_as_planned(index, queries.view(), k);
          if (HasFatalFailure()) return;
        }
        expect_same_bits(index.search(queries.view(), 5),
                         reference_knn(queries.view(), base.view(), 5, metric));
      }
}

TEST(FewRows, OfWholeNumbersTiesGoByIdAlsoBetweenSegmentsAndWithoutRemovedRows) {
  for (const Metric metric : metrics) {
    const Matrix<float> base = whole(120, 6, 3), queries = whole(1, 6, 8);
    Index index = make_index("Flat", 6, metric);
    // Ids that go to and fro between several adds.
    for (std::int64_t begin = 0; begin < 120; begin += 40) {
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < 40; ++i) ids.push_back(3 * i + (begin / 40 * 2) % 3);
      index.add(base.view().rows(begin, begin + 40), ids);
    }
    for (const std::int64_t k : {1, 7, 50, 200}) expect_as_planned(index, queries.view(), k);
    const std::vector<Id> gone{0, 4, 6, 9, 50, 51};
    index.remove(gone);
    for (const std::int64_t k : {1, 7, 50, 200}) expect_as_planned(index, queries.view(), k);
  }
}

TEST(FewRows, OfEveryElementTypeAndOfAFile) {
  const Matrix<float> base = whole(50, 9, 3), queries = clustered(1, 9, 8);
  for (const ElementType type :
       {ElementType::f16, ElementType::bf16, ElementType::f64, ElementType::u8, ElementType::i8}) {
    AnyMatrix rows(type, 50, 9);
    detail::copy_exactly(base.view(), type, rows.row(0));
    Index index = make_index("Flat", 9);
    index.add(rows);
    expect_as_planned(index, queries.view(), 7);
    const std::string path = testing::TempDir() + "few_rows.knear";
    index.save(path);
    expect_as_planned(Index::load(path), queries.view(), 7);
  }
}

TEST(FewRows, KeepEveryRecallAndTheThreadsThatAreAskedFor) {
  const Matrix<float> base = clustered(30, 8, 3), queries = clustered(1, 8, 5);
  Index index = make_index("Flat", 8);
  index.add(base.view());
  for (const double recall : {0.5, 0.99, 1.0})
    expect_as_planned(index, queries.view(), 5, {.method = {.recall = recall}});
  for (const int threads : {0, 1, 3})
    expect_as_planned(index, queries.view(), 5, {.threads = threads});
}

TEST(FewRows, ArePlannedForWhereMoreIsAskedFor) {
  const Matrix<float> base = clustered(300, 8, 3), queries = clustered(2, 8, 5);
  Index index = make_index("Flat", 8);
  const auto one = queries.view().rows(0, 1);
  EXPECT_FALSE(is_at_once(index, one, 5)) << "no rows";
  index.add(base.view().rows(0, 255));
  EXPECT_TRUE(is_at_once(index, one, 5));
  EXPECT_FALSE(is_at_once(index, queries.view(), 5));
  EXPECT_FALSE(is_at_once(index, one, 0));
  EXPECT_FALSE(is_at_once(index, one, 5, {.threads = -1}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.memory = 1 << 20}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.first_pass = FirstPass::direct}));
  const std::vector<Id> some{1, 2};
  EXPECT_FALSE(is_at_once(index, one, 5, {.filter = IdFilter::of_ids(some)}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.tuning = {.guess = false}}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.method = {.kind = Method::exact}}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.method = {.recall = 1.5}}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.method = {.probes = 1}}));
  EXPECT_FALSE(is_at_once(index, one, 5, {.device = "cuda"}));
  EXPECT_FALSE(is_at_once(index, clustered(1, 7, 5).view(), 5));
  for (const float wrong :
       {0.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Matrix<float> query(1, 8);
    query.row(0)[3] = wrong;
    EXPECT_FALSE(is_at_once(index, query.view(), 5)) << wrong;
  }
  index.add(base.view().rows(255, 300));
  EXPECT_FALSE(is_at_once(index, one, 5)) << "300 rows";
  Index rounded = make_index("SQfp16", 8);
  rounded.add(base.view().rows(0, 20));
  EXPECT_FALSE(is_at_once(rounded, one, 5)) << "its report has a note";
}

TEST(FewRows, RefuseWhatAPlannedSearchRefuses) {
  Index index = make_index("Flat", 8);
  index.add(clustered(30, 8, 3).view());
  const Matrix<float> queries = clustered(1, 8, 5);
  EXPECT_THROW(index.search(queries.view(), 0), InvalidArgument);
  EXPECT_THROW(index.search(queries.view(), 5, {.threads = -1}), InvalidArgument);
  EXPECT_THROW(index.search(queries.view(), 5, {.method = {.recall = 0.0}}), InvalidArgument);
  EXPECT_THROW(index.search(queries.view(), 5, {.method = {.probes = 3}}), InvalidArgument);
  EXPECT_THROW(index.search(clustered(1, 7, 5).view(), 5), ShapeMismatch);
  Matrix<float> wrong(1, 8);
  wrong.row(0)[2] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(index.search(wrong.view(), 5), InvalidArgument);
}

}  // namespace
}  // namespace knear
