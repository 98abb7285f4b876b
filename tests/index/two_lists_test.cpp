// tests/index/two_lists_test.cpp -- rows in two inverted lists each (IVFn_SOAR): which the second
// is, what that finds more, and what is refused. Its life is in learned_index_test.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/faiss_file.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/scan/probed_lists.hpp"
#include "tests/index/index_model.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

// Overlapping clusters, as those of text are.
constexpr Clusters overlapping{.count = 60, .spread = 1.5};
constexpr std::int64_t dim = 24, lists = 40;

template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

Index made(const std::string& factory, Metric metric, MatrixView<float> base) {
  Index out = make_index(factory, base.cols(), metric);
  out.train(base, {.seed = 5, .threads = 2});
  out.add(base);
  return out;
}

class TwoLists : public testing::TestWithParam<Metric> {
 protected:
  const Metric metric = GetParam();
  const Matrix<float> base = clustered(test::small() ? 1200 : 6000, dim, 1, overlapping),
                      queries = clustered(120, dim, 2, overlapping);
};
INSTANTIATE_TEST_SUITE_P(Metrics, TwoLists, testing::Values(Metric::l2, Metric::ip, Metric::cosine),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST_P(TwoLists, TheSecondHasAResidualAcrossTheFirst) {
  OpenIndex index(made("IVF40_SOAR,Flat", metric, base.view()));
  const detail::CoarseQuantizer& coarse = *index.state()->coarse;
  const MatrixView<float> centroids = coarse.centroids();
  const auto first = coarse.assign(base.view(), 2, {}).list_of;
  const auto second = coarse.second_lists(base.view(), first, 2);
  std::int64_t nearest = 0;
  for (std::int64_t i = 0; i < base.rows(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    std::vector<double> x = doubles_of(AnyMatrixView(base.view()).rows(i, i + 1));
    double squares = 0;
    for (const double value : x) squares += value * value;
    if (metric == Metric::cosine)
      for (double& value : x) value /= std::sqrt(squares);
    const auto residual = [&](std::int64_t l) {
      std::vector<double> out;
      for (std::int64_t j = 0; j < dim; ++j) out.push_back(x[j] - double{centroids.row(l)[j]});
      return out;
    };
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
      return sum;
    };
    const std::vector<double> r = residual(first[at]);
    std::vector<std::pair<double, std::int64_t>> near;
    for (std::int64_t l = 0; l < lists; ++l) near.emplace_back(dot(residual(l), residual(l)), l);
    std::sort(near.begin(), near.end());
    const auto cost = [&](std::int64_t l) {
      const std::vector<double> s = residual(l);
      return dot(s, s) + 2 * dot(r, s) * dot(r, s) / dot(r, r);
    };
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t p = 0; p < 33; ++p)
      if (near[p].second != first[at]) least = std::min(least, cost(near[p].second));
    ASSERT_NE(second[at], first[at]);
    ASSERT_NEAR(cost(second[at]), least, 1e-5 * (1 + least)) << "row " << i;
    nearest += second[at] == near[1].second;
  }
  // Otherwise the second nearest list would do.
  EXPECT_LT(nearest, base.rows() * 9 / 10);
  // The same row by row.
  for (std::int64_t i = 0; i < 40; ++i)
    ASSERT_EQ(
        coarse.second_lists(base.view().rows(i, i + 1), {&first[static_cast<std::size_t>(i)], 1}, 1)
            .front(),
        second[static_cast<std::size_t>(i)]);
}

TEST_P(TwoLists, FindEachRowOnceAndMoreThanOneList) {
  const Index one = made("IVF40,Flat", metric, base.view()),
              two = made("IVF40_SOAR,Flat", metric, base.view());
  EXPECT_EQ(two.description(), "IVF40_SOAR,Flat");
  EXPECT_EQ(two.list_sizes(), one.list_sizes());  // by first lists
  EXPECT_GT(two.memory_bytes(), one.memory_bytes() + base.rows() * dim);
  const auto exact = one.search(queries.view(), 10, {.method = {.recall = 1}});
  expect_equal(two.search(queries.view(), 10, {.method = {.recall = 1}}), exact);
  std::int64_t found_by[2] = {};
  for (const std::int64_t probes : {1, 3, 8}) {
    KnnReport report;
    const SearchOptions options{.threads = 2, .method = {.probes = probes}};
    const Neighbors a = one.search(queries.view(), 10, options),
                    b = two.search(queries.view(), 10, options, &report);
    EXPECT_EQ(report.lists.probes, static_cast<double>(probes));
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      const std::set<Id> ids(b.ids.row(q), b.ids.row(q) + 10);
      ASSERT_EQ(ids.size(), 10u) << "query " << q;
      for (std::int64_t j = 0; j < 10; ++j) {
        const Id id = exact.ids.row(q)[j];
        found_by[0] += std::count(a.ids.row(q), a.ids.row(q) + 10, id);
        found_by[1] += std::count(b.ids.row(q), b.ids.row(q) + 10, id);
      }
    }
  }
  EXPECT_GT(found_by[1], found_by[0] * 11 / 10);
}

// Lists that are probed one call after another meet rows that were found before.
TEST_P(TwoLists, WidenedAndCertifiedSearchesFindEachRowOnce) {
  Index index = made("IVF40_SOAR,Flat", metric, base.view());
  // A second segment of few rows, which are not packed.
  const Matrix<float> more = clustered(50, dim, 9, overlapping);
  index.add(more.view());
  std::vector<Id> few;
  for (Id id = 0; id < index.next_id(); id += 97) few.push_back(id);
  Neighbors exact;
  for (const bool filtered : {false, true}) {
    SearchOptions options{.threads = 2, .method = {.recall = 1}};
    if (filtered) options.filter = IdFilter::of_ids(few);
    const std::int64_t k = filtered ? std::ssize(few) : 300;
    exact = index.search(queries.view(), k, options);
    options.method = {.probes = 1};
    options.method.lists.widen = true;
    for (std::int64_t q = 0; q < queries.rows(); q += 7) {
      const Neighbors got = index.search(queries.view().rows(q, q + 1), k, options);
      const std::set<Id> ids(got.ids.row(0), got.ids.row(0) + k);
      ASSERT_EQ(std::ssize(ids), k) << "query " << q;
      if (!filtered) continue;
      ASSERT_TRUE(std::equal(ids.begin(), ids.end(), few.begin()));
    }
  }
}

TEST_P(TwoLists, AreCountedByTheRecallCurve) {
  Index one = made("IVF40,Flat", metric, base.view()),
        two = made("IVF40_SOAR,Flat", metric, base.view());
  const auto lists_for = [&](Index& index, double recall) {
    for (const OperatingPoint& point : index.tune(10, queries.view()))
      if (point.expected_recall >= recall) return point.probes;
    return double{lists};
  };
  EXPECT_LT(lists_for(two, 0.9), lists_for(one, 0.9));
  KnnReport report;
  two.search(queries.view(), 10, {.method = {.recall = 0.9}}, &report);
  EXPECT_EQ(report.promise.recall_argument, "calibrated");
}

TEST_P(TwoLists, AnswerInShardsAsOneIndexDoes) {
  Index one = make_index("IVF40_SOAR,Flat", dim, metric);
  one.train(base.view(), {.seed = 5, .threads = 2});
  Index shards = one.divided({.shards = 3});
  one.add(base.view());
  shards.add(base.view());
  EXPECT_EQ(shards.description(), one.description());
  const SearchOptions options{.threads = 2, .method = {.probes = 5}};
  expect_equal(shards.search(queries.view(), 10, options), one.search(queries.view(), 10, options));
}

// Rows of an index with other centroids come into two lists of these.
TEST_P(TwoLists, TakeRowsOfAnotherIndex) {
  Index index = made("IVF40_SOAR,Flat", metric, base.view());
  const Matrix<float> more = clustered(1000, dim, 8, overlapping);
  Index other = make_index("IVF40_SOAR,Flat", dim, metric);
  other.train(more.view(), {.seed = 6, .threads = 2});
  other.add(more.view());
  Index added = made("IVF40_SOAR,Flat", metric, base.view());
  added.add(more.view());
  index.merge(other, MergeIds::shifted);
  const SearchOptions options{.threads = 2, .method = {.probes = 3}};
  expect_equal(index.search(queries.view(), 10, options),
               added.search(queries.view(), 10, options));
}

TEST(ProbedLists, HoldTheListsOfEachQueryOfFewListsAndOfMany) {
  Random random(4);
  for (const std::int64_t all : {2, 64, 65, 1000, 1 << 24}) {
    const std::int64_t count = std::min<std::int64_t>(all, 20);
    Matrix<Id> probes(30, count);
    std::vector<std::set<Id>> wanted(30);
    for (std::int64_t q = 0; q < 30; ++q) {
      std::fill_n(probes.row(q), count, no_id);
      for (std::int64_t p = 0; p < count - q % 3; ++p)
        wanted[static_cast<std::size_t>(q)].insert(
            probes.row(q)[p] = static_cast<Id>(random.below(static_cast<std::uint64_t>(all))));
    }
    const detail::ProbedLists probed(probes.view(), all);
    for (std::int64_t q = 0; q < 30; ++q)
      for (int i = 0; i < 100; ++i) {
        const Id list = i < count && probes.row(q)[i] != no_id
                            ? probes.row(q)[i]
                            : static_cast<Id>(random.below(static_cast<std::uint64_t>(all)));
        ASSERT_EQ(probed.contains(q, static_cast<std::uint32_t>(list)),
                  wanted[static_cast<std::size_t>(q)].contains(list))
            << "list " << list << " of " << all << ", query " << q;
      }
  }
}

class TwoListsFiles : public testing::Test {
 protected:
  TwoListsFiles() { std::filesystem::create_directory(folder_); }
  ~TwoListsFiles() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }

  // Two segments: packed rows, and few that are not.
  static Index varied() {
    Index out = made("IVF40_SOAR,Flat", Metric::l2, clustered(900, dim, 1, overlapping).view());
    out.add(clustered(30, dim, 3, overlapping).view());
    return out;
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("knear-two-lists-" + std::to_string(getpid()));
};

TEST_F(TwoListsFiles, AreOfAKindThatEarlierVersionsRefuse) {
  varied().save(path("a.knear"));
  EXPECT_EQ(io::Archive::open(path("a.knear"))->kind(), "IVFSOARFlat");
  const Index loaded = Index::load(path("a.knear"));
  loaded.save(path("b.knear"));
  const Matrix<float> queries = clustered(50, dim, 2, overlapping);
  const SearchOptions options{.method = {.probes = 4}};
  expect_equal(loaded.search(queries.view(), 10, options),
               varied().search(queries.view(), 10, options));
}

TEST_F(TwoListsFiles, WrongNumbersWithRightChecksumsAreHarmless) {
  varied().save(path("a.knear"));
  const auto archive = io::Archive::open(path("a.knear"));
  const Matrix<float> queries = clustered(20, dim, 2, overlapping);
  Random random(6);
  int refused = 0, rounds = 0;
  for (const io::Section& chosen : archive->sections()) {
    if (chosen.name.find("second/") == chosen.name.npos) continue;
    for (int kind = 0; kind < 5; ++kind, ++rounds) {
      io::ArchiveWriter writer("IVFSOARFlat");
      for (const io::Section& section : archive->sections()) {
        std::vector<std::byte> bytes(section.data, section.data + section.bytes);
        if (section.name == chosen.name) {
          if (kind == 0) continue;  // missing
          if (kind == 1) bytes.resize(bytes.size() / 2);
          if (kind == 2) bytes[random.below(bytes.size())] = std::byte{0xff};
          if (kind == 3)
            for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
          if (kind == 4) std::fill(bytes.begin(), bytes.end(), std::byte{0});
        }
        writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
      }
      writer.write(path("b.knear"), {});
      try {
        Index loaded = Index::load(path("b.knear"));
        loaded.search(queries.view(), 20, {.method = {.probes = 30}});
        loaded.compact();
      } catch (const CorruptFile& e) {
        EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
        ++refused;
      }
    }
  }
  EXPECT_GE(rounds, 30);
  EXPECT_GE(refused, rounds / 2);
}

TEST_F(TwoListsFiles, WhatHasOneListEachIsRefused) {
  const auto factory = [](const std::string& words) {
    return message([&] { make_index(words, dim); });
  };
  EXPECT_NE(factory("IVF8_SOAR,PQ4").find("codes are kept in one list each"), std::string::npos);
  EXPECT_NE(factory("IVF1_SOAR,Flat").find("there must be 2 lists or more"), std::string::npos);
  EXPECT_NE(factory("IVF64(IVF8_SOAR,Flat),Flat").find("has each in one list"), std::string::npos);
  EXPECT_NE(factory("IVF8_SOAP,Flat").find("names no inverted lists"), std::string::npos);
  EXPECT_EQ(make_index("PCA8,IVF64_SOAR(IVF8,Flat),SQfp16", dim).description(),
            "PCA8,IVF64_SOAR(IVF8,Flat),SQfp16");
  const Index index = varied();
  const Matrix<float> query = clustered(1, dim, 2, overlapping);
  EXPECT_NE(message([&] {
              index.search(query.view(), 3, {.method = {.probes = 3}, .device = "cuda"});
            }).find("which only the processor searches"),
            std::string::npos);
  EXPECT_NE(message([&] { write_faiss(index, path("a.faiss")); }).find("which FAISS has not"),
            std::string::npos);
}

}  // namespace
}  // namespace knear
