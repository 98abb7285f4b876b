// StreamedSearch: whatever the blocks, the answer of knn() over all of them.
#include "knear/knn/streamed_search.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "knear/core/random.hpp"

namespace knear {
namespace {

Matrix<float> rows_of(std::int64_t rows, std::int64_t cols, std::uint64_t values,
                      std::uint64_t seed) {
  Matrix<float> out(rows, cols);
  Random random(seed);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    out.data()[i] = values ? static_cast<float>(random.below(values))
                           : static_cast<float>(random.uniform() - 0.5);
  return out;
}

TEST(StreamedSearch, GivesTheAnswerOfTheWholeBase) {
  Random random(1);
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (std::uint64_t values : {0, 3, 200}) {  // real, full of ties, whole
      const Matrix<float> base = rows_of(2500, 9, values, 2), queries = rows_of(13, 9, values, 3);
      std::vector<Id> some;
      for (Id id = 0; id < 2500; ++id)
        if (random.below(5) == 0) some.push_back(id);
      for (std::int64_t k : {1, 12, 700, 2600})
        for (bool filtered : {false, true})
          for (FirstPass pass : {FirstPass::automatic, FirstPass::int8, FirstPass::direct}) {
            KnnOptions options{.metric = metric, .first_pass = pass};
            if (filtered) options.filter = RowFilter::of_ids(some, 2500);
            const Neighbors want = knn(queries.view(), base.view(), k, options);
            StreamedSearch search(queries.view(), k, options, 2500);
            for (std::int64_t begin = 0; begin < 2500;) {
              const std::int64_t end =
                  std::min<std::int64_t>(2500, begin + 1 + std::int64_t(random.below(900)));
              search.add(base.view().rows(begin, end));
              begin = end;
            }
            KnnReport report;
            const Neighbors got = search.finish(&report);
            EXPECT_EQ(report.rows, 2500);
            EXPECT_EQ(report.allowed_rows, filtered ? std::ssize(some) : 2500);
            const Matrix<double> distances = search.take_distances();
            for (std::int64_t i = 0; i < 13 * k; ++i) {
              ASSERT_EQ(got.ids.data()[i], want.ids.data()[i]) << name_of(metric) << " place " << i;
              ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]);
              ASSERT_EQ(static_cast<float>(distances.data()[i]), want.distances.data()[i]);
            }
          }
    }
}

TEST(StreamedSearch, RefusesWhatDoesNotFit) {
  const Matrix<float> queries = rows_of(2, 3, 0, 1);
  Matrix<float> base = rows_of(10, 3, 0, 1);
  EXPECT_THROW(StreamedSearch(queries.view(), 0, {}, 10), InvalidArgument);
  const RowFilter filter = RowFilter::of_ids(std::vector<Id>{1}, 9);
  EXPECT_THROW(StreamedSearch(queries.view(), 1, {.filter = filter}, 10), ShapeMismatch);
  StreamedSearch search(queries.view(), 1, {}, 15);
  search.add(base.view());
  EXPECT_THROW(search.add(rows_of(1, 4, 0, 1).view()), ShapeMismatch);
  EXPECT_THROW(search.add(base.view()), InvalidArgument);  // more rows than announced
  EXPECT_THROW(search.finish(), InvalidArgument);          // and now fewer
  base.row(2)[1] = std::numeric_limits<float>::quiet_NaN();
  try {
    search.add(base.view().rows(0, 5));
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("row 12 column 1"), std::string::npos) << error.what();
  }
}

TEST(StreamedSearch, NoRowsAndNoQueriesAreFine) {
  const Matrix<float> queries = rows_of(2, 3, 0, 1);
  StreamedSearch search(queries.view(), 4, {}, 0);
  EXPECT_EQ(search.finish().ids.row(1)[3], no_id);
  StreamedSearch none(queries.view().rows(0, 0), 4, {}, 2);
  none.add(queries.view());
  EXPECT_EQ(none.finish().ids.rows(), 0);
}

}  // namespace
}  // namespace knear
