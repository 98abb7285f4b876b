// refine() beside exact graphs and beside one round of NN-descent in plain loops; graphs that lack
// neighbours, targets, and input that is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "knear/graph/knn_graph.hpp"
#include "knear/graph/nn_descent.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using io::expect_error;
using test::make;

AnyMatrix vectors(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  const bool bytes = type == ElementType::u8 || type == ElementType::i8;
  return make(type, rows, dim, [&](std::int64_t, std::int64_t) {
    return bytes ? std::floor(120 * random.uniform()) : test::gaussian(random);
  });
}

// The graph with some neighbours of each row taken away, others put in the place of some.
Matrix<Id> spoilt(MatrixView<Id> ids, std::uint64_t percent, std::uint64_t seed) {
  Random random(seed);
  Matrix<Id> out(ids.rows(), ids.cols());
  for (std::int64_t i = 0; i < ids.rows(); ++i)
    for (std::int64_t j = 0; j < ids.cols(); ++j) {
      out.row(i)[j] = ids.row(i)[j];
      if (random.below(100) >= percent) continue;
      out.row(i)[j] = random.below(2) == 0
                          ? no_id
                          : static_cast<Id>(random.below(static_cast<std::uint64_t>(ids.rows())));
    }
  return out;
}

double key_of(AnyMatrixView base, Metric metric, Id a, Id b) {
  return visit(base, [&](auto rows) {
    return order_key(metric, reference_distance(metric, rows.row(a), rows.row(b), rows.cols()));
  });
}

// The share of neighbours that are at most as far as the k-th of the exact graph.
double accuracy_of(const Neighbors& found, const Neighbors& truth, Metric metric) {
  std::int64_t near = 0;
  const std::int64_t k = truth.ids.cols();
  for (Id i = 0; i < truth.ids.rows(); ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      const float far = truth.distances.row(i)[k - 1], own = found.distances.row(i)[j];
      near += larger_is_nearer(metric) ? own >= far : own <= far;
    }
  return static_cast<double>(near) / static_cast<double>(truth.ids.rows() * k);
}

// Distances are exact, places in order, and nothing stands twice or in its own list.
void expect_sound(AnyMatrixView base, Metric metric, const Neighbors& found) {
  for (Id i = 0; i < base.rows(); ++i) {
    std::set<Id> seen{i};
    std::pair<double, Id> last{-std::numeric_limits<double>::infinity(), no_id};
    for (std::int64_t j = 0; j < found.ids.cols(); ++j) {
      const Id id = found.ids.row(i)[j];
      if (id == no_id) {
        ASSERT_EQ(found.distances.row(i)[j], no_distance(metric));
        last.first = std::numeric_limits<double>::infinity();
        continue;
      }
      ASSERT_TRUE(seen.insert(id).second) << "row " << i << " has " << id << " twice, or is it";
      const std::pair<double, Id> own{key_of(base, metric, i, id), id};
      ASSERT_LT(last, own) << "row " << i << ", place " << j;
      ASSERT_EQ(found.distances.row(i)[j], static_cast<float>(distance_of_key(metric, own.first)));
      last = own;
    }
  }
}

void expect_same(const Neighbors& a, const Neighbors& b) {
  for (Id i = 0; i < a.ids.rows(); ++i)
    for (std::int64_t j = 0; j < a.ids.cols(); ++j)
      ASSERT_EQ(a.ids.row(i)[j], b.ids.row(i)[j]) << "row " << i << ", place " << j;
  EXPECT_TRUE(same_bits(a.distances, b.distances));
}

class NnDescent : public io::FileTest {};

TEST_F(NnDescent, makes_spoilt_graphs_nearly_exact) {
  for (const ElementType type : all_element_types)
    for (const Metric metric : test::metrics) {
      const AnyMatrix base = vectors(type, 3000, 6, 1);
      const Neighbors truth = self_join(base, 7, {.metric = metric});
      const Matrix<Id> bad = spoilt(truth.ids, 60, 2);
      RefineReport report;
      const Neighbors found = refine(bad, base, metric, {}, &report);
      expect_sound(base, metric, found);
      // Few rows have large products with most others: there is less to learn from neighbours.
      EXPECT_GT(accuracy_of(found, truth, metric), metric == Metric::ip ? 0.9 : 0.97)
          << name_of(type) << ' ' << name_of(metric);
      EXPECT_GT(report.rounds, 1);
      EXPECT_GT(report.changed, 0);
      EXPECT_FALSE(report.reached);
    }
}

// Codes of bytes are exact and no party has more rows than there is room for: then the k nearest
// after one round are those among all that were brought together.
TEST_F(NnDescent, a_round_is_that_of_plain_loops) {
  for (const ElementType type : {ElementType::u8, ElementType::i8}) {
    const std::int64_t n = 2000, k = 4;
    const AnyMatrix base = vectors(type, n, 3, 3);
    const Matrix<Id> bad = spoilt(self_join(base, k).ids, 30, 4);
    // What a row knows, both ways; a list holds 16.
    std::vector<std::set<std::pair<double, Id>>> known(static_cast<std::size_t>(n));
    for (Id i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < k; ++j)
        if (const Id id = bad.row(i)[j]; id != no_id && id != i) {
          known[static_cast<std::size_t>(i)].insert({key_of(base, Metric::l2, i, id), id});
          known[static_cast<std::size_t>(id)].insert({key_of(base, Metric::l2, i, id), i});
        }
    auto after = known;
    for (Id host = 0; host < n; ++host) {
      // Both ways already, so that whose neighbour the host is adds no others.
      const auto& party = known[static_cast<std::size_t>(host)];
      ASSERT_LE(party.size(), 16);
      for (const auto& a : party)
        for (const auto& b : party)
          if (a.second != b.second)
            after[static_cast<std::size_t>(a.second)].insert(
                {key_of(base, Metric::l2, a.second, b.second), b.second});
    }
    const Neighbors found = refine(bad, base, Metric::l2, {.most_rounds = 1});
    for (Id i = 0; i < n; ++i) {
      // Rows that lack neighbours were given some by chance, who may be nearer.
      if (std::ssize(known[static_cast<std::size_t>(i)]) < k) continue;
      std::vector<Id> wanted;
      for (const auto& [key, id] : after[static_cast<std::size_t>(i)])
        if (std::ssize(wanted) < k) wanted.push_back(id);
      for (std::int64_t j = 0; j < k; ++j)
        ASSERT_LE(key_of(base, Metric::l2, i, found.ids.row(i)[j]),
                  key_of(base, Metric::l2, i, wanted[static_cast<std::size_t>(j)]))
            << "row " << i << ", place " << j;
    }
  }
}

TEST_F(NnDescent, does_not_depend_on_threads_or_instructions) {
  const AnyMatrix base = vectors(ElementType::f32, test::small() ? 6000 : 20000, 12, 5);
  const Matrix<Id> bad = spoilt(self_join(base, 6).ids, 50, 6);
  const RefineOptions options{.recall = 0.9, .seed = 7, .threads = 1};
  const Neighbors wanted = refine(bad, base, Metric::cosine, options);
  for (const int threads : {2, 5}) {
    RefineOptions other = options;
    other.threads = threads;
    expect_same(refine(bad, base, Metric::cosine, other), wanted);
  }
  for (const Isa isa : available_isas()) {
    const test::ForcedIsa forced(isa);
    expect_same(refine(bad, base, Metric::cosine, options), wanted);
  }
}

TEST_F(NnDescent, stops_at_the_recall_that_was_asked) {
  const AnyMatrix base = vectors(ElementType::f32, 20000, 8, 8);
  const Neighbors truth = self_join(base, 10);
  const Matrix<Id> bad = spoilt(truth.ids, 50, 9);
  int rounds = 0;
  for (const double recall : {0.45, 0.8, 0.95}) {
    RefineReport report;
    const Neighbors found = refine(bad, base, Metric::l2, {.recall = recall}, &report);
    EXPECT_TRUE(report.reached);
    EXPECT_GE(report.rounds, rounds);
    rounds = report.rounds;
    EXPECT_NEAR(report.found_before, 0.5, 0.05);
    EXPECT_GE(report.promised, recall);
    EXPECT_GE(report.found, report.promised);
    const double accuracy = accuracy_of(found, truth, Metric::l2);
    EXPECT_GE(accuracy, recall);
    EXPECT_NEAR(accuracy, report.found, 0.02);
  }
  EXPECT_GT(rounds, 0);
  // No round, for nothing is wanted: what is there, sorted and measured.
  RefineReport report;
  const Neighbors same = refine(bad, base, Metric::l2, {.most_rounds = 0}, &report);
  EXPECT_EQ(report.rounds, 0);
  expect_sound(base, Metric::l2, same);
}

TEST_F(NnDescent, begins_with_no_graph_at_all) {
  const AnyMatrix base = vectors(ElementType::u8, 5000, 5, 10);
  Matrix<Id> none(5000, 8);
  std::fill_n(none.data(), 5000 * 8, no_id);
  const Neighbors found = refine(none, base, Metric::l2);
  expect_sound(base, Metric::l2, found);
  EXPECT_GT(accuracy_of(found, self_join(base, 8), Metric::l2), 0.97);
}

TEST_F(NnDescent, small_and_odd_bases) {
  for (const std::int64_t rows : {0, 1, 2, 5, 255, 256, 257, 400})
    for (const std::int64_t k : {1, 3, 300}) {
      const AnyMatrix base = vectors(ElementType::f32, rows, 4, 11);
      Matrix<Id> none(rows, k);
      std::fill_n(none.data(), rows * k, no_id);
      const Neighbors found = refine(none, base, Metric::l2);
      ASSERT_EQ(found.ids.rows(), rows);
      expect_sound(base, Metric::l2, found);
      if (rows < 256) expect_same(found, self_join(base, k));
    }
  // All rows equal, all zero, one far out; and numbers whose squares vanish.
  for (const double size : {1.0, 0.0, 1e-30}) {
    const AnyMatrix equal = make(ElementType::f32, 600, 5, [&](std::int64_t i, std::int64_t) {
      return i == 599 && size == 1 ? 1e15 : size;
    });
    Matrix<Id> none(600, 5);
    std::fill_n(none.data(), 600 * 5, no_id);
    for (const Metric metric : test::metrics) {
      const Neighbors found = refine(none, equal, metric);
      expect_sound(equal, metric, found);
    }
  }
}

// A row that is the neighbour of thousands.
TEST_F(NnDescent, hubs) {
  const AnyMatrix base = make(ElementType::f32, 4000, 300, [](std::int64_t i, std::int64_t j) {
    return i == 17 ? 0.0 : i % 300 == j ? 1.0 + 1e-4 * static_cast<double>(i) : 0.0;
  });
  const Neighbors truth = self_join(base, 5);
  const Neighbors found = refine(spoilt(truth.ids, 40, 12), base, Metric::l2);
  expect_sound(base, Metric::l2, found);
  EXPECT_GT(accuracy_of(found, truth, Metric::l2), 0.9);
}

TEST_F(NnDescent, a_graph_keeps_what_it_is) {
  for (const bool distinct : {false, true}) {
    AnyMatrix base = vectors(ElementType::f32, 2000, 4, 13);
    for (std::int64_t i = 5; i < 2000; i += 5)
      std::copy_n(static_cast<const float*>(base.view().row(i / 2)), 4,
                  static_cast<float*>(base.row(i)));
    const NeighborGraph exact = knn_graph(base, 6, {.distinct = distinct});
    // Two of six are gone.
    Neighbors fewer{Matrix<Id>(2000, 6), Matrix<float>(2000, 6)};
    for (Id i = 0; i < 2000; ++i)
      for (std::int64_t j = 0; j < 6; ++j) {
        fewer.ids.row(i)[j] = j % 3 == 1 ? no_id : exact.ids().row(i)[j];
        fewer.distances.row(i)[j] = exact.distances().row(i)[j];
      }
    GraphProperties properties = exact.properties();
    properties.promised_recall = 0.5, properties.recall_argument = "none";
    const NeighborGraph graph(std::move(fewer), properties);
    RefineReport report;
    const NeighborGraph better = refine(graph, base, {.recall = 0.9}, &report);
    EXPECT_TRUE(report.reached);
    EXPECT_EQ(better.properties().distinct, distinct);
    EXPECT_EQ(better.properties().base, exact.properties().base);
    EXPECT_EQ(better.properties().recall_argument, "calibrated");
    EXPECT_EQ(better.properties().promised_recall, report.promised);
    std::int64_t found = 0;
    for (Id i = 0; i < 2000; ++i)
      for (std::int64_t j = 0; j < 6; ++j) {
        found += better.distances().row(i)[j] <= exact.distances().row(i)[5];
        if (distinct) {
          ASSERT_GT(better.distances().row(i)[j], 0);
        }
      }
    EXPECT_GT(found, 2000 * 6 * 9 / 10);
    EXPECT_EQ(refine(graph, base).properties().recall_argument, "none");
    better.save(this->path("g.knear"));
    NeighborGraph::load(this->path("g.knear")).check_base(base);
  }
}

TEST_F(NnDescent, refuses_what_it_cannot_do) {
  AnyMatrix base = vectors(ElementType::f32, 500, 4, 1);
  const Neighbors near = self_join(base, 3);
  const auto refused = [&](const RefineOptions& options, const std::string& word) {
    expect_error<InvalidArgument>([&] { refine(near.ids, base, Metric::l2, options); }, word);
  };
  refused({.recall = 0.0}, "recall");
  refused({.recall = 1.5}, "recall");
  refused({.most_rounds = -1}, "most_rounds");
  refused({.least_change = -0.1}, "least_change");
  refused({.memory = -1}, "memory");
  EXPECT_THROW(refine(near.ids, base, Metric::l2, {.memory = 1000}), MemoryBudgetError);
  EXPECT_THROW(refine(near.ids, base.view().rows(0, 499), Metric::l2), ShapeMismatch);
  EXPECT_THROW(refine(Matrix<Id>(500, 0), base, Metric::l2), InvalidArgument);
  Matrix<Id> wrong = spoilt(near.ids, 0, 1);
  wrong.row(33)[1] = 500;
  expect_error<InvalidArgument>([&] { refine(wrong, base, Metric::l2); },
                                "row 33 has the neighbour 500");
  EXPECT_THROW(refine(near.ids, base, Metric::l2,
                      {.progress = [](std::string_view, double) { return false; }}),
               Cancelled);
  const NeighborGraph graph = knn_graph(base, 3);
  EXPECT_THROW(refine(graph, vectors(ElementType::f32, 500, 4, 2)), InvalidArgument);
  static_cast<float*>(base.row(4))[1] = std::numeric_limits<float>::quiet_NaN();
  expect_error<InvalidArgument>([&] { refine(near.ids, base, Metric::l2); }, "row 4");
}

}  // namespace
}  // namespace knear
