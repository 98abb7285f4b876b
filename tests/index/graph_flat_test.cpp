// tests/index/graph_flat_test.cpp -- indexes with a graph: the codes' distances, what a walk finds
// beside exact search, its life beside a plain map, files, and what is refused.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/graph/row_graph_building.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/knn.hpp"
#include "knear/scan/kernels/row_code_kernels.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

constexpr Clusters tight{.count = 200, .spread = 0.2};

template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

Matrix<float> whole(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Matrix<float> out = clustered(rows, dim, seed, tight);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = std::round((out.data()[i] + 1) * 60);
  return out;
}

double shared(const Neighbors& found, const Neighbors& truth) {
  std::int64_t hits = 0;
  for (std::int64_t q = 0; q < truth.ids.rows(); ++q)
    for (std::int64_t i = 0; i < truth.ids.cols(); ++i) {
      const Id* const row = found.ids.row(q);
      hits += std::find(row, row + found.ids.cols(), truth.ids.row(q)[i]) != row + found.ids.cols();
    }
  return static_cast<double>(hits) / static_cast<double>(truth.ids.rows() * truth.ids.cols());
}

SearchOptions by_ef(std::int64_t ef) { return {.method = {.ef = ef}}; }
SearchOptions by_recall(double recall) { return {.method = {.recall = recall}}; }

TEST(RowCodes, EveryLevelSumsSquaredDifferences) {
  Random random(1);
  for (const std::int64_t stride : {32, 64, 96, 160, 16384, 65536}) {
    constexpr std::int64_t rows = 37;
    // As far beyond the codes as a query of so many columns goes.
    const int beyond = stride <= 16384 ? 255 : 0;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * stride));
    std::vector<std::int16_t> query(static_cast<std::size_t>(stride));
    for (auto& code : codes) code = static_cast<std::uint8_t>(random.below(2) * 255);
    for (auto& code : query)
      code = static_cast<std::int16_t>(
          static_cast<int>(random.below(static_cast<std::uint64_t>(256 + 2 * beyond))) - beyond);
    // As far apart as they can be: 65,536 squares of 255 take all 32 bits.
    std::fill(codes.begin(), codes.begin() + stride, std::uint8_t{255});
    for (const bool extreme : {false, true}) {
      if (extreme) std::fill(query.begin(), query.end(), static_cast<std::int16_t>(-beyond));
      std::vector<std::uint32_t> which;
      for (std::int64_t i = 0; i < 23; ++i)
        which.push_back(i == 0 ? 0 : static_cast<std::uint32_t>(random.below(rows)));
      std::vector<std::uint32_t> expected;
      for (const std::uint32_t row : which) {
        std::uint64_t sum = 0;
        for (std::int64_t j = 0; j < stride; ++j) {
          const int d = int{query[static_cast<std::size_t>(j)]} -
                        int{codes[static_cast<std::size_t>(row * stride + j)]};
          sum += static_cast<std::uint64_t>(d * d);
        }
        ASSERT_LT(sum, std::uint64_t{1} << 32);
        expected.push_back(static_cast<std::uint32_t>(sum));
      }
      for (const Isa isa : test::levels()) {
        const detail::RowCodeKernel kernel = detail::row_code_kernel(isa);
        for (std::int64_t count = 0; count <= std::ssize(which); ++count) {
          std::vector<std::uint32_t> out(which.size() + 1, 77);
          kernel(query.data(), codes.data(), stride, stride, which.data(), count, out.data());
          for (std::int64_t i = 0; i < std::ssize(which); ++i)
            ASSERT_EQ(out[static_cast<std::size_t>(i)],
                      i < count ? expected[static_cast<std::size_t>(i)] : 77u)
                << name_of(isa) << " " << stride << " " << count << " " << i;
        }
      }
    }
  }
}

class GraphFlat : public testing::TestWithParam<std::tuple<Metric, bool>> {
 protected:
  const Metric metric = std::get<0>(GetParam());
  const bool integer = std::get<1>(GetParam());

  Matrix<float> rows(std::int64_t n, std::int64_t dim, std::uint64_t seed) const {
    return integer ? whole(n, dim, seed) : clustered(n, dim, seed, tight);
  }
};

INSTANTIATE_TEST_SUITE_P(Metrics, GraphFlat,
                         testing::Combine(testing::Values(Metric::l2, Metric::ip, Metric::cosine),
                                          testing::Bool()),
                         [](const auto& p) {
                           return std::string(name_of(std::get<0>(p.param))) +
                                  (std::get<1>(p.param) ? "_whole" : "_real");
                         });

TEST_P(GraphFlat, FindsMostOfWhatExactSearchFindsAtExactDistances) {
  const Matrix<float> base = rows(8000, 20, 1), queries = rows(200, 20, 2);
  Index index = make_index("Graph16", 20, metric);
  index.add(base.view());
  EXPECT_EQ(index.description(), "Graph16");
  const Neighbors truth = knn(queries.view(), base.view(), 10, {.metric = metric});
  KnnReport report;
  const Neighbors found = index.search(queries.view(), 10, by_ef(200), &report);
  EXPECT_EQ(report.method, "graph");
  EXPECT_EQ(report.graph.ef, 200);
  EXPECT_EQ(report.promise.recall_argument, "none");
  EXPECT_NE(report.note.find("made first"), std::string::npos) << report.note;
  EXPECT_GT(shared(found, truth), 0.97);
  for (std::int64_t q = 0; q < 200; ++q)
    for (std::int64_t j = 0; j < 10; ++j) {
      const double distance =
          reference_distance(metric, queries.row(q), base.row(found.ids.row(q)[j]), 20);
      ASSERT_EQ(found.distances.row(q)[j], static_cast<float>(distance));
    }
  // More effort finds more, and the most that there can be finds everything.
  EXPECT_LT(shared(index.search(queries.view(), 10, by_ef(10)), truth), shared(found, truth));
  expect_equal(index.search(queries.view(), 10, by_recall(1), &report), truth);
  EXPECT_EQ(report.promise.recall_argument, "exact");
  expect_equal(index.search(queries.view(), 10, {.method = {.kind = Method::exact}}), truth);
}

TEST_P(GraphFlat, IsTheSameForAnyThreadsBatchLevelAndOrderOfAdding) {
  const Matrix<float> base = rows(5000, 12, 1), queries = rows(90, 12, 2);
  Index index = make_index("Graph8", 12, metric), slowly = make_index("Graph8", 12, metric);
  index.add(base.view());
  for (std::int64_t begin = 0, step = 1; begin < 5000; begin += step, step = 2 * step + 3)
    slowly.add(base.view().rows(begin, std::min<std::int64_t>(5000, begin + step)));
  EXPECT_EQ(index.optimize({.threads = 2}), 5000);
  EXPECT_EQ(slowly.optimize({.threads = 1}), 5000);
  SearchOptions options = by_ef(20);
  const Neighbors all = index.search(queries.view(), 10, options);
  options.threads = 1;
  expect_equal(slowly.search(queries.view(), 10, options), all);
  for (std::int64_t q = 0; q < 90; q += 7) {
    const Neighbors one = index.search(queries.view().rows(q, q + 1), 10, options);
    for (std::int64_t j = 0; j < 10; ++j) ASSERT_EQ(one.ids.row(0)[j], all.ids.row(q)[j]);
  }
  const char* const before = getenv("KNEAR_ISA");
  const std::string kept = before ? before : "";
  for (const Isa isa : available_isas()) {
    if (metric != Metric::l2) break;
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    Index again = make_index("Graph8", 12, metric);
    again.add(base.view());
    expect_equal(again.search(queries.view(), 10, options), all);
  }
  before ? setenv("KNEAR_ISA", kept.c_str(), 1) : unsetenv("KNEAR_ISA");
}

TEST_P(GraphFlat, KeepsTheRecallThatIsAsked) {
  const Matrix<float> base = rows(8000, 16, 1), queries = rows(900, 16, 2);
  Index index = make_index("Graph16", 16, metric);
  index.add(base.view());
  const Neighbors truth = knn(queries.view(), base.view(), 10, {.metric = metric});
  double before = 0;
  for (const double recall : {0.8, 0.95}) {
    KnnReport report;
    const Neighbors found = index.search(queries.view(), 10, by_recall(recall), &report);
    EXPECT_EQ(report.promise.recall_argument, "calibrated") << report.note;
    EXPECT_EQ(report.promise.promised_recall, recall);
    EXPECT_GE(shared(found, truth), recall);
    // What is expected is what queries find that are no rows.
    EXPECT_NEAR(report.promise.expected_recall, shared(found, truth), 0.03);
    EXPECT_GE(report.scan.probed_rows, before);
    before = report.scan.probed_rows;
  }
  const std::vector<OperatingPoint> points = index.tune(10);
  ASSERT_GT(points.size(), 1u);
  for (std::size_t i = 1; i < points.size(); ++i)
    EXPECT_GT(points[i].promised_recall, points[i - 1].promised_recall);
  // Queries from elsewhere are noticed, in a batch too small to be calibrated by itself.
  Matrix<float> far = rows(50, 16, 3);
  Random random(1);
  for (std::int64_t i = 0; i < 50 * 16; ++i)
    far.data()[i] = static_cast<float>(random.uniform() * 2 - 1) * (integer ? 300.0f : 3.0f);
  KnnReport report;
  index.search(far.view(), 10, by_recall(0.9), &report);
  EXPECT_EQ(report.promise.recall_argument, "none");
  EXPECT_EQ(report.promise.promised_recall, 0);
  EXPECT_NE(report.note.find("unlike"), std::string::npos) << report.note;
}

// Queries that are rows find themselves: no row is out of reach.
TEST(GraphFlatReach, FindsEveryRowAmongCopiesAndClusters) {
  constexpr std::int64_t rows = 6000, dim = 6;
  Matrix<float> base = clustered(rows, dim, 5, {.count = 3000, .spread = 0.001});
  // 1,500 copies of one row, 40 each of others, and a few far away.
  for (std::int64_t i = 0; i < 1500; ++i) std::copy_n(base.row(0), dim, base.row(i));
  for (std::int64_t i = 2000; i < 3000; ++i) std::copy_n(base.row(2000 + i % 50), dim, base.row(i));
  for (std::int64_t i = 4000; i < 4010; ++i)
    for (std::int64_t j = 0; j < dim; ++j) base.row(i)[j] = static_cast<float>(50 + i % 7 + j);
  Index index = make_index("Graph8", dim);
  index.add(base.view());
  const Neighbors found = index.search(base.view(), 1, by_ef(64));
  std::int64_t missed = 0;
  for (std::int64_t i = 0; i < rows; ++i) missed += found.distances.row(i)[0] != 0;
  EXPECT_LE(missed, rows / 200);
  // Of equal rows the first are found, as everywhere.
  const Neighbors copies = index.search(base.view().rows(700, 701), 20, by_ef(64));
  for (std::int64_t j = 0; j < 20; ++j) EXPECT_EQ(copies.ids.row(0)[j], j);
}

// Every node is on some way from the nodes of the layer above, whatever lies far from all others.
TEST(GraphFlatReach, WaysLeadToEveryNode) {
  const Clusters sets[] = {{.count = 1500, .spread = 0.01}, {.count = 40, .spread = 0.05}, tight};
  for (const Clusters& how : sets)
    for (const std::int64_t dim : {2, 8, 30}) {
      Index index = make_index("Graph4", dim);
      index.add(clustered(6000, dim, 3, how).view());
      const auto state = index.body().one().state();
      const auto graph = detail::build_row_graph(*state, index.body().one().shape, 2, {});
      const std::int64_t nodes = graph->nodes();
      ASSERT_GT(nodes, 2000);
      std::vector<char> reached(static_cast<std::size_t>(nodes), 0);
      std::vector<std::uint32_t> next;
      const auto reach = [&](std::uint32_t node) {
        if (!std::exchange(reached[node], char{1})) next.push_back(node);
      };
      for (std::int64_t i = 0; i < detail::RowGraph::nodes_above(nodes); ++i)
        reach(detail::RowGraph::below(static_cast<std::uint32_t>(i)));
      while (!next.empty()) {
        const std::uint32_t* const links = graph->layers[0].links.data() + next.back() * 4;
        next.pop_back();
        for (int j = 0; j < 4 && links[j] != detail::no_node; ++j) reach(links[j]);
      }
      EXPECT_EQ(std::count(reached.begin(), reached.end(), 1), nodes) << dim << " " << how.count;
    }
}

// Rows in groups of fewer than there are neighbours, so that no neighbour is in another group.
TEST(GraphFlatReach, WalksFromGroupToGroup) {
  const Clusters groups{.count = 400, .spread = 0.2};
  const Matrix<float> base = clustered(6000, 10, 1, groups),
                      queries = clustered(300, 10, 2, groups);
  Index index = make_index("Graph8", 10);
  index.add(base.view());
  const Neighbors truth = knn(queries.view(), base.view(), 10);
  EXPECT_GT(shared(index.search(queries.view(), 10, by_ef(60)), truth), 0.85);
}

TEST(GraphFlatFilter, WalksThroughRowsThatMayNotBeFound) {
  const Matrix<float> base = clustered(12000, 10, 1, tight), queries = clustered(100, 10, 2, tight);
  Index index = make_index("Graph16", 10);
  index.add(base.view());
  index.optimize();
  Random random(1);
  std::vector<Id> removed;
  for (Id id = 0; id < 12000; ++id)
    if (random.uniform() < 0.1) removed.push_back(id);
  index.remove(removed);
  for (const double share : {1.0, 0.9, 0.5}) {
    std::vector<Id> allowed;
    std::vector<std::uint8_t> bits(1500, 0);
    for (const Id id : index.ids())
      if (random.uniform() < share)
        allowed.push_back(id), bits[static_cast<std::size_t>(id / 8)] |= 1 << (id % 8);
    const Neighbors truth =
        knn(queries.view(), base.view(), 5, {.filter = RowFilter::of_ids(allowed, 12000)});
    for (const bool by_ids : {true, false}) {
      SearchOptions options = by_ef(20);
      if (share < 1)
        options.filter = by_ids ? IdFilter::of_ids(allowed) : IdFilter::of_bits(bits, 12000);
      KnnReport report;
      const Neighbors found = index.search(queries.view(), 5, options, &report);
      ASSERT_EQ(report.method, "graph");
      const std::set<Id> may(allowed.begin(), allowed.end());
      for (std::int64_t i = 0; i < found.ids.rows() * 5; ++i)
        ASSERT_TRUE(may.contains(found.ids.data()[i])) << share << " " << found.ids.data()[i];
      EXPECT_GT(shared(found, truth), 0.9) << share;
    }
  }
}

TEST(GraphFlatLife, FollowsAPlainMapThroughRandomChanges) {
  constexpr std::int64_t dim = 10;
  const std::string path = testing::TempDir() + "/graph_life_" + std::to_string(getpid());
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Random random(17 + static_cast<std::uint64_t>(metric));
    Index index = make_index("Graph16", dim, metric);
    std::map<Id, std::vector<float>> rows;
    std::uint64_t seed = 100;
    const auto add = [&](std::int64_t count) {
      const Matrix<float> more = clustered(count, dim, ++seed, tight);
      for (std::int64_t i = 0; i < count; ++i)
        rows[index.next_id() + i] = {more.row(i), more.row(i) + dim};
      index.add(more.view());
    };
    add(3000);
    for (int step = 0; step < 10; ++step) {
      const auto op = random.below(8);
      const auto some = static_cast<std::int64_t>(1 + random.below(200));
      if (op == 0) {
        add(some * 5);
      } else if (op <= 2) {
        add(some);
      } else if (op <= 4) {
        const std::vector<Id> ids = drawn_ids(rows, some * (op == 4 ? 4 : 1), random);
        if (rows.size() - ids.size() < 1200) continue;
        index.remove(ids);
        for (const Id id : ids) rows.erase(id);
      } else if (op == 5) {
        const std::vector<Id> ids = drawn_ids(rows, some, random);
        const Matrix<float> more = clustered(std::ssize(ids), dim, ++seed, tight);
        index.replace(ids, more.view());
        for (std::size_t i = 0; i < ids.size(); ++i)
          rows[ids[i]].assign(more.row(static_cast<std::int64_t>(i)),
                              more.row(static_cast<std::int64_t>(i)) + dim);
      } else if (op == 6) {
        const Matrix<float> queries = clustered(5, dim, ++seed, tight);
        index.search(queries.view(), 3, by_ef(10));
        index.save(path);
        const Neighbors before = index.search(queries.view(), 10, by_ef(30));
        index = Index::load(path);
        EXPECT_EQ(index.description(), "Graph16");
        KnnReport report;
        expect_equal(index.search(queries.view(), 10, by_ef(30), &report), before);
        EXPECT_EQ(report.note, "");
      } else {
        Index other = make_index("Graph16", dim, metric);
        const Matrix<float> more = clustered(some, dim, ++seed, tight);
        other.add(more.view());
        for (std::int64_t i = 0; i < some; ++i)
          rows[index.next_id() + i] = {more.row(i), more.row(i) + dim};
        index.merge(other, MergeIds::shifted);
        if (random.below(2)) index.compact();
      }
      ASSERT_EQ(index.size(), std::ssize(rows));
      std::vector<Id> ids;
      Matrix<float> all(std::ssize(rows), dim);
      for (const auto& [id, row] : rows) {
        std::copy_n(row.data(), dim, all.row(std::ssize(ids)));
        ids.push_back(id);
      }
      const Matrix<float> queries = clustered(40, dim, ++seed, tight);
      // Without a filter, with one that leaves most, half, and few.
      for (const double share : {1.0, 0.9, 0.5, 0.01}) {
        std::vector<Id> allowed, numbers;
        for (std::size_t i = 0; i < ids.size(); ++i)
          if (random.uniform() < share)
            allowed.push_back(ids[i]), numbers.push_back(static_cast<Id>(i));
        SearchOptions options = by_ef(60);
        KnnOptions exact{.metric = metric};
        if (share < 1) {
          options.filter = IdFilter::of_ids(allowed);
          exact.filter = RowFilter::of_ids(numbers, std::ssize(ids));
        }
        const Neighbors found = index.search(queries.view(), 10, options);
        Neighbors truth = knn(queries.view(), all.view(), 10, exact);
        const std::set<Id> may(allowed.begin(), allowed.end());
        for (std::int64_t q = 0; q < 40; ++q) {
          std::set<Id> once;
          for (std::int64_t j = 0; j < 10; ++j) {
            const Id id = found.ids.row(q)[j];
            if (truth.ids.row(q)[j] != no_id)
              truth.ids.row(q)[j] = ids[static_cast<std::size_t>(truth.ids.row(q)[j])];
            if (id == no_id) continue;
            ASSERT_TRUE(once.insert(id).second) << "twice " << id;
            ASSERT_TRUE(rows.contains(id)) << id << " was taken out";
            ASSERT_TRUE(share == 1 || may.contains(id)) << id << " is not allowed";
            ASSERT_EQ(found.distances.row(q)[j],
                      static_cast<float>(
                          reference_distance(metric, queries.row(q), rows.at(id).data(), dim)));
          }
        }
        EXPECT_GT(shared(found, truth), 0.93) << "step " << step << " share " << share;
        SearchOptions certain = options;
        certain.method = {.recall = 1};
        expect_equal(index.search(queries.view(), 10, certain), truth);
      }
    }
  }
  std::filesystem::remove(path);
}

// The graph kept the id of every row that was ever added after it was made: 8 bytes each, in memory
// and in its file.
TEST(GraphFlatLife, ForgetsRowsThatAreGoneAgain) {
  const Matrix<float> base = clustered(1500, 8, 1), others = clustered(300, 8, 2);
  Index index = make_index("Graph16", 8);
  index.add(base.view());
  index.optimize();
  const std::int64_t bytes = index.memory_bytes();
  for (int round = 0; round < 60; ++round) {
    std::vector<Id> added(300);
    std::iota(added.begin(), added.end(), index.next_id());
    index.add(others.view());
    index.remove(added);
  }
  EXPECT_LT(index.memory_bytes(), bytes + 40000);
  EXPECT_EQ(index.search(base.view().rows(0, 50), 1, by_ef(64)).ids.row(17)[0], 17);
}

TEST(GraphFlatFile, IsRefusedWhereItWasAltered) {
  const std::string path = testing::TempDir() + "/graph_file_" + std::to_string(getpid());
  const Matrix<float> base = clustered(1500, 8, 1, tight), queries = clustered(20, 8, 2, tight);
  Index index = make_index("Graph4", 8);
  index.add(base.view());
  index.tune(5);
  index.save(path);
  const Neighbors before = index.search(queries.view(), 5, by_ef(20));
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  Random random(3);
  int refused = 0;
  constexpr int trials = 100;
  for (int trial = 0; trial < trials; ++trial) {
    std::string altered = whole;
    if (trial % 3 == 0)
      altered.resize(random.below(whole.size()));
    else
      altered[random.below(whole.size())] ^= static_cast<char>(1 + random.below(255));
    std::ofstream(path, std::ios::binary) << altered;
    try {
      const Index loaded = Index::load(path);
      expect_equal(loaded.search(queries.view(), 5, by_ef(20)), before);
      loaded.reconstruct(loaded.ids());
    } catch (const CorruptFile&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, trials / 2);
  std::filesystem::remove(path);
}

// A file whose checksums are right but whose numbers are not: nothing may crash.
TEST(GraphFlatFile, WrongNumbersWithRightChecksumsAreHarmless) {
  const std::string path = testing::TempDir() + "/graph_numbers_" + std::to_string(getpid());
  const Matrix<float> base = clustered(6000, 8, 1, tight), queries = clustered(20, 8, 2, tight);
  Index index = make_index("Graph4", 8);
  index.add(base.view().rows(0, 5990));
  index.tune(5);
  index.add(base.view().rows(5990, 6000));
  index.save(path);
  const auto archive = io::Archive::open(path);
  Random random(6);
  int refused = 0;
  for (int round = 0; round < 100; ++round) {
    io::ArchiveWriter writer("GraphFlat");
    std::vector<std::size_t> graphs;
    for (std::size_t i = 0; i < archive->sections().size(); ++i)
      if (archive->sections()[i].name.starts_with(round % 4 ? "graph" : "recall"))
        graphs.push_back(i);
    const std::size_t chosen = graphs[random.below(graphs.size())];
    for (std::size_t i = 0; i < archive->sections().size(); ++i) {
      const io::Section& section = archive->sections()[i];
      std::vector<std::byte> bytes(section.data, section.data + section.bytes);
      const auto kind = random.below(5);
      if (i != chosen || bytes.empty()) {
      } else if (kind <= 1 && bytes.size() >= 8) {
        const std::int64_t values[] = {0,
                                       -1,
                                       1,
                                       255,
                                       1 << 20,
                                       std::int64_t{1} << 40,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min()};
        std::memcpy(bytes.data() + random.below(bytes.size() / 8) * 8, &values[random.below(8)], 8);
      } else if (kind == 2) {
        for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
      } else if (kind == 3) {
        bytes.resize(random.below(bytes.size()));
      } else {
        continue;  // missing
      }
      writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
    }
    writer.write(path + "b", {});
    try {
      Index loaded = Index::load(path + "b");
      loaded.search(queries.view(), 5, by_ef(20));
      loaded.search(queries.view(), 5, by_recall(0.9));
      loaded.add(base.view().rows(0, 3));
      loaded.search(queries.view(), 5, by_ef(20));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
  std::filesystem::remove(path);
  std::filesystem::remove(path + "b");
}

TEST(GraphFlatRefused, SaysWhatIsWrong) {
  const Matrix<float> base = clustered(2000, 8, 1, tight);
  Index index = make_index("Graph8", 8);
  index.add(base.view());
  const auto search = [&](SearchMethod method, std::int64_t k = 10) {
    return message([&] { index.search(base.view().rows(0, 3), k, {.method = method}); });
  };
  EXPECT_EQ(search({}),
            "neither ef nor recall is given, and a search of index Graph8 needs one of "
            "them");
  EXPECT_EQ(search({.ef = 5}),
            "ef is 5, but 10 neighbours are to be found among so many candidates");
  EXPECT_EQ(search({.ef = -1}), "ef must not be negative, but is -1");
  EXPECT_EQ(search({.recall = 0.9, .ef = 50}),
            "ef is 50 and recall is 0.9, but only one of them can be asked for");
  EXPECT_EQ(search({.probes = 4}), "probes is 4, but index Graph8 has no inverted lists");
  EXPECT_EQ(search({.recall = 1.5}), "recall must be in (0, 1], but is 1.5");
  EXPECT_EQ(search({.recall = 0.9, .lists = {.certify = true}}),
            "certify is on, but a walk on a graph proves nothing: recall = 1 does");
  EXPECT_EQ(message([] { make_index("Graph2", 8); }),
            "factory 'Graph2' has 'Graph2' at place 1, but a row has 4 to 256 links");
  EXPECT_EQ(message([] { make_index("IVF8,Graph32", 8); }),
            "factory 'IVF8,Graph32' has 'Graph32' at place 6, but a graph goes over all vectors, "
            "without lists");
  EXPECT_EQ(make_index("PCA4,Graph32,Flat", 8).description(), "PCA4,Graph32");
  Index flat = make_index("Flat", 8);
  flat.add(base.view());
  EXPECT_EQ(message([&] { flat.search(base.view().rows(0, 1), 3, by_ef(10)); }),
            "ef is 10, but there is no graph");
  Index lists = make_index("IVF4,Flat", 8);
  lists.train(base.view());
  EXPECT_EQ(message([&] { lists.search(base.view().rows(0, 1), 3, by_ef(10)); }),
            "ef is 10, but index IVF4,Flat has no graph");
  EXPECT_EQ(message([&] {
              Index fresh = make_index("Graph8", 8);
              fresh.add(base.view());
              fresh.search(base.view().rows(0, 1), 3, {.memory = 100'000, .method = {.ef = 10}});
            }).substr(0, 84),
            "memory is 100000 bytes, but the graph of 2000 rows, which has to be made first, take");
  index.optimize();
  SearchOptions narrow = by_ef(10);
  narrow.memory = 1000;
  EXPECT_EQ(message([&] { index.search(base.view().rows(0, 1), 3, narrow); }).substr(0, 62),
            "memory is 1000 bytes, but this walk on a graph needs at least ");
  narrow.memory = 50'000;
  expect_equal(index.search(base.view().rows(0, 99), 3, narrow),
               index.search(base.view().rows(0, 99), 3, by_ef(10)));
  // No walk keeps more nodes than there are.
  narrow.method.ef = std::int64_t{1} << 40, narrow.memory = 200'000;
  expect_equal(index.search(base.view().rows(0, 99), 3, narrow),
               index.search(base.view().rows(0, 99), 3, by_ef(2000)));
  // Fewer rows than a graph is worth are all compared.
  Index few = make_index("Graph8", 8);
  few.add(base.view().rows(0, 100));
  KnnReport report;
  expect_equal(few.search(base.view().rows(0, 9), 5, by_ef(10), &report),
               knn(base.view().rows(0, 9), base.view().rows(0, 100), 5));
  EXPECT_EQ(report.promise.recall_argument, "exact");
  EXPECT_EQ(message([&] { few.tune(5); }),
            "index Graph8 has 100 rows, but below 1024 all are compared, whatever the recall: "
            "there is nothing to tune");
  Index empty = make_index("Graph8", 8);
  EXPECT_EQ(empty.search(base.view().rows(0, 1), 2, by_ef(10)).ids.row(0)[0], no_id);
}

TEST(GraphFlatReach, ComparesAllRowsWhereItMayNotMakeTheGraph) {
  const Matrix<float> base = clustered(5000, 8, 1, tight), queries = clustered(40, 8, 2, tight);
  Index index = make_index("Graph16", 8);
  index.add(base.view());
  const Neighbors truth = knn(queries.view(), base.view(), 10);
  KnnReport report;
  {
    const StopCheck check([] {}, Preparing::refused);
    for (const SearchOptions& options : {by_ef(20), by_recall(0.9)}) {
      EXPECT_EQ(shared(index.search(queries.view(), 10, options, &report), truth), 1);
      EXPECT_NE(report.note.find("the graph is made aside"), std::string::npos) << report.note;
      EXPECT_NE(report.method, "graph");
    }
    EXPECT_TRUE(check.has_refused());
  }
  index.optimize();
  const StopCheck check([] {}, Preparing::refused);
  index.search(queries.view(), 10, by_ef(20), &report);
  EXPECT_EQ(report.method, "graph");
  EXPECT_FALSE(check.has_refused());
  EXPECT_THROW(index.search(queries.view(), 10, by_recall(0.9)), NotPrepared);
}

}  // namespace
}  // namespace knear
