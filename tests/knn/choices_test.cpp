// Every choice of a search can be overridden, is reported, and changes no answer.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/knn.hpp"

namespace knear {
namespace {

Matrix<float> filled(std::int64_t rows, std::int64_t dim, std::uint64_t seed, bool whole) {
  Random random(seed);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] =
        whole ? static_cast<float>(random.below(100)) : static_cast<float>(random.uniform() - 0.5);
  return out;
}

TEST(Choices, AreRead) {
  const TuningOverrides all =
      parse_tuning("group=4,parts=3,columns=64,clusters=500,tile=256,guess=off");
  EXPECT_EQ(all.group, 4);
  EXPECT_EQ(all.parts, 3);
  EXPECT_EQ(all.columns, 64);
  EXPECT_EQ(all.clusters, 500);
  EXPECT_EQ(all.tile, 256);
  EXPECT_FALSE(all.guess);
  EXPECT_FALSE(all.refine.has_value());
  EXPECT_EQ(parse_tuning("refine=on").refine, true);
  EXPECT_EQ(parse_tuning("group=1,refine=off").refine, false);
  const TuningOverrides none = parse_tuning("");
  EXPECT_EQ(none.group, 0);
  EXPECT_TRUE(none.guess);
  for (const char* wrong :
       {"group=2", "group=", "group", "parts=0", "parts=5000", "columns=12", "columns=136",
        "columns=64x", "clusters=-1", "tile=0", "tile=65537", "tile=1.5", "guess=maybe", "refine=1",
        "color=1", "group=4,,parts=2", "="})
    EXPECT_THROW(parse_tuning(wrong), InvalidArgument) << wrong;
}

TEST(Choices, ChangeNoAnswerAndAreReported) {
  for (const bool whole : {true, false}) {
    const Matrix<float> base = filled(4500, 2000, 1, whole), queries = filled(70, 2000, 2, whole);
    ExactSearcher searcher(base.view(), {});
    for (const std::int64_t count : {1, 3, 70})
      for (const std::int64_t k : {10, 50}) {
        const AnyMatrixView some = queries.view().rows(0, count);
        const Neighbors expected = searcher.search(some, k, {.first_pass = FirstPass::direct});
        for (const int group : {0, 1, 4, 12})
          for (const int parts : {0, 1, 2, 3})
            for (const bool guess : {true, false}) {
              // Tiles of one size, whatever caches this machine has: with few tiles thresholds are
              // not estimated.
              KnnOptions options{
                  .threads = 2,
                  .tuning = {.group = group, .parts = parts, .tile = 512, .guess = guess}};
              KnnReport report;
              const Neighbors got = searcher.search(some, k, options, &report);
              ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(),
                                    static_cast<std::size_t>(count * k) * sizeof(Id)),
                        0)
                  << count << " queries, k " << k << ", group " << group << " parts " << parts;
              EXPECT_EQ(report.scan.group, group > 0 ? group : report.scan.group);
              EXPECT_EQ(report.scan.parts, parts > 0 ? parts : report.scan.parts);
              EXPECT_EQ(report.scan.guessed, guess && k == 50);
            }
      }
  }
}

TEST(Choices, Tile) {
  for (const bool whole : {true, false}) {
    const Matrix<float> base = filled(4500, 96, 1, whole), queries = filled(70, 96, 2, whole);
    ExactSearcher searcher(base.view(), {});
    Index index = make_index("Flat", 96, Metric::l2);
    index.add(base.view());
    const Neighbors expected = reference_knn(queries.view(), base.view(), 40, Metric::l2);
    std::int64_t usual = 0;
    for (const std::int64_t tile : {0, 3, 20, 1000, 65536, 0})  // KiB
      for (const FirstPass pass : {FirstPass::automatic, FirstPass::prefix}) {
        const KnnOptions options{.first_pass = pass, .tuning = {.tile = tile}};
        KnnReport report, of_index;
        const Neighbors got = searcher.search(queries.view(), 40, options, &report);
        ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 70 * 40 * sizeof(Id)), 0);
        const Neighbors kept = index.search(
            queries.view(), 40, {.first_pass = pass, .tuning = {.tile = tile}}, &of_index);
        ASSERT_EQ(std::memcmp(kept.ids.data(), expected.ids.data(), 70 * 40 * sizeof(Id)), 0);
        EXPECT_EQ(of_index.scan.tile_rows, report.scan.tile_rows) << tile;
        if (pass == FirstPass::prefix) continue;
        // Panels have 32 rows.
        if (tile == 0) {
          if (usual == 0) usual = report.scan.tile_rows;
          EXPECT_EQ(report.scan.tile_rows, usual);  // the kept panels are used
        } else {
          // Which pass is the fastest depends on the instruction set.
          const std::int64_t row_bytes = 96 * (report.scan.first_pass == "fp32"    ? 4
                                               : report.scan.first_pass == "int16" ? 2
                                                                                   : 1);
          EXPECT_LE(report.scan.tile_rows, std::max<std::int64_t>(32, tile * 1024 / row_bytes));
          EXPECT_GE(report.scan.tile_rows,
                    std::min<std::int64_t>(4500, tile * 1024 / row_bytes / 2 / 32 * 32));
        }
      }
  }
  const Matrix<float> few = filled(10, 8, 1, false);
  EXPECT_THROW(
      knn(few.view(), few.view(), 2, {.first_pass = FirstPass::direct, .tuning = {.tile = 64}}),
      InvalidArgument);
  EXPECT_THROW(knn(few.view(), few.view(), 2, {.tuning = {.tile = 1 << 20}}), InvalidArgument);
  KnnReport report;  // few rows and queries, but scanned: the tile was asked for
  knn(few.view(), few.view(), 2, {.tuning = {.tile = 64}}, &report);
  EXPECT_NE(report.scan.first_pass, "direct");
  EXPECT_EQ(report.scan.tile_rows, 32);
}

TEST(Choices, TileStaysWithinTheMemory) {
  const Matrix<float> base = filled(60000, 64, 1, false), queries = filled(50, 64, 2, false);
  ExactSearcher searcher(base.view(), {});
  const Neighbors expected = knn(queries.view(), base.view(), 10);  // so that nothing is kept yet
  for (const FirstPass pass : {FirstPass::automatic, FirstPass::int16, FirstPass::prefix})
    for (const std::int64_t tile : {0, 64, 0, 7, 64}) {
      const std::int64_t memory = pass == FirstPass::automatic ? 10 << 20 : 40 << 20;
      KnnReport report;
      const Neighbors got = searcher.search(
          queries.view(), 10, {.memory = memory, .first_pass = pass, .tuning = {.tile = tile}},
          &report);
      ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 500 * sizeof(Id)), 0);
      EXPECT_LE(report.memory_bytes, memory) << name_of(pass) << " tile " << tile;
    }
}

TEST(Choices, Prefix) {
  const Matrix<float> base = filled(3000, 40, 1, false), queries = filled(60, 40, 2, false);
  const Neighbors expected = reference_knn(queries.view(), base.view(), 10, Metric::l2);
  ExactSearcher searcher(base.view(), {});
  Index index = make_index("Flat", 40, Metric::l2);
  index.add(base.view());
  for (const std::int64_t columns : {8, 40, 16})
    for (const std::int64_t clusters : {1, 70, 5000}) {
      KnnReport report;
      const Neighbors got = searcher.search(
          queries.view(), 10,
          {.first_pass = FirstPass::prefix, .tuning = {.columns = columns, .clusters = clusters}},
          &report);
      EXPECT_EQ(report.scan.prefix_columns, columns);
      EXPECT_EQ(report.scan.clusters, std::min<std::int64_t>(clusters, 3000));
      EXPECT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 600 * sizeof(Id)), 0);
    }
  KnnReport report;
  index.search(queries.view(), 10, {.first_pass = FirstPass::prefix, .tuning = {.columns = 24}},
               &report);
  EXPECT_EQ(report.scan.prefix_columns, 24);
  // They are refused where they would have no effect.
  EXPECT_THROW(searcher.search(queries.view(), 10, {.tuning = {.columns = 16}}), InvalidArgument);
  EXPECT_THROW(searcher.search(queries.view(), 10,
                               {.first_pass = FirstPass::prefix, .tuning = {.columns = 48}}),
               InvalidArgument);
  EXPECT_THROW(searcher.search(queries.view(), 10, {.tuning = {.group = 5}}), InvalidArgument);
  EXPECT_THROW(searcher.search(queries.view(), 10,
                               {.first_pass = FirstPass::direct, .tuning = {.group = 4}}),
               InvalidArgument);
  // Measuring every row, which would be chosen for one query, would leave the group without effect.
  KnnReport kernel;
  knn(queries.view().rows(0, 1), base.view(), 10, {.tuning = {.group = 4}}, &kernel);
  EXPECT_EQ(kernel.scan.group, 4);
  EXPECT_NE(kernel.scan.first_pass, "direct");
  EXPECT_THROW(searcher.range_search(queries.view(), 1, {.tuning = {.guess = false}}),
               InvalidArgument);
}

// Rows in eight tight clusters: 8-bit codes with a panel's scale leave many of them.
Matrix<float> tight(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random centres(9), random(seed);
  Matrix<float> middle(8, dim), out(rows, dim);
  for (std::int64_t i = 0; i < 8 * dim; ++i)
    middle.data()[i] = static_cast<float>(centres.uniform() - 0.5);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(r)[j] = middle.row(r % 8)[j] + 0.2f * static_cast<float>(random.uniform() - 0.5);
  return out;
}

TEST(Choices, RefiningChangesNoAnswerAndSparesMeasuring) {
  const Matrix<float> base = tight(6000, 200, 1), queries = tight(60, 200, 2);
  Matrix<float> with_copies = tight(6000, 200, 1);
  for (std::int64_t r = 0; r < 500; ++r)
    std::copy_n(base.row(r), 200, with_copies.row(5999 - 3 * r));
  for (const MatrixView<float> rows : {base.view(), with_copies.view()})
    for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
      ExactSearcher searcher(rows, {.metric = metric});
      for (const std::int64_t count : {1, 60})
        for (const std::int64_t k : {5, 40}) {
          const auto some = queries.view().rows(0, count);
          const Neighbors expected = reference_knn(some, rows, k, metric);
          double survivors[2];
          std::int64_t memory[2];
          for (const bool refine : {false, true})
            for (const bool once : {false, true}) {
              const KnnOptions options{.metric = metric,
                                       .threads = 2,
                                       .first_pass = FirstPass::int8,
                                       .tuning = {.refine = refine}};
              KnnReport report;
              const Neighbors got = once ? knn(some, rows, k, options, &report)
                                         : searcher.search(some, k, options, &report);
              ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(),
                                    static_cast<std::size_t>(count * k) * sizeof(Id)),
                        0)
                  << name_of(metric) << ' ' << count << " queries, k " << k;
              EXPECT_EQ(report.scan.refined_per_query > 0, refine);
              survivors[refine] = report.scan.survivors_per_query,
              memory[refine] = report.memory_bytes;
            }
          EXPECT_GE(memory[true] - memory[false], 6000 * (200 + 16));  // in a one-shot search too
          if (metric != Metric::ip) {
            EXPECT_LT(survivors[true] - double(k), 0.7 * (survivors[false] - double(k)))
                << name_of(metric) << " k " << k;
          }
        }
    }
}

// It is done when asked for, whatever the search would otherwise have chosen.
TEST(Choices, RefiningIsDoneWhenAskedFor) {
  const Matrix<float> base = tight(6000, 40, 1), queries = tight(60, 40, 2);
  std::vector<Id> some;
  for (Id row = 0; row < 6000; row += 20) some.push_back(row);
  for (const char* isa : {"scalar", ""}) {
    if (*isa) setenv("KNEAR_ISA", isa, 1);
    for (const bool filtered : {false, true}) {
      KnnOptions options{.tuning = {.refine = true}};
      if (filtered) options.filter = RowFilter::of_ids(some, 6000);
      KnnReport report;
      const Neighbors got = knn(queries.view(), base.view(), 5, options, &report);
      EXPECT_GT(report.scan.refined_per_query, 0) << isa << filtered;
      options.tuning = {}, options.first_pass = FirstPass::direct;
      const Neighbors expected = knn(queries.view(), base.view(), 5, options);
      EXPECT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 300 * sizeof(Id)), 0);
    }
    unsetenv("KNEAR_ISA");
  }
}

TEST(Choices, RefiningOfAPrefixSearch) {
  // Most of every vector lies in twelve dimensions.
  const Matrix<float> parts = filled(12, 200, 3, false);
  const auto mixed = [&](std::int64_t rows, std::uint64_t seed) {
    Matrix<float> out = filled(rows, 200, seed, false);
    const Matrix<float> amounts = filled(rows, 12, seed + 10, false);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < 200; ++j) {
        out.row(r)[j] *= 0.1f;
        for (std::int64_t p = 0; p < 12; ++p) out.row(r)[j] += amounts.row(r)[p] * parts.row(p)[j];
      }
    return out;
  };
  const Matrix<float> base = mixed(6000, 1), queries = mixed(60, 2);
  const Neighbors expected = reference_knn(queries.view(), base.view(), 5, Metric::l2);
  double survivors[2];
  for (const bool refine : {false, true}) {
    KnnReport report;
    const Neighbors got =
        knn(queries.view(), base.view(), 5,
            {.first_pass = FirstPass::prefix, .tuning = {.refine = refine}}, &report);
    EXPECT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 300 * sizeof(Id)), 0);
    EXPECT_EQ(report.scan.first_pass, "prefix");
    EXPECT_EQ(report.scan.refined_per_query > 0, refine);
    survivors[refine] = report.scan.survivors_per_query;
  }
  EXPECT_LT(survivors[true] - 5, 0.7 * (survivors[false] - 5));
}

TEST(Choices, RefiningIsRefusedWhereItDoesNothing) {
  const Matrix<float> base = tight(3000, 40, 1), queries = tight(20, 40, 2);
  const Matrix<float> whole = filled(3000, 40, 1, true), asked = filled(20, 40, 2, true);
  ExactSearcher searcher(base.view(), {});
  const TuningOverrides on{.refine = true};
  for (const FirstPass pass : {FirstPass::direct, FirstPass::int16, FirstPass::fp32})
    EXPECT_THROW(searcher.search(queries.view(), 5, {.first_pass = pass, .tuning = on}),
                 InvalidArgument);
  EXPECT_THROW(searcher.search(queries.view(), 5, {.memory = 1 << 30, .tuning = on}),
               InvalidArgument);
  EXPECT_THROW(searcher.range_search(queries.view(), 1, {.tuning = on}), InvalidArgument);
  EXPECT_THROW(searcher.range_search(queries.view(), 1, {.tuning = {.refine = false}}),
               InvalidArgument);
  EXPECT_THROW(knn(asked.view(), whole.view(), 5, {.tuning = on}), InvalidArgument);
  KnnReport report;
  knn(asked.view(), whole.view(), 5, {.first_pass = FirstPass::int8, .tuning = on}, &report);
  EXPECT_EQ(report.scan.first_pass, "int8");
}

// An index starts to refine by itself, once the saved time pays for the codes, and reports it.
TEST(Choices, AnIndexStartsToRefine) {
  const Matrix<float> base = tight(6000, 768, 1), queries = tight(400, 768, 2);
  Index index = make_index("Flat", 768, Metric::ip);
  index.add(base.view());
  const Neighbors expected = reference_knn(queries.view(), base.view(), 3, Metric::ip);
  std::int64_t before = 0;
  KnnReport report;
  for (int i = 0; i < 50 && report.scan.refined_per_query == 0; ++i) {
    if (i > 0) before = index.memory_bytes();
    const Neighbors got = index.search(queries.view(), 3, {.first_pass = FirstPass::int8}, &report);
    ASSERT_EQ(std::memcmp(got.ids.data(), expected.ids.data(), 1200 * sizeof(Id)), 0);
  }
  EXPECT_GT(report.scan.refined_per_query, 0);
  EXPECT_EQ(index.memory_bytes() - before, 6000 * (768 + 16) + 64);
}

}  // namespace
}  // namespace knear
