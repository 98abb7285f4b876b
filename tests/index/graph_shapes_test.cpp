// tests/index/graph_shapes_test.cpp -- searches of a graph on rows that codes of 8 bits with one
// unit cannot tell apart (far clusters, uneven lengths, a time axis in float64): what they find
// beside exact search, that it depends on nothing, and files.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/knn.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

constexpr std::int64_t row_count = 2000, query_count = 60, neighbors = 10;

// A sum of uniform numbers, about as normal ones are.
double normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return sum;
}

struct Shape {
  std::string name;
  Metric metric;
  std::int64_t dim;
  bool doubles;
  std::function<void(Random&, double* row, std::int64_t dim)> draw;
};

std::vector<Shape> shapes() {
  const auto clusters = [](double apart) {
    return [apart](Random& random, double* row, std::int64_t dim) {
      Random centre(1 + random.below(5));
      for (std::int64_t j = 0; j < dim; ++j) row[j] = apart * normal(centre) + normal(random);
    };
  };
  const auto lengths = [](auto length) {
    return [length](Random& random, double* row, std::int64_t dim) {
      const double to = length(random);
      for (std::int64_t j = 0; j < dim; ++j) row[j] = to * normal(random);
    };
  };
  const auto pareto = lengths([](Random& random) { return 1 / (1 - random.uniform()); });
  const auto lognormal = lengths([](Random& random) { return std::exp(2 * normal(random)); });
  // Seconds since 1970 and a value.
  const auto time = [](Random& random, double* row, std::int64_t dim) {
    row[0] = 1.7e9 + 1e5 * random.uniform();
    for (std::int64_t j = 1; j < dim; ++j) row[j] = 0.01 * random.uniform();
  };
  return {{"clusters_100_apart", Metric::l2, 24, false, clusters(100)},
          {"clusters_10000_apart", Metric::ip, 24, false, clusters(1e4)},
          {"clusters_10000_apart_cosine", Metric::cosine, 24, false, clusters(1e4)},
          {"pareto", Metric::l2, 24, false, pareto},
          {"pareto_ip", Metric::ip, 24, false, pareto},
          {"lognormal_ip", Metric::ip, 16, false, lognormal},
          {"time", Metric::l2, 2, true, time}};
}

AnyMatrix drawn(const Shape& shape, std::int64_t rows, std::uint64_t seed) {
  AnyMatrix out(shape.doubles ? ElementType::f64 : ElementType::f32, rows, shape.dim);
  Random random(seed);
  std::vector<double> row(static_cast<std::size_t>(shape.dim));
  for (std::int64_t i = 0; i < rows; ++i) {
    shape.draw(random, row.data(), shape.dim);
    for (std::int64_t j = 0; j < shape.dim; ++j)
      if (const double x = row[static_cast<std::size_t>(j)]; shape.doubles)
        static_cast<double*>(out.row(i))[j] = x;
      else
        static_cast<float*>(out.row(i))[j] = static_cast<float>(x);
  }
  return out;
}

SearchOptions by_ef(std::int64_t ef) { return {.method = {.ef = ef}}; }

class GraphShapes : public testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Data, GraphShapes, testing::ValuesIn(shapes()),
                         [](const auto& p) { return p.param.name; });

TEST_P(GraphShapes, FindsWhatExactSearchFinds) {
  const Shape& shape = GetParam();
  const AnyMatrix base = drawn(shape, row_count, 1), queries = drawn(shape, query_count, 2);
  Index index = make_index("Graph16", shape.dim, shape.metric);
  index.add(base.view());
  const Neighbors truth = knn(queries.view(), base.view(), neighbors, {.metric = shape.metric});
  const Neighbors found = index.search(queries.view(), neighbors, by_ef(128));
  std::int64_t hits = 0;
  const bool larger = traits_of(shape.metric).larger_is_nearer;
  for (std::int64_t q = 0; q < query_count; ++q) {
    const float last = truth.distances.row(q)[neighbors - 1];
    for (std::int64_t i = 0; i < neighbors; ++i) {
      const float distance = found.distances.row(q)[i];
      hits += larger ? distance >= last : distance <= last;
    }
  }
  EXPECT_GE(hits, query_count * neighbors * 95 / 100);
  // The effort of a recall is known.
  KnnReport report;
  index.search(queries.view(), neighbors, {.method = {.recall = 0.9}}, &report);
  EXPECT_EQ(report.method, "graph") << report.note;
}

TEST_P(GraphShapes, DependsOnNeitherLevelNorThreadsNorBatchAndLiesInAFile) {
  const Shape& shape = GetParam();
  const AnyMatrix base = drawn(shape, row_count, 1), queries = drawn(shape, query_count, 2);
  Index index = make_index("Graph8", shape.dim, shape.metric);
  index.add(base.view());
  SearchOptions options = by_ef(20);
  const Neighbors all = index.search(queries.view(), neighbors, options);
  options.threads = 1;
  const char* const before = getenv("KNEAR_ISA");
  const std::string kept = before ? before : "";
  for (const Isa isa : available_isas()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    Index again = make_index("Graph8", shape.dim, shape.metric);
    again.add(base.view());
    expect_equal(again.search(queries.view(), neighbors, options), all);
  }
  before ? setenv("KNEAR_ISA", kept.c_str(), 1) : unsetenv("KNEAR_ISA");
  for (std::int64_t q = 0; q < query_count; q += 7) {
    const Neighbors one = index.search(queries.view().rows(q, q + 1), neighbors, options);
    for (std::int64_t j = 0; j < neighbors; ++j) ASSERT_EQ(one.ids.row(0)[j], all.ids.row(q)[j]);
  }
  const std::string path =
      testing::TempDir() + "/graph_shapes_" + shape.name + std::to_string(getpid());
  index.save(path);
  EXPECT_TRUE(io::Archive::open(path)->has("graph/numbers"));
  expect_equal(Index::load(path).search(queries.view(), neighbors, options), all);
  std::filesystem::remove(path);
}

// Rows that codes tell apart keep codes, a quarter of the bytes.
TEST(GraphShapesOfPlainRows, AreInCodes) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Shape plain{"", metric, 24, false, [](Random& random, double* row, std::int64_t dim) {
                        for (std::int64_t j = 0; j < dim; ++j) row[j] = normal(random);
                      }};
    Index index = make_index("Graph8", plain.dim, metric);
    index.add(drawn(plain, row_count, 1).view());
    const std::string path = testing::TempDir() + "/graph_plain_" + std::to_string(getpid());
    index.save(path);
    EXPECT_FALSE(io::Archive::open(path)->has("graph/numbers"));
    EXPECT_TRUE(io::Archive::open(path)->has("graph/lows"));
    std::filesystem::remove(path);
  }
}

// A file whose checksums are right but whose numbers are not: nothing may crash.
TEST(GraphShapesFile, WrongNumbersAreRefusedOrHarmless) {
  const Shape shape = shapes().front();
  const std::string path = testing::TempDir() + "/graph_wrong_" + std::to_string(getpid());
  const AnyMatrix queries = drawn(shape, 20, 2);
  Index index = make_index("Graph8", shape.dim, shape.metric);
  index.add(drawn(shape, row_count, 1).view());
  index.save(path);
  const auto archive = io::Archive::open(path);
  const auto try_with = [&](const std::string& name, std::vector<std::byte> instead) {
    io::ArchiveWriter writer("GraphFlat");
    for (const io::Section& section : archive->sections())
      if (section.name == name)
        writer.add_copy(name, instead.data(), instead.size());
      else
        writer.add_copy(std::string(section.name), section.data, section.bytes);
    writer.write(path + "b", {});
    Index::load(path + "b").search(queries.view(), 5, by_ef(20));
  };
  const auto bytes_of = [](std::int64_t x) {
    std::vector<std::byte> out(sizeof x);
    std::memcpy(out.data(), &x, sizeof x);
    return out;
  };
  for (const std::int64_t wrong :
       {std::int64_t{0}, std::int64_t{-4}, std::int64_t{2}, std::int64_t{8}, std::int64_t{1} << 40})
    EXPECT_THROW(try_with("graph/numbers", bytes_of(wrong)), CorruptFile) << wrong;
  EXPECT_THROW(try_with("graph/numbers", {}), CorruptFile);
  // Any bytes are numbers of a node, NaN and infinities among them.
  Random random(3);
  for (int round = 0; round < 8; ++round) {
    const io::Section section = archive->read("graph/0/codes");
    std::vector<std::byte> noise(section.bytes);
    for (auto& byte : noise)
      byte = round == 0 ? std::byte{0xff} : static_cast<std::byte>(random.below(256));
    try_with("graph/0/codes", std::move(noise));
  }
  std::filesystem::remove(path);
  std::filesystem::remove(path + "b");
}

}  // namespace
}  // namespace knear
