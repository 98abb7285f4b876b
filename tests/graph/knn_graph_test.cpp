// knn_graph and build_graph_file beside a search for every row; files that are cut off, altered or
// of another base; and builds that were killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "knear/distance/reference.hpp"
#include "knear/graph/knn_graph.hpp"
#include "knear/graph/partial_graph.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/graph/statistics.hpp"
#include "knear/io/vectors.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using io::expect_error;
using test::make;

class KnnGraph : public io::FileTest {};
class GraphFile : public io::FileTest {};

// Vectors of which every seventh is a copy of one before it.
AnyMatrix with_copies(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  AnyMatrix out = make(type, rows, dim, [&](std::int64_t, std::int64_t) {
    return std::floor(20 + 30 * random.uniform()) * (type == ElementType::u8 ? 1 : 0.37);
  });
  const std::size_t bytes = static_cast<std::size_t>(dim * size_of(type));
  for (std::int64_t i = 7; i < rows; i += 7) std::memcpy(out.row(i), out.row(i / 2), bytes);
  return out;
}

bool equal_rows(AnyMatrixView base, Id a, Id b) {
  return std::memcmp(base.row(a), base.row(b),
                     static_cast<std::size_t>(base.cols() * size_of(base.type()))) == 0;
}

// The neighbours of every row by measuring all of them, one row at a time.
Neighbors plain_graph(AnyMatrixView base, std::int64_t k, Metric metric, bool distinct) {
  const std::int64_t n = base.rows();
  const Neighbors all = knn(base, base, std::max<std::int64_t>(1, n),
                            {.metric = metric, .first_pass = FirstPass::direct});
  Neighbors out{Matrix<Id>(n, k), Matrix<float>(n, k)};
  for (Id i = 0; i < n; ++i) {
    std::int64_t to = 0;
    std::vector<Id> taken;
    for (std::int64_t j = 0; j < n && to < k; ++j) {
      const Id other = all.ids.row(i)[j];
      if (other == i) continue;
      if (distinct) {
        // The first of its copies, which may not be nearer in the order but has the least id.
        if (equal_rows(base, i, other)) continue;
        bool first = true;
        for (Id b = 0; b < other && first; ++b) first = !equal_rows(base, b, other);
        if (!first) continue;
      }
      out.ids.row(i)[to] = other;
      out.distances.row(i)[to++] = all.distances.row(i)[j];
    }
    for (; to < k; ++to) out.ids.row(i)[to] = no_id, out.distances.row(i)[to] = no_distance(metric);
  }
  return out;
}

void expect_same(const NeighborGraph& graph, const Neighbors& wanted) {
  ASSERT_EQ(graph.rows(), wanted.ids.rows());
  ASSERT_EQ(graph.k(), wanted.ids.cols());
  for (Id i = 0; i < graph.rows(); ++i)
    for (std::int64_t j = 0; j < graph.k(); ++j)
      ASSERT_EQ(graph.ids().row(i)[j], wanted.ids.row(i)[j]) << "row " << i << ", place " << j;
  EXPECT_TRUE(same_bits(graph.distances(), wanted.distances));
}

Neighbors copied(const NeighborGraph& graph) {
  Neighbors out{Matrix<Id>(graph.rows(), graph.k()), Matrix<float>(graph.rows(), graph.k())};
  for (Id i = 0; i < graph.rows(); ++i) {
    std::copy_n(graph.ids().row(i), graph.k(), out.ids.row(i));
    std::copy_n(graph.distances().row(i), graph.k(), out.distances.row(i));
  }
  return out;
}

TEST_F(KnnGraph, is_that_of_a_search_for_every_row) {
  for (const ElementType type : all_element_types)
    for (const Metric metric : test::metrics)
      for (const bool distinct : {false, true}) {
        const AnyMatrix base = with_copies(type, 150, 12, 3);
        const Neighbors wanted = plain_graph(base, 9, metric, distinct);
        KnnGraphReport report;
        expect_same(knn_graph(base, 9, {.metric = metric, .distinct = distinct}, &report), wanted);
        EXPECT_EQ(report.searched_rows, 150);
        EXPECT_EQ(report.promised_recall, 1);
        EXPECT_LT(report.distinct_rows, distinct ? 150 : 151);
        const std::string path = FileTest::path("graph.knear");
        build_graph_file(base, 9, path, {.metric = metric, .distinct = distinct}, Resume::no,
                         nullptr, 37);
        const NeighborGraph read = NeighborGraph::load(path);
        expect_same(read, wanted);
        EXPECT_EQ(read.metric(), metric);
        EXPECT_EQ(read.properties().distinct, distinct);
        EXPECT_EQ(read.properties().base.type, type);
        EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
        read.check_base(base);
      }
}

TEST_F(KnnGraph, has_fewer_neighbours_where_there_are_fewer_rows) {
  for (const std::int64_t rows : {0, 1, 2, 5}) {
    const AnyMatrix base = with_copies(ElementType::f32, rows, 4, 1);
    const NeighborGraph graph = knn_graph(base, 6);
    expect_same(graph, plain_graph(base, 6, Metric::l2, false));
    graph.save(this->path("g.knear"));
    expect_same(NeighborGraph::load(this->path("g.knear")), copied(graph));
  }
}

TEST_F(KnnGraph, refuses_what_it_cannot_do) {
  AnyMatrix base = with_copies(ElementType::f32, 20, 4, 1);
  EXPECT_THROW(knn_graph(base, 0), InvalidArgument);
  EXPECT_THROW(knn_graph(base, std::int64_t{1} << 31), InvalidArgument);
  EXPECT_THROW(knn_graph(base, 3, {.recall = 0.0}), InvalidArgument);
  EXPECT_THROW(knn_graph(base, 3, {.recall = 1.5}), InvalidArgument);
  EXPECT_THROW(knn_graph(base, 3, {.memory = -1}), InvalidArgument);
  EXPECT_THROW(knn_graph(AnyMatrix(ElementType::f32, 3, 0), 3), InvalidArgument);
  static_cast<float*>(base.row(4))[1] = std::numeric_limits<float>::quiet_NaN();
  expect_error<InvalidArgument>([&] { knn_graph(base, 3); }, "row 4");
  expect_error<InvalidArgument>([&] { knn_graph(base, 3, {.distinct = true}); }, "row 4");
  EXPECT_THROW(knn_graph(with_copies(ElementType::f32, 20, 4, 1), 3,
                         {.progress = [](std::string_view, double) { return false; }}),
               Cancelled);
}

TEST_F(GraphFile, belongs_to_its_base) {
  const AnyMatrix base = with_copies(ElementType::f32, 60, 5, 1);
  AnyMatrix other = with_copies(ElementType::f32, 60, 5, 1);
  static_cast<float*>(other.row(59))[4] += 1;
  const NeighborGraph graph = knn_graph(base, 4);
  graph.check_base(base);
  expect_error<InvalidArgument>([&] { graph.check_base(other, "my.knear"); },
                                "my.knear is the graph of another base");
  expect_error<InvalidArgument>([&] { graph.check_base(base.view().rows(0, 59)); },
                                "60 x 5 f32, but the base is 59 x 5 f32");
  // A strided view of the same rows is the same base.
  AnyMatrix wide(ElementType::f32, 60, 9);
  for (int i = 0; i < 60; ++i) std::memcpy(wide.row(i), base.view().row(i), 5 * sizeof(float));
  graph.check_base({ElementType::f32, wide.view().data(), 60, 5, 9});
}

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> text((std::istreambuf_iterator<char>(in)), {});
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
void put_bytes(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

TEST_F(GraphFile, is_refused_when_cut_off_or_altered) {
  const std::string path = FileTest::path("g.knear"), bad = FileTest::path("bad.knear");
  const AnyMatrix base = with_copies(ElementType::f32, 300, 5, 1);
  knn_graph(base, 4).save(path);
  const std::vector<std::byte> whole = bytes_of(path);
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    put_bytes(bad, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
    EXPECT_THROW(NeighborGraph::load(bad), Error) << size;
  }
  for (std::size_t at = 0; at < whole.size(); at += 13) {
    std::vector<std::byte> altered = whole;
    altered[at] ^= std::byte{16};
    put_bytes(bad, altered);
    EXPECT_THROW(NeighborGraph::load(bad), CorruptFile) << at;
  }
  // An index is no graph.
  EXPECT_THROW(NeighborGraph::load(this->path("none.knear")), IoError);
}

// Right checksums, wrong numbers.
TEST_F(GraphFile, is_refused_with_edges_that_cannot_be) {
  const std::string path = FileTest::path("g.knear");
  const GraphProperties properties{.base = {2, 3, ElementType::f32, 5}};
  const auto save = [&](Id id, float distance) {
    Neighbors near{Matrix<Id>(2, 1), Matrix<float>(2, 1)};
    near.ids.row(0)[0] = 1, near.distances.row(0)[0] = 1;
    near.ids.row(1)[0] = id, near.distances.row(1)[0] = distance;
    NeighborGraph(std::move(near), properties).save(path);
  };
  const auto refused = [&](Id id, float distance) {
    save(id, distance);
    EXPECT_THROW(NeighborGraph::load(path), CorruptFile) << id;
  };
  refused(2, 1), refused(1, 1), refused(-2, 1);
  refused(0, std::numeric_limits<float>::quiet_NaN());
  // One that overflowed is refused before there is a file.
  std::filesystem::remove(path);
  EXPECT_THROW(save(0, std::numeric_limits<float>::infinity()), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(GraphFile, goes_on_after_a_kill) {
  const std::string path = FileTest::path("g.knear"), partial = path + ".partial";
  const AnyMatrix base = with_copies(ElementType::f32, 2000, 16, 1);
  const Neighbors wanted = copied(knn_graph(base, 5));
  // Killed while some block is searched for, each time a later one.
  int kills = 0;
  for (const int after : {1, 3, 3, 3}) {
    const pid_t child = fork();
    if (child == 0) {
      int blocks = 0;
      double last = -1;
      const Progress progress = [&](std::string_view stage, double fraction) {
        if (stage == "graph" && fraction > last + 0.09) ++blocks, last = fraction;
        if (blocks >= after) kill(getpid(), SIGKILL);
        return true;
      };
      build_graph_file(base, 5, path, {.threads = 1, .progress = progress},
                       kills > 0 ? Resume::yes : Resume::no, nullptr, 190);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) ++kills;
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(std::filesystem::exists(partial));
  }
  EXPECT_EQ(kills, 4);
  expect_error<InvalidArgument>(
      [&] { build_graph_file(base, 5, path, {}, Resume::no, nullptr, 190); }, "resume");
  // Other arguments and another base are other graphs.
  const auto other = [&](std::int64_t k, const KnnGraphOptions& options, std::int64_t block) {
    EXPECT_THROW(build_graph_file(base, k, path, options, Resume::yes, nullptr, block),
                 InvalidArgument);
  };
  other(6, {}, 190), other(5, {.metric = Metric::ip}, 190), other(5, {}, 200);
  other(5, {.distinct = true}, 190);
  AnyMatrix changed = with_copies(ElementType::f32, 2000, 16, 1);
  static_cast<float*>(changed.row(1999))[0] += 1;
  EXPECT_THROW(build_graph_file(changed, 5, path, {}, Resume::yes, nullptr, 190), InvalidArgument);

  // A block that was altered on disk is made again, the others are not.
  std::vector<std::byte> bytes = bytes_of(partial);
  bytes[8192 + 100] ^= std::byte{1};
  put_bytes(partial, bytes);
  KnnGraphReport report;
  build_graph_file(base, 5, path, {}, Resume::yes, &report, 190);
  EXPECT_LT(report.searched_rows, 1900);
  EXPECT_GE(report.searched_rows, 190);
  expect_same(NeighborGraph::load(path), wanted);
  EXPECT_FALSE(std::filesystem::exists(partial));
}

// Each pair of rows is scored once, and rows are finished before all are: 65,536 of them at a time.
TEST_F(GraphFile, of_a_self_join_goes_on_with_rows_that_were_finished) {
  constexpr std::int64_t rows = 78000, k = 3,
                         block = 9000;  // one in seven is a copy, so 66,857 differ
  AnyMatrix base = with_copies(ElementType::u8, rows, 8, 2);
  std::memset(base.row(11), 0, 8), std::memset(base.row(rows - 1), 0, 8);
  for (const Metric metric : test::metrics) {
    if (test::small() && metric != Metric::ip) continue;
    const std::string path = FileTest::path("g.knear");
    const KnnGraphOptions plain{.metric = metric};
    KnnGraphOptions joined = plain;
    joined.first_pass = FirstPass::prefix;
    const Neighbors wanted = copied(knn_graph(base, k, plain));

    KnnGraphReport report;
    build_graph_file(base, k, path, joined, Resume::no, &report, block);
    EXPECT_EQ(report.method, "self-join");
    EXPECT_EQ(report.searched_rows, rows);
    expect_same(NeighborGraph::load(path), wanted);
    std::filesystem::remove(path);

    // Stopped by what is left once the first rows are finished.
    KnnGraphOptions stopped = joined;
    stopped.progress = [](std::string_view stage, double fraction) {
      return stage != "self-join" || fraction < 1;
    };
    EXPECT_THROW(build_graph_file(base, k, path, stopped, Resume::no, nullptr, block), Cancelled);
    // Who wants rows by their numbers does not take the file up, and names who does.
    expect_error<InvalidArgument>(
        [&] {
          detail::PartialGraph::open(path + ".partial",
                                     {mark_of(base), k, block, metric, 1, false});
        },
        "knear graph, which goes on with it");
    KnnGraphOptions within = plain;
    within.memory = 64 << 20;
    build_graph_file(base, k, path, metric == Metric::ip ? within : joined, Resume::yes, &report,
                     block);
    EXPECT_EQ(report.method, "search");
    EXPECT_GT(report.searched_rows, 0);
    EXPECT_LE(report.searched_rows, rows - 65536 / block * block);
    expect_same(NeighborGraph::load(path), wanted);
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
    std::filesystem::remove(path);
  }
}

// Right checksums, wrong numbers.
TEST_F(GraphFile, that_was_begun_is_looked_at_before_it_is_whole) {
  const std::string path = FileTest::path("g.knear"), partial = path + ".partial";
  const AnyMatrix base = with_copies(ElementType::f32, 40, 8, 1);
  const Neighbors right = copied(knn_graph(base, 2));
  const auto begin = [&](Id id, float distance, Id last_row) {
    std::filesystem::remove(partial);
    const detail::GraphPlan plan{
        mark_of(base), 2, 20, Metric::l2, 1, false, detail::RowOrder::as_found};
    detail::PartialGraph begun = detail::PartialGraph::create(partial, plan);
    for (const std::int64_t first : {0, 20}) {
      Neighbors some{Matrix<Id>(20, 2), Matrix<float>(20, 2)};
      std::vector<Id> rows(20);
      for (Id i = 0; i < 20; ++i) {
        rows[static_cast<std::size_t>(i)] = first + 19 - i;
        std::copy_n(right.ids.row(first + 19 - i), 2, some.ids.row(i));
        std::copy_n(right.distances.row(first + 19 - i), 2, some.distances.row(i));
      }
      if (first > 0) rows.back() = last_row;
      if (first > 0) some.ids.row(3)[1] = id, some.distances.row(3)[1] = distance;
      begun.write(first / 20, some.ids, some.distances, rows);
    }
  };
  const auto resume = [&](KnnGraphReport* report = nullptr) {
    build_graph_file(base, 2, path, {}, Resume::yes, report);
  };
  const Id was = right.ids.row(36)[1];
  const float far = right.distances.row(36)[1];
  KnnGraphReport report;
  begin(was, far, 20), resume(&report);
  expect_same(NeighborGraph::load(path), right);
  EXPECT_EQ(report.method, "none");
  std::filesystem::remove(path);
  for (const Id id : {Id{36}, Id{40}, Id{-2}}) {
    begin(id, far, 20);
    expect_error<CorruptFile>([&] { resume(); }, "remove it to begin anew");
  }
  for (const Id row : {Id{40}, Id{-1}, Id{21}}) {
    begin(was, far, row);
    expect_error<CorruptFile>([&] { resume(); }, "remove it to begin anew");
  }
  begin(was, std::numeric_limits<float>::quiet_NaN(), 20);
  expect_error<CorruptFile>([&] { resume(); }, "remove it to begin anew");
  EXPECT_TRUE(std::filesystem::exists(partial));
  begin(was, std::numeric_limits<float>::infinity(), 20);
  expect_error<InvalidArgument>([&] { resume(); }, "float32");
  EXPECT_FALSE(std::filesystem::exists(partial));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(GraphFile, that_is_whole_is_not_made_again_by_resuming_it) {
  const std::string path = FileTest::path("g.knear");
  const AnyMatrix base = with_copies(ElementType::f32, 300, 8, 1);
  build_graph_file(base, 5, path, {}, Resume::yes);  // nothing is begun, and nothing there
  const std::vector<std::byte> bytes = bytes_of(path);
  KnnGraphReport report;
  build_graph_file(base, 5, path, {}, Resume::yes, &report);
  EXPECT_EQ(report.method, "none");
  EXPECT_EQ(report.searched_rows, 0);
  const auto refused = [&](AnyMatrixView x, std::int64_t k, const KnnGraphOptions& options,
                           const std::string& what) {
    expect_error<InvalidArgument>([&] { build_graph_file(x, k, path, options, Resume::yes); },
                                  "of another " + what);
  };
  refused(base, 4, {}, "k"), refused(base, 5, {.metric = Metric::cosine}, "metric");
  refused(base, 5, {.distinct = true}, "mark of copies");
  refused(with_copies(ElementType::f32, 300, 8, 2), 5, {}, "base");
  EXPECT_EQ(bytes_of(path), bytes);
  build_graph_file(base, 4, path, {}, Resume::no);
  EXPECT_EQ(NeighborGraph::load(path).k(), 4);
}

TEST_F(GraphFile, is_not_gone_on_with_once_a_distance_is_beyond_float32) {
  const std::string path = FileTest::path("g.knear");
  AnyMatrix base = with_copies(ElementType::f32, 400, 8, 1);
  static_cast<float*>(base.row(150))[0] = 1e20f;
  double most = 0;
  const KnnGraphOptions options{.progress = [&](std::string_view stage, double fraction) {
    if (stage == "graph") most = std::max(most, fraction);
    return true;
  }};
  expect_error<InvalidArgument>(
      [&] { build_graph_file(base, 5, path, options, Resume::no, nullptr, 100); },
      "g.knear: a graph keeps distances as float32, but that of rows 150 and ");
  EXPECT_LE(most, 0.5);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST_F(GraphFile, refuses_a_partial_file_that_is_none) {
  const std::string path = FileTest::path("g.knear"), partial = path + ".partial";
  const AnyMatrix base = with_copies(ElementType::f32, 400, 8, 1);
  const auto build = [&] { build_graph_file(base, 5, path, {}, Resume::yes, nullptr, 100); };
  put_bytes(partial, std::vector<std::byte>(5000));
  EXPECT_THROW(build(), CorruptFile);
  put_bytes(partial, {});
  EXPECT_THROW(build(), CorruptFile);
  // Cut off behind its header.
  std::filesystem::remove(partial);
  int calls = 0;
  EXPECT_THROW(build_graph_file(base, 5, path,
                                {.progress =
                                     [&](std::string_view stage, double fraction) {
                                       return !(stage == "graph" && fraction > 0.3) || ++calls < 2;
                                     }},
                                Resume::no, nullptr, 100),
               Cancelled);
  std::vector<std::byte> bytes = bytes_of(partial);
  bytes.resize(bytes.size() - 100);
  put_bytes(partial, bytes);
  EXPECT_THROW(build(), CorruptFile);
}

TEST_F(KnnGraph, finds_as_much_as_asked_by_lists) {
  constexpr std::int64_t rows = 100000, dim = 16, k = 8;
  Random random(5);
  Matrix<float> centres(300, dim);
  for (std::int64_t i = 0; i < 300 * dim; ++i)
    centres.data()[i] = static_cast<float>(test::gaussian(random));
  Matrix<float> base(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      base.row(i)[j] = centres.row(i % 300)[j] + 0.3f * static_cast<float>(test::gaussian(random));
  KnnGraphReport report;
  const NeighborGraph graph = knn_graph(base.view(), k, {.recall = 0.9}, &report);
  EXPECT_EQ(report.method, "lists");
  EXPECT_EQ(report.recall_argument, "calibrated");
  EXPECT_GT(report.probes, 1);
  EXPECT_EQ(graph.properties().recall_argument, "calibrated");
  EXPECT_EQ(graph.properties().promised_recall, 0.9);
  std::int64_t found = 0, all = 0;
  constexpr std::int64_t every = 20;
  Matrix<float> sample(rows / every, dim);
  for (std::int64_t s = 0; s < rows / every; ++s)
    std::copy_n(base.row(s * every), dim, sample.row(s));
  const Neighbors truth = knn(sample.view(), base.view(), k + 1);  // the first is the row itself
  for (std::int64_t s = 0; s < rows / every; ++s)
    for (std::int64_t j = 0; j < k; ++j) {
      ASSERT_NE(graph.ids().row(s * every)[j], s * every);
      ++all;
      found += graph.distances().row(s * every)[j] <= truth.distances.row(s)[k];
    }
  const double recall = static_cast<double>(found) / static_cast<double>(all);
  EXPECT_GE(recall, 0.9);
  EXPECT_LT(recall, 0.999);  // or the lists were not what found them
  // Block by block, with one thread, the same.
  build_graph_file(base.view(), k, this->path("g.knear"), {.recall = 0.9, .threads = 1}, Resume::no,
                   nullptr, 30001);
  expect_same(NeighborGraph::load(this->path("g.knear")), copied(graph));
}

// Of rows that are joined, that are searched for since products are asked, and that are measured.
TEST_F(KnnGraph, says_once_how_long_it_will_take) {
  Random random(6);
  Matrix<float> base(20000, 64);
  for (std::int64_t i = 0; i < 20000 * 64; ++i)
    base.data()[i] = static_cast<float>(test::gaussian(random));
  for (const auto& [rows, metric] :
       {std::pair(20000, Metric::l2), std::pair(20000, Metric::ip), std::pair(100, Metric::l2)}) {
    int plans = 0;
    double said = 0;
    KnnGraphReport report;
    knn_graph(
        base.view().rows(0, rows), 5,
        {.metric = metric,
         .planned = [&](const KnnGraphReport& plan) { ++plans, said = plan.predicted_seconds; }},
        &report);
    EXPECT_EQ(plans, 1);
    EXPECT_GT(said, 0);
    EXPECT_EQ(report.predicted_seconds, said);
  }
}

// Rows of a few kinds, one kind after another, of which some are copies.
Matrix<float> sorted_by_kind(std::int64_t rows, std::int64_t dim) {
  Random random(9);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto kind = static_cast<double>(4 * i / rows);
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] =
          static_cast<float>(kind * (j % 3 == 0 ? 8 : 1) + (0.1 + kind) * test::gaussian(random));
    if (i % 11 == 10) std::copy_n(out.row(i / 2), dim, out.row(i));
  }
  return out;
}

class ListsInFiles : public io::FileTest {
 protected:
  static constexpr std::int64_t rows = 101000, dim = 32, k = 5;
  static constexpr std::int64_t little = std::int64_t{19} << 20;  // all lists take more

  std::int64_t parts(const std::string& graph) const {
    std::int64_t count = 0;
    while (std::filesystem::exists(graph + ".lists." + std::to_string(count + 1))) ++count;
    return count;
  }
};

TEST_F(ListsInFiles, give_the_graph_of_those_in_memory_after_kills_too) {
  const std::string path = FileTest::path("g.knear"), file = FileTest::path("base.fbin");
  io::write_vectors(file, sorted_by_kind(rows, dim).view());
  const io::VectorFile base = io::VectorFile::open(file);
  // Killed while a part of the lists is made, while another is, and while rows are searched for.
  int kills = 0;
  for (const int when : {1, 4, -1}) {
    const pid_t child = fork();
    if (child == 0) {
      const Progress progress = [&](std::string_view stage, double fraction) {
        if (when > 0 ? parts(path) >= when : stage == "graph" && fraction > 0.4)
          kill(getpid(), SIGKILL);
        return true;
      };
      build_graph_file(base.view(), k, path,
                       {.recall = 0.3, .threads = 1, .memory = little, .progress = progress},
                       kills > 0 ? Resume::yes : Resume::no, nullptr, 20011);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) ++kills;
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_GE(parts(path), std::abs(when));
  }
  EXPECT_EQ(kills, 3);
  KnnGraphReport report, plan;
  int plans = 0;
  build_graph_file(base.view(), k, path,
                   {.recall = 0.3,
                    .memory = little,
                    .planned = [&](const KnnGraphReport& p) { plan = p, ++plans; }},
                   Resume::yes, &report, 20011);
  // Only now: a process that has threads cannot be forked.
  KnnGraphReport in_memory;
  const Neighbors wanted = copied(knn_graph(base.view(), k, {.recall = 0.3}, &in_memory));
  EXPECT_EQ(in_memory.scratch_bytes, 0);
  expect_same(NeighborGraph::load(path), wanted);
  EXPECT_EQ(report.method, "lists");
  EXPECT_LE(report.searched_rows, rows - 20011);
  EXPECT_GT(report.scratch_bytes, rows * dim * 5);
  EXPECT_EQ(plans, 1);
  EXPECT_EQ(plan.method, "lists");
  EXPECT_GT(plan.predicted_seconds, 0);
  EXPECT_EQ(plan.predicted_seconds, report.predicted_seconds);
  EXPECT_EQ(file_count(), 2);  // the base and the graph

  // How good it is, by a search of all rows at once and of parts; against plain loops.
  const NeighborGraph graph = NeighborGraph::load(path);
  const SampledAccuracy whole = sampled_accuracy(graph, base.view(), 300, 7);
  const SampledAccuracy parts_of_it =
      sampled_accuracy(graph, base.view(), 300, 7, 0, {}, std::int64_t{1} << 20);
  EXPECT_EQ(parts_of_it.rows, whole.rows);
  EXPECT_EQ(parts_of_it.found, whole.found);
  EXPECT_GT(whole.mean, 0.3);
  EXPECT_LT(whole.mean, 1);
  const AnyMatrixView rows_on_device = base.view();
  for (std::size_t i = 0; i < 300; i += 30) {
    const Id row = whole.rows[i];
    const auto distance = [&](Id other) {
      return reference_distance(Metric::l2, static_cast<const float*>(rows_on_device.row(row)),
                                static_cast<const float*>(rows_on_device.row(other)), dim);
    };
    std::vector<double> all;
    for (Id other = 0; other < rows; ++other)
      if (other != row) all.push_back(distance(other));
    std::nth_element(all.begin(), all.begin() + k - 1, all.end());
    int found = 0;
    for (std::int64_t j = 0; j < k; ++j) found += distance(graph.ids().row(row)[j]) <= all[k - 1];
    EXPECT_EQ(whole.found[i], found / static_cast<double>(k));
  }
}

// Every block is there, but not yet in the order of rows, or not yet the graph.
TEST_F(ListsInFiles, are_in_the_order_of_rows_after_a_stop_at_the_end_too) {
  const Matrix<float> base = sorted_by_kind(rows, dim);
  const std::string path = FileTest::path("g.knear");
  const Progress until_saved = [](std::string_view stage, double) { return stage != "save"; };
  EXPECT_THROW(build_graph_file(base.view(), k, path, {.recall = 0.3, .progress = until_saved},
                                Resume::no, nullptr, 30011),
               Cancelled);
  EXPECT_FALSE(std::filesystem::exists(path));
  // What is in the order of rows is the second half behind the header and the sums.
  std::vector<std::byte> bytes = bytes_of(path + ".partial");
  std::fill(bytes.begin() + 8192 + (std::ssize(bytes) - 8192) / 2, bytes.end(), std::byte{});
  put_bytes(path + ".partial", bytes);
  KnnGraphReport report;
  build_graph_file(base.view(), k, path, {.recall = 0.3}, Resume::yes, &report);
  EXPECT_EQ(report.searched_rows, 0);
  expect_same(NeighborGraph::load(path), copied(knn_graph(base.view(), k, {.recall = 0.3})));
  EXPECT_EQ(file_count(), 1);
}

TEST_F(ListsInFiles, leave_out_copies_and_hold_whole_numbers) {
  const Matrix<float> floats = sorted_by_kind(rows, dim);
  AnyMatrix base = make(ElementType::f32, rows, dim, [&](std::int64_t i, std::int64_t j) {
    return std::clamp(std::floor(100 + 8.0 * static_cast<double>(floats.row(i)[j])), 0.0, 255.0);
  });
  const KnnGraphOptions options{.recall = 0.8, .distinct = true};
  const Neighbors wanted = copied(knn_graph(base, k, options));
  const std::string path = FileTest::path("g.knear");
  KnnGraphOptions limited = options;
  limited.memory = little;
  KnnGraphReport report;
  build_graph_file(base, k, path, limited, Resume::no, &report, 30000);
  EXPECT_GT(report.scratch_bytes, 0);
  EXPECT_LT(report.distinct_rows, rows);
  expect_same(NeighborGraph::load(path), wanted);
}

TEST_F(ListsInFiles, are_refused_where_memory_is_too_small_or_files_are_wrong) {
  const Matrix<float> base = sorted_by_kind(rows, dim);
  const std::string path = FileTest::path("g.knear"), part = path + ".lists.1";
  expect_error<MemoryBudgetError>(
      [&] { knn_graph(base.view(), k, {.recall = 0.9, .memory = little}); },
      "memory is 19922944 bytes");
  expect_error<MemoryBudgetError>(
      [&] { build_graph_file(base.view(), k, path, {.recall = 0.9, .memory = 1 << 20}); },
      "takes at least");
  EXPECT_EQ(file_count(), 0);
  // Of a graph that nobody knows.
  write("g.knear.lists.1", "something");
  expect_error<InvalidArgument>([&] { build_graph_file(base.view(), k, path, {.recall = 0.9}); },
                                "remove");
  std::filesystem::remove(part);
  const auto build_until = [&](std::string_view stop, Resume resume) {
    build_graph_file(base.view(), k, path,
                     {.recall = 0.9,
                      .memory = little,
                      .progress = [&](std::string_view stage, double) { return stage != stop; }},
                     resume);
  };
  EXPECT_THROW(build_until("graph", Resume::no), Cancelled);
  EXPECT_GT(parts(path), 1);
  // Rows in places by other lists.
  const std::vector<std::byte> begun = bytes_of(path + ".partial");
  std::vector<std::byte> altered = begun;
  altered[4088] ^= std::byte{2};
  put_bytes(path + ".partial", altered);
  expect_error<InvalidArgument>([&] { build_until("graph", Resume::yes); }, "other inverted lists");
  put_bytes(path + ".partial", begun);
  // Its second part in the place of the first, and half of one.
  std::filesystem::rename(part, part + ".kept");
  std::filesystem::copy_file(path + ".lists.2", part);
  expect_error<CorruptFile>([&] { build_until("graph", Resume::yes); }, "other rows");
  std::filesystem::remove(part);
  std::filesystem::copy_file(part + ".kept", part);
  std::filesystem::resize_file(part, std::filesystem::file_size(part) / 2);
  EXPECT_THROW(build_until("graph", Resume::yes), CorruptFile);
}

// What finds rows exactly stays within its memory too, and has the same answers.
TEST_F(ListsInFiles, are_not_needed_for_exact_graphs_of_mapped_bases) {
  const std::string path = FileTest::path("g.knear"), file = FileTest::path("base.fbin");
  io::write_vectors(file, sorted_by_kind(20000, dim).view());
  const io::VectorFile base = io::VectorFile::open(file);
  KnnGraphReport report;
  build_graph_file(base.view(), k, path, {.memory = 13 << 20}, Resume::no, &report, 5000);
  EXPECT_GT(report.predicted_seconds, 0);
  expect_same(NeighborGraph::load(path), copied(knn_graph(base.view(), k)));
}

}  // namespace
}  // namespace knear
