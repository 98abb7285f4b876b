// tests/index/coded_index_test.cpp -- indexes of codes: what they refuse, what they take of memory,
// and cases that random histories (learned_index_test.cpp) seldom come to.
#include <gtest/gtest.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "tests/index/index_model.hpp"
#include "tests/index/index_test.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

// By the allocator; negative: it does not count.
std::int64_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return -1;
#else
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
#endif
}

TEST(CodesWithoutLists, HaveNoSizesOfLists) {
  const Matrix<float> vectors = clustered(600, 8, 1);
  Index index = make_index("PQ4", 8);
  index.train(vectors.view()), index.add(vectors.view());
  EXPECT_TRUE(index.list_sizes().empty());
}

// Codes stand for something by what their own index was trained to.
TEST(RefusedMerges, OfCodesAndTransformsTrainedApart) {
  const Matrix<float> base = clustered(600, 8, 1), others = clustered(600, 8, 2);
  const auto trained = [](const std::string& name, const Matrix<float>& to) {
    Index out = make_index(name, 8);
    out.train(to.view());
    return out;
  };
  const std::string codes = "codes", transform = "transform";
  for (const auto& [name, what] :
       {std::pair("PQ4", codes), std::pair("PQ4x4", codes), std::pair("SQ8", codes),
        std::pair("SQ4", codes), std::pair("IVF4,PQ4", codes), std::pair("IVF4,SQ8", codes),
        std::pair("IVF4,PQ2x4,RFlat", codes), std::pair("PQ4,Refine(SQ8)", codes),
        std::pair("PCA4,Flat", transform), std::pair("PCA4,IVF4,SQfp16", transform)}) {
    SCOPED_TRACE(name);
    Index index = trained(name, base);
    index.add(base.view());
    Index apart = trained(name, others);
    apart.add(others.view());
    const std::int64_t version = index.version();
    try {
      index.merge(apart, MergeIds::shifted);
      ADD_FAILURE() << "merged";
    } catch (const InvalidArgument& e) {
      EXPECT_EQ(e.what(), "other is an index " + std::string(name) + " that was trained to " +
                              (what == codes ? "other codes" : "another transform") +
                              " than this one: add its vectors");
    }
    EXPECT_EQ(index.version(), version);
    EXPECT_EQ(index.size(), 600);
    // What was trained in the same way is the same.
    Index same = trained(name, base);
    same.add(others.view());
    index.merge(same, MergeIds::shifted);
    EXPECT_EQ(index.size(), 1200);
  }
  // Vectors are put into the lists of the index that takes them.
  Index lists = trained("IVF4,Flat", base), more = trained("IVF5,Flat", others);
  more.add(others.view());
  lists.merge(more);
  expect_equal(lists.search(base.view(), 5, {.method = {.probes = 4}}),
               more.search(base.view(), 5, {.method = {.probes = 5}}));
}

// Without inverted lists a number below 0 was as good as none.
TEST(RefusedTraining, OnFewerRowsThanNone) {
  const Matrix<float> x = clustered(100, 8, 1);
  for (const char* name : {"Flat", "IVF4,Flat", "PQ4x4", "SQ8", "SQfp16", "PCA4,Flat"}) {
    Index index = make_index(name, 8);
    try {
      index.train(x.view(), {.rows = -5});
      ADD_FAILURE() << name;
    } catch (const InvalidArgument& e) {
      EXPECT_STREQ(e.what(), "rows must not be negative, but is -5") << name;
    }
  }
}

// They were taken and did nothing.
TEST(RefusedTraining, OfIterationsWithoutLists) {
  const Matrix<float> x = clustered(600, 8, 1);
  for (const char* name : {"PQ4", "SQ8", "PCA4,Flat", "OPQ2,PQ2x4,RFlat", "RR,SQfp16"}) {
    Index index = make_index(name, 8);
    try {
      index.train(x.view(), {.iterations = 4});
      ADD_FAILURE() << name;
    } catch (const InvalidArgument& e) {
      EXPECT_EQ(e.what(), "iterations is 4, but index " + index.description() +
                              " has no inverted lists, whose centroids they are for");
    }
    EXPECT_FALSE(index.is_trained());
  }
  // Nor are those of lists for the index over their centroids.
  Index lists = make_index("IVF20(SQ8),Flat", 8);
  lists.train(x.view(), {.iterations = 4});
  EXPECT_TRUE(lists.is_trained());
}

// With 1,024 columns and one thread, 2,048 rows are a block.
TEST(ProgressOfAdding, NeverGoesBack) {
  const std::int64_t dim = 1024;
  const Matrix<float> base = clustered(5'000, dim, 1);
  for (const char* name : {"IVF4,SQ8", "IVF4,SQ4,Refine(SQ8)", "SQ4,Refine(SQ8)",
                           "RR512,IVF4,SQ4,Refine(SQ8)", "RR512,IVF4,SQfp16"}) {
    Index index = make_index(name, dim);
    index.train(base.view().rows(0, 1'200), {.hold_out = false, .threads = 1});
    std::map<std::string, double> latest;
    index.add(base.view(), {.threads = 1, .progress = [&](std::string_view stage, double fraction) {
                              EXPECT_GE(fraction, latest[std::string(stage)])
                                  << name << " " << stage;
                              EXPECT_LE(fraction, 1) << name << " " << stage;
                              latest[std::string(stage)] = fraction;
                              return true;
                            }});
    if (std::string_view(name).find("SQfp16") == std::string_view::npos) {
      EXPECT_NEAR(latest.at("encode"), 1, 1e-9) << name;
    }
  }
}

TEST(RefusedSearches, OfCodesSayWhy) {
  const Matrix<float> base = clustered(600, 8, 1);
  const auto refusal = [&](const char* name, SearchMethod method) -> std::string {
    Index index = make_index(name, 8);
    index.train(base.view());
    index.add(base.view());
    try {
      index.search(base.view().rows(0, 2), 3, {.method = method});
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "found";
  };
  EXPECT_EQ(refusal("PQ4", {}), "found");
  EXPECT_EQ(refusal("PQ4", {.probes = 1}), "probes is 1, but there are no inverted lists");
  EXPECT_EQ(refusal("PQ4", {.lists = {.widen = true}}),
            "widen is on, but there are no inverted lists");
  EXPECT_EQ(refusal("IVF4,PQ4", {}),
            "neither probes nor recall is given, and a search of 4 inverted lists needs one of "
            "them");
  EXPECT_EQ(refusal("IVF4,PQ4", {.probes = 5}),
            "probes must be between 1 and the 4 lists, but is 5");
  EXPECT_EQ(refusal("IVF4,PQ4", {.recall = 0.5, .probes = 2}),
            "probes is 2 and recall is 0.5, but only one of them can be asked for");
  EXPECT_EQ(refusal("IVF4,PQ4", {.probes = 2, .lists = {.certify = true}}),
            "certify is on, but codes, as index IVF4,PQ4 has them, prove nothing");
  EXPECT_EQ(refusal("IVF4,PQ4", {.probes = 2, .codes = {.refine_factor = 3}}),
            "refine_factor is 3, but index IVF4,PQ4 keeps no vectors to refine its codes by");
  EXPECT_EQ(refusal("PQ4,RFlat", {.codes = {.refine_factor = -1}}),
            "refine_factor must be between 1 and 1048576, but is -1");
  EXPECT_EQ(refusal("PQ4,RFlat", {.recall = 0.5, .codes = {.refine_factor = 2}}),
            "refine_factor is 2 and recall is 0.5, but only one can be asked for");
  Index refined = make_index("PQ4,RFlat", 8);
  refined.train(clustered(600, 8, 1).view());
  try {
    refined.range_search(clustered(3, 8, 2).view(), 1, {.method = {.codes = {.refine_factor = 2}}});
    FAIL() << "a factor that means nothing";
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(),
                 "refine_factor is 2, but a range search has no number of neighbours to refine "
                 "more than");
  }
  EXPECT_EQ(refusal("PQ4,RFlat", {.recall = 1.5}), "recall must be in (0, 1], but is 1.5");
  EXPECT_EQ(refusal("PQ4", {.kind = Method::threshold_heap}),
            "method is threshold-heap, but a search of codes has only auto and exact");
  Index index = make_index("IVF4,PQ4", 8);
  EXPECT_THROW(index.add(base.view()), InvalidArgument);
  EXPECT_THROW(index.search(base.view(), 3, {.method = {.probes = 1}}), InvalidArgument);
  EXPECT_THROW(index.train(base.view().rows(0, 255)), InvalidArgument);
  Matrix<float> bad = clustered(600, 8, 1);
  bad.row(17)[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(index.train(bad.view()), InvalidArgument);
  EXPECT_FALSE(index.is_trained());
  EXPECT_THROW(make_index("IVF4,PQ3", 8), InvalidArgument);
  EXPECT_THROW(make_index("IVF0,PQ4", 8), InvalidArgument);
  EXPECT_THROW(make_index("IVF4,PQ4x6", 8), InvalidArgument);
  EXPECT_THROW(make_index("PQ9", 8), InvalidArgument);
}

// What the first rows of the nearest list say of the k-th leaves nothing out.
TEST(Codes, FewNeighboursAreTheFirstOfMany) {
  const Matrix<float> base = clustered(30000, 24, 1), queries = clustered(1500, 24, 2);
  for (const char* name : {"IVF24,PQ8x4", "IVF24,PQ6", "PQ8x4"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 24);
    index.train(base.view());
    index.add(base.view());
    SearchOptions options;
    if (index.lists() > 0) options.method.probes = 8;
    const Neighbors all = index.search(queries.view(), 2000, options);
    for (const std::int64_t k : {1, 3, 10, 40, 100}) {
      const Neighbors some = index.search(queries.view(), k, options);
      for (std::int64_t q = 0; q < queries.rows(); ++q)
        for (std::int64_t j = 0; j < k; ++j)
          ASSERT_EQ(some.ids.row(q)[j], all.ids.row(q)[j]) << "query " << q << " k " << k;
    }
  }
}

// What the header states of a row: its code, 8 bytes for the id and 4 for a scalar, and 4 more once
// ids are looked up; lists and the rest of what grows with the rows within 5 %.
TEST(CodeMemory, OfARowIsWhatTheHeaderStates) {
  constexpr std::int64_t n = 100000, dim = 16;
  const Matrix<float> base = clustered(n, dim, 1);
  for (const auto& [name, metric, row_bytes] :
       {std::tuple("IVF256,PQ16", Metric::l2, 16 + 8 + 4),
        std::tuple("IVF256,PQ16", Metric::ip, 16 + 8),
        std::tuple("IVF256,PQ16x4", Metric::cosine, 8 + 8 + 4),
        std::tuple("PQ8", Metric::l2, 16)}) {
    SCOPED_TRACE(std::string(name) + " " + std::string(name_of(metric)));
    const std::int64_t before = allocated_bytes();
    Index index = make_index(name, dim, metric);
    index.train(base.view().rows(0, 1000),
                {.iterations = index.lists() > 0 ? 2 : TrainOptions().iterations});
    // What does not grow: centroids, codebooks, and 1,000 vectors with their 128 neighbours.
    const std::int64_t learned = index.memory_bytes(), neighbor = 8;
    const std::int64_t known = learned + 1000 * 128 * neighbor;
    for (std::int64_t begin = 0, end = 0; begin < n; begin = end) {
      end = std::min(n, 3 * begin + 700);
      index.add(base.view().rows(begin, end));
    }
    const auto most = [](std::int64_t bytes) { return n * bytes * 105 / 100; };
    EXPECT_GE(index.memory_bytes(), known + n * row_bytes);
    EXPECT_LE(index.memory_bytes(), known + most(row_bytes));
    index.remove(std::vector<Id>{17});
    EXPECT_LE(index.memory_bytes(), known + most(row_bytes + 4));
    if (before >= 0) {  // by the count of the allocator too, which knows what we forget
      EXPECT_LE(allocated_bytes() - before, known + most(row_bytes + 4));
    }
  }
}

// Product and scalar codes without lists took such rows, and found ids 0, 1, 2, ... infinitely far;
// in lists they were said not to be finite, which they are.
TEST(Codes, SquaresBeyondFloatsAreRefused) {
  const Matrix<float> base = clustered(800, 8, 1);
  const auto message = [](auto f) -> std::string {
    try {
      f();
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  for (const char* name : {"PQ4x4", "SQ8", "SQ4", "IVF2,SQ8", "IVF4,PQ4x4", "PQ4x4,RFlat",
                           "IVF4,PQ4x4,Refine(SQ8)", "OPQ2,IVF4,PQ2x4"})
    for (const float far : {1e30f, 3e38f}) {
      // No float holds what the rotation makes of the longest, which is said before.
      if (std::string(name).starts_with("OPQ") && far > 1e38f) continue;
      SCOPED_TRACE(std::string(name) + " " + std::to_string(far));
      Matrix<float> x(800, 8);
      for (std::int64_t i = 0; i < 800 * 8; ++i) x.data()[i] = std::copysign(far, base.data()[i]);
      Index index = make_index(name, 8);
      index.train(base.view(), {.threads = 2});
      Matrix<float> one = clustered(800, 8, 1);
      std::copy_n(x.row(0), 8, one.row(770));
      EXPECT_EQ(message([&] { index.add(one.view()); }),
                "vectors hold a row 770 whose squared length is beyond float32");
      EXPECT_EQ(index.size(), 0);
      Index other = make_index(name, 8);
      const std::string said = message([&] {
        other.train(x.view(), {.rows = 700});
        other.add(x.view());
      });
      EXPECT_TRUE(said.starts_with("vectors hold a row ") &&
                  said.ends_with(" whose squared length is beyond float32"))
          << said;
      EXPECT_EQ(other.size(), 0);
    }
  // By direction alone they are as good as any.
  Matrix<float> x = clustered(800, 8, 1);
  for (std::int64_t i = 0; i < 800 * 8; ++i) x.data()[i] *= 1e30f;
  for (const char* name : {"PQ4x4", "IVF4,SQ8"}) {
    Index index = make_index(name, 8, Metric::cosine);
    index.train(x.view());
    index.add(x.view());
    EXPECT_EQ(index.size(), 800);
  }
}

TEST(Codes, OfNoQueriesAreNoAnswers) {
  for (const char* name : {"PCA4,Flat", "PCA4,IVF4,PQ4", "PQ4", "IVF4,SQ8,RFlat"}) {
    Index index = make_index(name, 8);
    index.train(clustered(600, 8, 1).view());
    index.add(clustered(600, 8, 1).view());
    SearchOptions options;
    if (index.lists() > 0) options.method.probes = 2;
    const Neighbors none = index.search(Matrix<float>(0, 8).view(), 3, options);
    EXPECT_EQ(none.ids.rows(), 0) << name;
    EXPECT_EQ(index.range_search(Matrix<float>(0, 8).view(), 3, options).ids.size(), 0u) << name;
  }
}

TEST(Codes, AreFoundInMoreListsWhereTheFirstHaveTooFew) {
  const Matrix<float> base = clustered(900, 8, 1);
  Index index = make_index("IVF12,PQ4", 8);
  index.train(base.view());
  index.add(base.view());
  const IdFilter few = IdFilter::of_ids(std::vector<Id>{5, 100, 200, 300, 400, 500});
  KnnReport report;
  SearchOptions options{.filter = few, .method = {.probes = 1}};
  index.search(base.view().rows(0, 40), 6, options, &report);
  EXPECT_GT(report.short_queries, 0);
  options.method.lists.widen = true;
  const Neighbors got = index.search(base.view().rows(0, 40), 6, options, &report);
  EXPECT_EQ(report.short_queries, 0);
  options.method = {.probes = 12};
  const Neighbors want = index.search(base.view().rows(0, 40), 6, options);
  for (std::int64_t i = 0; i < 40 * 6; ++i) EXPECT_EQ(got.ids.data()[i], want.ids.data()[i]);
}

// Bits are looked up for few queries in the lists that these probe, and else for all rows first.
TEST(Codes, FiltersGiveFewQueriesWhatTheyGiveMany) {
  const Matrix<float> base = clustered(4000, 8, 1), queries = clustered(300, 8, 2);
  int number = 0;
  for (const char* name : {"IVF128,PQ4", "IVF128,PQ4x4", "IVF128,SQ8,RFlat"})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      // Where tests are small each kind of code has one metric.
      if (test::small() && ++number % 3 != static_cast<int>(metric)) continue;
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(metric)));
      Index index = make_index(name, 8, metric);
      index.train(base.view().rows(0, 2000));
      index.add(base.view());
      for (const std::int64_t removed : {0, 400}) {
        std::vector<Id> gone;
        for (Id id = 0; id < removed; ++id) gone.push_back(9 * id);
        index.remove(gone);
        for (const int every : {1, 2, 30, 700}) {
          std::vector<std::uint8_t> bits(488);
          for (Id id = 0; id < 3900; id += every)
            bits[static_cast<std::size_t>(id / 8)] |= static_cast<std::uint8_t>(1 << id % 8);
          std::vector<Id> listed;
          for (Id id = 0; id < 3900; id += every)
            if (id % 9 != 0 || id >= 9 * removed) listed.push_back(id);
          const IdFilter list = IdFilter::of_ids(listed);
          // The last rows are younger than the filter.
          SearchOptions options{.filter = IdFilter::of_bits(bits, 3900), .method = {.probes = 5}};
          SearchOptions beyond = options;
          beyond.method.probes = std::numeric_limits<std::int64_t>::max();
          EXPECT_THROW(index.search(queries.view().rows(0, 3), 7, beyond), InvalidArgument);
          for (const bool widen : {false, true}) {
            options.method.lists.widen = widen;
            KnnReport report;
            const Neighbors many = index.search(queries.view(), 7, options, &report);
            EXPECT_LE(report.allowed_rows, 3900 / every + 1);
            expect_equal(
                index.search(queries.view(), 7, {.filter = list, .method = options.method}), many);
            for (std::int64_t q = 0; q < 300; q += 10) {
              const Neighbors one = index.search(queries.view().rows(q, q + 1), 7, options);
              for (std::int64_t j = 0; j < 7; ++j) {
                const Id id = one.ids.row(0)[j];
                ASSERT_EQ(id, many.ids.row(q)[j]) << "query " << q << " every " << every;
                ASSERT_EQ(one.distances.row(0)[j], many.distances.row(q)[j]);
                ASSERT_TRUE(id == no_id || (id % every == 0 && id < 3900)) << id;
                ASSERT_TRUE(id == no_id || id % 9 != 0 || id >= 9 * removed) << id;
              }
            }
          }
        }
      }
    }
}

// What an index does to vectors first is what its transform says.
class Transformed : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Transformed, IsTheIndexOfTransformedVectors) {
  const auto& [outer, inner] = GetParam();
  const Matrix<float> base = clustered(900, 16, 1), queries = clustered(30, 16, 2);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    SCOPED_TRACE(name_of(metric));
    OpenIndex index(make_index(outer, 16, metric));
    EXPECT_THROW(index.add(base.view()), InvalidArgument);
    index.train(base.view());
    index.add(base.view());
    const Transform transform = *index.state()->transform;
    const Matrix<float> y = transform.apply(base.view()), asked = transform.apply(queries.view());
    Index plain = make_index(inner, y.cols(), metric);
    plain.train(y.view());
    plain.add(y.view());
    SearchOptions options;
    if (plain.lists() > 0) options.method.probes = 3;
    const auto expect_same = [&](const Index& a) {
      const Neighbors got = a.search(queries.view(), 12, options),
                      want = plain.search(asked.view(), 12, options);
      for (std::int64_t i = 0; i < 30 * 12; ++i) {
        ASSERT_EQ(got.ids.data()[i], want.ids.data()[i]) << i;
        ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]) << i;
      }
    };
    expect_same(index);
    const double radius = plain.search(asked.view(), 12, options).distances.row(4)[5];
    EXPECT_EQ(index.range_search(queries.view(), radius, options).ids,
              plain.range_search(asked.view(), radius, options).ids);
    std::string file = std::filesystem::temp_directory_path() / "knear-codes-XXXXXX";
    close(mkstemp(file.data()));
    index.save(file);
    const Index loaded = Index::load(file);
    unlink(file.c_str());
    EXPECT_EQ(loaded.description(), index.description());
    EXPECT_EQ(loaded.dim(), 16);
    expect_same(loaded);
    // What comes back is the inverse of what is kept.
    const std::vector<Id> ids{3, 899, 0};
    const AnyMatrix kept = plain.reconstruct(ids);
    AnyMatrix back = index.reconstruct(ids);
    const Matrix<float> want = transform.inverse(kept);
    ASSERT_EQ(back.cols(), 16);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 16; ++j)
        ASSERT_EQ(static_cast<const float*>(back.row(i))[j], want.row(i)[j]);
    // Trained apart, it cannot be merged.
    OpenIndex other(make_index(outer, 16, metric));
    other.train(clustered(900, 16, 77).view(), {.seed = 5});
    other.add(base.view());
    if (outer != "L2norm,Flat") {
      EXPECT_THROW(index.merge(other, MergeIds::shifted), InvalidArgument);
    }
    EXPECT_EQ(index.size(), 900);
  }
}
INSTANTIATE_TEST_SUITE_P(Strings, Transformed,
                         testing::Values(std::pair("PCA8,Flat", "Flat"),
                                         std::pair("L2norm,Flat", "Flat"),
                                         std::pair("PCAW8,IVF16,Flat", "IVF16,Flat"),
                                         std::pair("OPQ4_8,IVF16,PQ4", "IVF16,PQ4"),
                                         std::pair("RR24,PQ6x4", "PQ6x4"),
                                         std::pair("PCAR12,L2norm,SQ8", "SQ8")));

// Rows rounded to halves are searched exactly.
TEST(Halves, AreTheFlatIndexOfRoundedVectors) {
  const Matrix<float> base = clustered(800, 16, 1), queries = clustered(20, 16, 2);
  for (const auto& [name, type] :
       {std::pair("SQfp16", ElementType::f16), std::pair("SQbf16", ElementType::bf16)}) {
    Index index = make_index(name, 16);
    index.add(base.view());
    EXPECT_EQ(index.element_type(), type);
    Matrix<float> rounded(800, 16);
    for (std::int64_t i = 0; i < 800 * 16; ++i)
      rounded.data()[i] =
          static_cast<float>(type == ElementType::f16 ? to_double(to_f16(base.data()[i]))
                                                      : to_double(to_bf16(base.data()[i])));
    const Neighbors got = index.search(queries.view(), 7),
                    want = reference_knn(queries.view(), rounded.view(), 7, Metric::l2);
    for (std::int64_t i = 0; i < 20 * 7; ++i) {
      ASSERT_EQ(got.ids.data()[i], want.ids.data()[i]);
      ASSERT_EQ(got.distances.data()[i], want.distances.data()[i]);
    }
    Matrix<float> far(2, 16);
    far.row(1)[3] = 1e6f;
    if (type == ElementType::f16) {
      EXPECT_THROW(index.add(far.view()), InvalidArgument);
    }
    EXPECT_EQ(index.size(), 800);
    Index lists = make_index(std::string("IVF8,") + name, 16);
    lists.train(base.view());
    lists.add(base.view());
    const Neighbors all = lists.search(queries.view(), 7, {.method = {.recall = 1}});
    for (std::int64_t i = 0; i < 20 * 7; ++i) ASSERT_EQ(all.ids.data()[i], want.ids.data()[i]);
  }
}

}  // namespace
}  // namespace knear
