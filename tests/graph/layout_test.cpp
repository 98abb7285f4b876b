// A map of a graph keeps neighbours together, and is the same for the same seed.
#include "knear/graph/layout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "knear/core/random.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/knn/knn.hpp"

namespace knear {
namespace {

// Rows around `groups` corners of a cube in 24 dimensions: row i belongs to group i % groups.
Matrix<float> grouped_rows(std::int64_t rows, std::int64_t groups) {
  Matrix<float> out(rows, 24);
  Random random(5);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t c = 0; c < 24; ++c) {
      const float centre =
          Random(static_cast<std::uint64_t>(i % groups * 24 + c)).next() & 1 ? 4 : 0;
      out.row(i)[c] = centre + static_cast<float>(random.uniform() + random.uniform() - 1);
    }
  return out;
}

// The share of the five nearest places of each row that belong to rows of its group.
double kept_together(const Matrix<float>& places, std::int64_t groups) {
  const Neighbors near = self_join(places.view(), 5);
  double same = 0;
  for (std::int64_t i = 0; i < places.rows(); ++i)
    for (std::int64_t j = 0; j < 5; ++j) same += near.ids.row(i)[j] % groups == i % groups;
  return same / double(5 * places.rows());
}

TEST(GraphLayout, KeepsGroupsTogetherThatTwoComponentsMix) {
  const std::int64_t groups = 12;
  const Matrix<float> rows = grouped_rows(1800, groups);
  const NeighborGraph graph = knn_graph(rows.view(), 10);
  const Matrix<float> first = principal_places(rows.view());
  const Matrix<float> places = graph_layout(graph, first.view());
  const double before = kept_together(first, groups), after = kept_together(places, groups);
  RecordProperty("before", std::to_string(before));
  EXPECT_LT(before, 0.95);
  EXPECT_GT(after, 0.98);
  EXPECT_GT(after, before);
}

TEST(GraphLayout, IsTheSameForAnyThreadsAndAnotherForAnotherSeed) {
  const Matrix<float> rows = grouped_rows(3000, 5);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const NeighborGraph graph = knn_graph(rows.view(), 7, {.metric = metric});
    const Matrix<float> first = principal_places(rows.view(), 1);
    EXPECT_TRUE(same_bits(first.view(), principal_places(rows.view(), 3).view()));
    const Matrix<float> one = graph_layout(graph, first.view(), {.epochs = 40, .threads = 1});
    const Matrix<float> three = graph_layout(graph, first.view(), {.epochs = 40, .threads = 3});
    const Matrix<float> other = graph_layout(graph, first.view(), {.epochs = 40, .seed = 2});
    EXPECT_TRUE(same_bits(one.view(), three.view()));
    EXPECT_FALSE(same_bits(one.view(), other.view()));
    for (std::int64_t i = 0; i < one.rows(); ++i)
      ASSERT_TRUE(std::isfinite(one.row(i)[0]) && std::isfinite(one.row(i)[1])) << i;
  }
}

TEST(GraphLayout, SmallAndOddBases) {
  for (const std::int64_t n : {0, 1, 2, 3, 40}) {
    Matrix<float> rows(n, 1);  // copies, in one dimension
    const NeighborGraph graph = knn_graph(rows.view(), 4);
    const Matrix<float> places = graph_layout(graph, principal_places(rows.view()).view());
    ASSERT_EQ(places.rows(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      EXPECT_TRUE(std::isfinite(places.row(i)[0]) && std::isfinite(places.row(i)[1]));
      for (std::int64_t j = 0; j < i; ++j)
        EXPECT_NE(std::memcmp(places.row(i), places.row(j), 8), 0) << "copies lie on one point";
    }
  }
}

TEST(GraphLayout, SaysWhatIsWrong) {
  Matrix<float> rows = grouped_rows(50, 2);
  const NeighborGraph graph = knn_graph(rows.view(), 3);
  Matrix<float> places(50, 2);
  EXPECT_THROW(graph_layout(graph, Matrix<float>(49, 2).view()), ShapeMismatch);
  EXPECT_THROW(graph_layout(graph, Matrix<float>(50, 3).view()), ShapeMismatch);
  EXPECT_THROW(graph_layout(graph, places.view(), {.epochs = -1}), InvalidArgument);
  EXPECT_THROW(graph_layout(graph, places.view(), {.epochs = most_layout_epochs + 1}),
               InvalidArgument);
  EXPECT_THROW(graph_layout(graph, places.view(),
                            {.progress = [](std::string_view, double) { return false; }}),
               Cancelled);
  places.row(7)[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(graph_layout(graph, places.view()), InvalidArgument);
  rows.row(3)[2] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(principal_places(rows.view()), InvalidArgument);
}

}  // namespace
}  // namespace knear
