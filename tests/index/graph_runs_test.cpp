// tests/index/graph_runs_test.cpp -- graphs that estimate how far neighbours are before they
// measure them: what is kept beside the links, and what searches find.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/graph/row_graph_building.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/knn.hpp"
#include "tests/index/index_test.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

constexpr Clusters tight{.count = 100, .spread = 0.3};

SearchOptions by_ef(std::int64_t ef) { return {.method = {.ef = ef}}; }

double shared(const Neighbors& found, const Neighbors& truth) {
  std::int64_t hits = 0;
  const std::int64_t k = truth.ids.cols();
  for (std::int64_t q = 0; q < truth.ids.rows(); ++q)
    for (std::int64_t i = 0; i < k; ++i) {
      const Id* const row = found.ids.row(q);
      hits += std::find(row, row + k, truth.ids.row(q)[i]) != row + k;
    }
  return static_cast<double>(hits) / static_cast<double>(truth.ids.rows() * k);
}

// Codes of a random walk's places, so that nodes with near numbers are near, and links to these.
struct Nodes {
  detail::GraphCoding coding;
  std::int64_t count, degree;
  AlignedArray<std::uint8_t> codes;
  AlignedArray<std::uint32_t> links;

  Nodes(std::int64_t n, std::int64_t dim, std::int64_t links_of_each)
      : count(n), degree(links_of_each) {
    coding.dim = dim, coding.lows.assign(static_cast<std::size_t>(dim), 0);
    const std::int64_t stride = coding.stride();
    codes = AlignedArray<std::uint8_t>(static_cast<std::size_t>(n * stride));
    links = AlignedArray<std::uint32_t>(static_cast<std::size_t>(n * degree));
    Random random(3);
    std::vector<int> place(static_cast<std::size_t>(dim), 128);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < dim; ++j) {
        int& x = place[static_cast<std::size_t>(j)];
        x = std::clamp(x + static_cast<int>(random.below(21)) - 10, 0, 255);
        codes[static_cast<std::size_t>(i * stride + j)] = static_cast<std::uint8_t>(x);
      }
      // The last node has links to half of the others only.
      for (std::int64_t l = 0; l < degree; ++l)
        links[static_cast<std::size_t>(i * degree + l)] =
            i + 1 == n && l >= degree / 2 ? detail::no_node
                                          : static_cast<std::uint32_t>((i + 1 + l) % n);
    }
  }
  const std::uint8_t* code(std::int64_t i) const { return codes.data() + i * coding.stride(); }
  double square(std::int64_t a, std::int64_t b) const {
    double sum = 0;
    for (std::int64_t j = 0; j < coding.dim; ++j) {
      const int apart = int{code(a)[j]} - int{code(b)[j]};
      sum += static_cast<double>(apart * apart);
    }
    return sum;
  }
};

TEST(NodeRuns, HoldCodesAndLinks) {
  for (const std::int64_t degree : {24, 32, 40, 64}) {
    const Nodes nodes(500, 100, degree);
    const auto space = std::make_shared<detail::LinkSpace>(nodes.coding, nodes.codes);
    const detail::NodeRuns runs(space, nodes.coding.stride(), degree, nodes.codes, nodes.links, 2);
    const auto codes = runs.copied_codes();
    const auto links = runs.copied_links();
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), nodes.codes.begin(), nodes.codes.end()));
    EXPECT_TRUE(std::equal(links.begin(), links.end(), nodes.links.begin(), nodes.links.end()));
    EXPECT_EQ(runs.blocks(), (degree + 31) / 32);
    // Five bytes a column and 256 for 32 links, and what aligns them to cache lines.
    EXPECT_EQ(runs.step(), 128 + runs.blocks() * (256 + 7 * 64));
    detail::LinkEstimates estimates;
    std::vector<std::int16_t> query(static_cast<std::size_t>(nodes.coding.stride()), 7);
    estimates.set_query(*space, query.data());
    std::int64_t there = 0;
    for (std::int64_t b = 0; b < runs.blocks(); ++b)
      there += std::popcount(estimates.all(runs.block(499, b)));
    EXPECT_EQ(there, degree / 2) << "links of the last node";
  }
}

// The error of an estimate is about 2 * 0.75 / sqrt(columns) of the product of both lengths (Gao
// and Long 2024, theorem 3.2), and has no preferred sign.
TEST(NodeRuns, EstimateDistances) {
  for (const std::int64_t dim : {64, 100, 256}) {
    const Nodes nodes(400, dim, 32);
    const auto space = std::make_shared<detail::LinkSpace>(nodes.coding, nodes.codes);
    const detail::NodeRuns runs(space, nodes.coding.stride(), 32, nodes.codes, nodes.links, 1);
    detail::LinkEstimates estimates;
    double sum = 0, squares = 0;
    std::int64_t count = 0;
    for (std::int64_t q = 0; q < 20; ++q) {
      std::vector<std::int16_t> query(nodes.code(q * 17),
                                      nodes.code(q * 17) + nodes.coding.stride());
      estimates.set_query(*space, query.data());
      for (std::int64_t v = 0; v + 1 < nodes.count; v += 7)
        for (int i = 0; i < 32; ++i) {
          const double to_node = nodes.square(q * 17, v);
          const std::int64_t u = runs.block(static_cast<std::uint32_t>(v), 0).nodes[i];
          const double truth = nodes.square(q * 17, u);
          // The estimate by halving: the least limit that the link is below.
          double low = 0, high = 4e9;
          while (high - low > 1) {
            const double middle = std::floor((low + high) / 2);
            const bool below = estimates.below(runs.block(static_cast<std::uint32_t>(v), 0),
                                               static_cast<std::uint32_t>(to_node),
                                               static_cast<std::uint32_t>(middle)) >>
                                   i &
                               1;
            (below ? high : low) = middle;
          }
          if (low == 0) continue;  // below 0 it is not known
          const double unit = std::sqrt(to_node * nodes.square(v, u));
          if (unit == 0) continue;
          const double error = (low - truth) / unit;
          sum += error, squares += error * error, ++count;
        }
    }
    ASSERT_GT(count, 5000);
    const double expected = 2 * 0.75 / std::sqrt(static_cast<double>(dim));
    const double spread = std::sqrt(squares / static_cast<double>(count));
    EXPECT_LT(std::abs(sum / static_cast<double>(count)), 0.25 * expected) << dim;
    EXPECT_LT(spread, 1.3 * expected) << dim;
    EXPECT_GT(spread, 0.6 * expected) << dim;
  }
}

class GraphRuns : public testing::TestWithParam<std::tuple<Metric, std::string>> {
 protected:
  const Metric metric = std::get<0>(GetParam());
  const std::string kind = std::get<1>(GetParam());
  const std::int64_t dim = 72, rows = test::small() ? 3000 : 6000;
  const Matrix<float> base = clustered(rows, dim, 1, tight),
                      queries = clustered(100, dim, 2, tight);
  Index index = make_index(kind, dim, metric);

  void SetUp() override { index.add(base.view()); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, GraphRuns,
                         testing::Combine(testing::Values(Metric::l2, Metric::ip, Metric::cosine),
                                          testing::Values("Graph32", "Graph48")),
                         [](const auto& p) {
                           return std::get<1>(p.param) + "_" +
                                  std::string(name_of(std::get<0>(p.param)));
                         });

TEST_P(GraphRuns, FindNearlyAll) {
  const Neighbors truth = knn(queries.view(), base.view(), 10, {.metric = metric});
  KnnReport report;
  const Neighbors found = index.search(queries.view(), 10, by_ef(64), &report);
  EXPECT_GT(shared(found, truth), 0.97);
  // A node may be estimated more than once.
  EXPECT_LT(report.scan.probed_rows, 2 * static_cast<double>(rows)) << "estimated or measured";
  for (std::int64_t q = 0; q < queries.rows(); ++q)
    for (std::int64_t i = 0; i < 10; ++i)
      ASSERT_FLOAT_EQ(found.distances.row(q)[i],
                      static_cast<float>(reference_distance(metric, queries.row(q),
                                                            base.row(found.ids.row(q)[i]), dim)));
}

TEST_P(GraphRuns, AreTheSameAtEveryLevelAndFromAFile) {
  const Neighbors found = index.search(queries.view(), 10, by_ef(40));
  const std::string path = testing::TempDir() + "/graph_runs_" + kind +
                           std::string(name_of(metric)) + std::to_string(getpid());
  index.save(path);
  for (const Isa isa : test::levels()) {
    const test::ForcedIsa forced(isa);
    const Index again = Index::load(path);
    SCOPED_TRACE(name_of(isa));
    expect_equal(again.search(queries.view(), 10, by_ef(40)), found);
    SearchOptions one = by_ef(40);
    one.threads = 1;
    for (std::int64_t q = 0; q < 3; ++q) {
      const Neighbors alone = again.search(queries.view().rows(q, q + 1), 10, one);
      EXPECT_TRUE(std::equal(alone.ids.row(0), alone.ids.row(0) + 10, found.ids.row(q)));
    }
    const std::string copy = path + ".copy";
    again.save(copy);
    EXPECT_EQ(std::filesystem::file_size(copy), std::filesystem::file_size(path));
    std::filesystem::remove(copy);
  }
  std::filesystem::remove(path);
}

TEST_P(GraphRuns, KeepTheirRecallBehindAFilter) {
  std::vector<Id> allowed;
  for (Id id = 0; id < rows; ++id)
    if (id % 10 < 4) allowed.push_back(id);
  const IdFilter filter = IdFilter::of_ids(allowed);
  SearchOptions options = by_ef(64), exact;
  options.filter = filter, exact.filter = filter;
  exact.method.kind = Method::exact;
  const Neighbors found = index.search(queries.view(), 10, options),
                  truth = index.search(queries.view(), 10, exact);
  EXPECT_GT(shared(found, truth), 0.97);
}

// Codes of whole numbers are the numbers, so that nothing is measured after the walk.
TEST(GraphOfWholeNumbers, AnswersByCodesWhereTheQueryIsOneToo) {
  constexpr std::int64_t rows = 4000, dim = 70;
  Matrix<float> base = clustered(rows, dim, 1, tight), queries = clustered(40, dim, 2, tight);
  for (Matrix<float>* const of : {&base, &queries})
    for (std::int64_t i = 0; i < of->rows() * dim; ++i)
      of->data()[i] = std::clamp(std::round((of->data()[i] + 2) * 60), 1.0f, 250.0f);
  // Copies tie, and the first of them must be found.
  for (std::int64_t i = 0; i < 100; ++i) std::copy(base.row(0), base.row(0) + dim, base.row(7 * i));
  std::copy(base.row(0), base.row(0) + dim, queries.row(0));
  // One is no whole number, one lies far beyond the rows.
  queries.row(1)[3] += 0.25f;
  queries.row(2)[5] = 3000;
  for (const std::string kind : {"Graph16", "Graph32"}) {
    Index index = make_index(kind, dim, Metric::l2);
    index.add(base.view());
    const Neighbors truth = knn(queries.view(), base.view(), 10, {});
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      KnnReport report;
      const Neighbors found = index.search(queries.view().rows(q, q + 1), 10, by_ef(400), &report);
      EXPECT_EQ(report.scan.survivors_per_query == 0, q != 1 && q != 2) << q;
      for (std::int64_t i = 0; i < 10; ++i) {
        // From so far away codes cannot tell the rows apart.
        if (q != 2) {
          EXPECT_EQ(found.ids.row(0)[i], truth.ids.row(q)[i]) << kind << " " << q;
        }
        EXPECT_EQ(found.distances.row(0)[i],
                  static_cast<float>(reference_distance(Metric::l2, queries.row(q),
                                                        base.row(found.ids.row(0)[i]), dim)));
      }
    }
    // Rows that are no whole numbers are added: distances to them are measured.
    Matrix<float> more(1, dim);
    std::copy(queries.row(3), queries.row(3) + dim, more.row(0));
    more.row(0)[0] += 0.5f;
    index.add(more.view());
    const Neighbors found = index.search(queries.view().rows(3, 4), 1, by_ef(50));
    EXPECT_EQ(found.ids.row(0)[0], rows);
    EXPECT_EQ(found.distances.row(0)[0], 0.25f);
  }
}

// Copies a file, with what alter() makes of the bytes of each section.
template <class F>
void rewrite(const std::string& from, const std::string& to, F alter) {
  const auto archive = io::Archive::open(from);
  io::ArchiveWriter writer("GraphFlat");
  for (const io::Section& section : archive->sections()) {
    std::vector<std::byte> bytes(section.data, section.data + section.bytes);
    writer.set_optional(section.name.starts_with("recall") || section.name == "graph/walk");
    if (alter(section.name, bytes))
      writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
  }
  writer.write(to, {});
}

TEST(GraphRunsFile, RecallOfAnotherKindOfWalkIsFoundOutAgain) {
  const std::string path = testing::TempDir() + "/graph_walk_" + std::to_string(getpid());
  const Matrix<float> base = clustered(3000, 64, 1, tight), queries = clustered(5, 64, 2, tight);
  Index index = make_index("Graph24", 64);
  index.add(base.view());
  index.tune(10);
  index.save(path);
  const auto calibrates = [&](const std::string& file) {
    KnnReport report;
    Index::load(file).search(queries.view(), 10, {.method = {.recall = 0.9}}, &report);
    EXPECT_EQ(report.promise.recall_argument, "calibrated");
    return report.note.find("was calibrated first") != std::string::npos;
  };
  EXPECT_FALSE(calibrates(path));
  rewrite(path, path + "b", [](std::string_view name, std::vector<std::byte>& bytes) {
    if (name == "graph/walk") bytes[0] = std::byte{1};
    return true;
  });
  EXPECT_TRUE(calibrates(path + "b")) << "another version";
  rewrite(path, path + "b",
          [](std::string_view name, std::vector<std::byte>&) { return name != "graph/walk"; });
  EXPECT_TRUE(calibrates(path + "b")) << "no version";
  std::filesystem::remove(path);
  std::filesystem::remove(path + "b");
}

// Links that lead anywhere, more than once, or are missing in between, and codes of any bytes.
TEST(GraphRunsFile, WrongLinksAndCodesAreHarmless) {
  const std::string path = testing::TempDir() + "/graph_links_" + std::to_string(getpid());
  const Matrix<float> base = clustered(3000, 64, 1, tight), queries = clustered(20, 64, 2, tight);
  Index index = make_index("Graph40", 64);
  index.add(base.view());
  index.optimize();
  index.save(path);
  Random random(5);
  for (int round = 0; round < 4; ++round) {
    rewrite(path, path + "b", [&](std::string_view name, std::vector<std::byte>& bytes) {
      if (name.ends_with("/codes") && round % 2 == 1)
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
      if (name.ends_with("/links"))
        for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
          const std::uint32_t link = random.below(8) == 0
                                         ? detail::no_node
                                         : static_cast<std::uint32_t>(random.below(180));
          if (random.below(2) == 0) std::memcpy(bytes.data() + at, &link, 4);
        }
      return true;
    });
    const Index loaded = Index::load(path + "b");
    const Neighbors found = loaded.search(queries.view(), 5, by_ef(20));
    for (std::int64_t i = 0; i < 20 * 5; ++i)
      EXPECT_TRUE(found.ids.data()[i] >= 0 && found.ids.data()[i] < 3000);
    loaded.save(path + "c");
    expect_equal(Index::load(path + "c").search(queries.view(), 5, by_ef(20)), found);
  }
  for (const char* const end : {"", "b", "c"}) std::filesystem::remove(path + end);
}

}  // namespace
}  // namespace knear
