// Graphs by many processes, played by threads: the bytes of one, also when gone on with.
#include "knear/mpi/part_graph.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "knear/core/error.hpp"
#include "tests/core/peer_threads.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

namespace fs = std::filesystem;
using test::as_peers;
using test::make;

class PartGraph : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              fmt::format("part_graph_{}", testing::UnitTest::GetInstance()->random_seed() +
                                               static_cast<int>(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string bytes(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Few values, so that there are ties and copies.
  static AnyMatrix numbers(std::int64_t rows, std::int64_t dim) {
    Random random(3);
    return make(ElementType::u8, rows, dim,
                [&](std::int64_t, std::int64_t) { return double(random.below(5)); });
  }
  // Builds by so many processes.
  void build(int size, AnyMatrixView base, std::int64_t k, const std::string& name,
             const PartGraphOptions& options, PartGraphReport* report = nullptr) {
    as_peers(size, [&](Peers& peers) {
      PartGraphOptions own = options;
      own.threads = 1;
      PartGraphReport mine;
      const auto open = [&](std::int64_t begin, std::int64_t end) { return base.rows(begin, end); };
      BaseMark mark{base.rows(), base.cols(), base.type()};
      if (peers.rank() == 0) mark = mark_of(base);
      build_graph_of_parts(peers, mark, open, k, path(name), own, &mine);
      if (report && peers.rank() == 0) *report = mine;
    });
  }

  fs::path folder_;
};

TEST_F(PartGraph, HasTheBytesOfOneProcess) {
  const AnyMatrix base = numbers(500, 4);
  for (const Metric metric : test::metrics) {
    build_graph_file(base, 6, path("one"), {.metric = metric});
    for (const int size : {1, 2, 3, 8})
      for (const std::int64_t block_rows : {0, 40, 77}) {
        PartGraphReport report;
        // Chunks of 25 rows.
        build(size, base, 6, "many",
              {.metric = metric, .block_rows = block_rows, .chunk_bytes = 100}, &report);
        EXPECT_EQ(bytes(path("many")), bytes(path("one")));
        EXPECT_FALSE(fs::exists(path("many.partial")));
        EXPECT_EQ(report.searched_rows, 500);
        EXPECT_EQ(report.passed_bytes, report.predicted_passed_bytes);
        EXPECT_EQ(report.passed_bytes > 0, size > 1);
      }
  }
}

TEST_F(PartGraph, FewRows) {
  for (const std::int64_t rows : {0, 1, 3}) {
    const AnyMatrix base = numbers(rows, 4);
    build_graph_file(base, 6, path("one"));
    build(4, base, 6, "many", {});
    EXPECT_EQ(bytes(path("many")), bytes(path("one"))) << rows;
  }
}

TEST_F(PartGraph, GoesOnWithOtherNumbersOfProcesses) {
  const AnyMatrix base = numbers(500, 4);
  build_graph_file(base, 6, path("one"));
  for (const int others : {0, 1, 2, 5}) {
    // Stopped in the third of four rounds.
    const auto stop = [](std::string_view, double fraction) { return fraction < 0.55; };
    EXPECT_THROW(build(2, base, 6, "many", {.block_rows = 63, .progress = stop}), Cancelled);
    ASSERT_TRUE(fs::exists(path("many.partial")));
    EXPECT_FALSE(fs::exists(path("many")));
    if (others == 0) {  // the plain call goes on as well
      KnnGraphReport report;
      build_graph_file(base, 6, path("many"), {}, Resume::yes, &report);
      EXPECT_LT(report.searched_rows, 500);
    } else {
      EXPECT_THROW(build(2, base, 6, "many", {}), InvalidArgument);
      EXPECT_THROW(build(2, base, 7, "many", {.resume = Resume::yes}), InvalidArgument);
      PartGraphReport report;
      build(others, base, 6, "many", {.resume = Resume::yes}, &report);
      EXPECT_EQ(report.blocks, 8);
      EXPECT_EQ(report.blocks_before, 4);
      EXPECT_LT(report.searched_rows, 500);
    }
    EXPECT_EQ(bytes(path("many")), bytes(path("one")));
    EXPECT_FALSE(fs::exists(path("many.partial")));
    fs::remove(path("many"));
  }
}

TEST_F(PartGraph, WhatOneFindsWrongAllThrow) {
  AnyMatrix base = make(ElementType::f32, 90, 3, [](std::int64_t i, std::int64_t) { return i; });
  static_cast<float*>(base.row(80))[1] = std::numeric_limits<float>::infinity();
  const auto refuses = [&](std::int64_t k, const std::string& what) {
    as_peers(3, [&](Peers& peers) {
      const auto open = [&](std::int64_t begin, std::int64_t end) {
        return base.view().rows(begin, end);
      };
      try {
        build_graph_of_parts(peers, {90, 3, ElementType::f32}, open, k, path("g"), {});
        ADD_FAILURE() << "nothing was thrown";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      }
    });
    EXPECT_TRUE(fs::is_empty(folder_));
  };
  refuses(0, "k must be in");
  refuses(3, "row 80");
}

TEST_F(PartGraph, WhatIsWholeIsLeftAsItIs) {
  const AnyMatrix base = numbers(500, 4);
  build_graph_file(base, 6, path("one"));
  const auto before = fs::last_write_time(path("one"));
  PartGraphReport report;
  build(3, base, 6, "one", {.resume = Resume::yes}, &report);
  EXPECT_TRUE(report.was_whole);
  EXPECT_EQ(report.searched_rows, 0);
  EXPECT_EQ(report.passed_bytes, 0);
  EXPECT_EQ(fs::last_write_time(path("one")), before);
  // Another graph is none to go on with, and it stays.
  const std::string bytes_before = bytes(path("one"));
  EXPECT_THROW(build(3, base, 7, "one", {.resume = Resume::yes}), InvalidArgument);
  EXPECT_THROW(build(3, base, 6, "one", {.metric = Metric::ip, .resume = Resume::yes}),
               InvalidArgument);
  const AnyMatrix other = numbers(499, 4);
  EXPECT_THROW(build(3, other, 6, "one", {.resume = Resume::yes}), InvalidArgument);
  EXPECT_EQ(bytes(path("one")), bytes_before);
  // It is made anew where nothing is to be resumed.
  build(3, base, 7, "one", {}, &report);
  EXPECT_FALSE(report.was_whole);
  EXPECT_EQ(report.searched_rows, 500);
}

TEST_F(PartGraph, DistancesBeyondFloat32LeaveNothing) {
  // The last rows are too far from all others, so that a block before has been written.
  const AnyMatrix base = make(ElementType::f32, 120, 2, [](std::int64_t i, std::int64_t j) {
    return i < 117 ? double(i) : (double(i) - 116) * 1e38 * (j == 0 ? 1 : -1);
  });
  as_peers(2, [&](Peers& peers) {
    const auto open = [&](std::int64_t begin, std::int64_t end) {
      return base.view().rows(begin, end);
    };
    try {
      build_graph_of_parts(peers, {120, 2, ElementType::f32}, open, 3, path("g"),
                           {.threads = 1, .block_rows = 20});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("float32"), std::string::npos) << error.what();
    }
  });
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace knear
