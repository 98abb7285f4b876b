// The arguments of a search beside its vectors: filters, whose answers are those of the allowed
// rows alone; and what is refused, by messages that name the argument and both values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using namespace test;

// The answer among the allowed rows, by searching a base that has no others.
Neighbors filtered_reference(AnyMatrixView queries, const AnyMatrix& base,
                             const std::vector<Id>& allowed, std::int64_t k, Metric metric) {
  AnyMatrix part(base.type(), static_cast<std::int64_t>(allowed.size()), base.cols());
  for (std::size_t i = 0; i < allowed.size(); ++i)
    std::memcpy(part.row(static_cast<std::int64_t>(i)), base.view().row(allowed[i]),
                static_cast<std::size_t>(base.cols() * size_of(base.type())));
  Neighbors out = reference_knn(queries, part, k, metric);
  for (std::int64_t i = 0; i < out.ids.rows() * k; ++i)
    if (out.ids.data()[i] != no_id) out.ids.data()[i] = allowed[out.ids.data()[i]];
  return out;
}

TEST(KnnFilter, AnswersOfTheAllowedRowsAlone) {
  // Floats with copies of rows and whole numbers with ties, for every kind of search: few and many
  // queries, few and many allowed rows, with the packed base kept or not, in chunks, at every
  // level.
  Random random(31);
  AnyMatrix floats = gaussians(1500, 21, 32);
  for (std::int64_t r = 0; r < 1500; r += 3)
    std::memcpy(floats.row(r), floats.row(r % 300), 21 * 4);
  const AnyMatrix bytes =
      make(ElementType::u8, 1500, 21, [&](auto, auto) { return random.below(4); });
  const AnyMatrix float_queries = gaussians(120, 21, 33);
  const AnyMatrix byte_queries =
      make(ElementType::u8, 120, 21, [&](auto, auto) { return random.below(4); });
  const std::pair<const AnyMatrix*, const AnyMatrix*> cases[] = {{&floats, &float_queries},
                                                                 {&bytes, &byte_queries}};
  for (const auto& [base, queries] : cases)
    for (Metric metric : metrics) {
      const ExactSearcher searcher(*base, {.metric = metric});
      searcher.search(*queries, 3, {.metric = metric});  // packs what is kept
      for (double share : {0.0, 0.002, 0.05, 0.5, 0.98, 1.0}) {
        std::vector<Id> allowed;
        std::vector<std::uint8_t> bits((1500 + 7) / 8);
        for (Id row = 0; row < 1500; ++row)
          if (random.uniform() < share) allowed.push_back(row), bits[row / 8] |= 1 << row % 8;
        const RowFilter filter = RowFilter::of_ids(allowed, 1500);
        EXPECT_EQ(filter.count(), static_cast<std::int64_t>(allowed.size()));
        for (std::int64_t k : {1, 10, 40})
          for (std::int64_t count : {1, 7, 120}) {
            const AnyMatrixView some = queries->view().rows(0, count);
            const Neighbors expected = filtered_reference(some, *base, allowed, k, metric);
            for (Isa isa : test::levels()) {
              ForcedIsa forced(isa);
              SCOPED_TRACE(fmt::format("{} {} share {} k {} queries {} {}", name_of(base->type()),
                                       name_of(metric), share, k, count, name_of(isa)));
              KnnOptions options{.metric = metric, .threads = 2, .filter = filter};
              KnnReport report;
              EXPECT_TRUE(same(knn(some, *base, k, options, &report), expected)) << "once";
              EXPECT_EQ(report.allowed_rows, filter.count());
              EXPECT_TRUE(same(searcher.search(some, k, options), expected)) << "kept";
              options.filter = RowFilter::of_bits(bits, 1500);
              for (FirstPass pass : certified) {
                if (k != 10) continue;
                options.first_pass = pass;
                EXPECT_TRUE(same(knn(some, *base, k, options), expected)) << name_of(pass);
              }
            }
          }
      }
    }
  // In chunks, because memory is short; ids still those of the whole base.
  const AnyMatrix large = gaussians(20000, 40, 34);
  std::vector<Id> odd;
  for (Id row = 1; row < 20000; row += 2) odd.push_back(row);
  const Neighbors expected =
      filtered_reference(float_queries.view().rows(0, 0), large, odd, 5, Metric::l2);
  EXPECT_EQ(expected.ids.rows(), 0);
  const AnyMatrix few = gaussians(9, 40, 35);
  KnnReport report;
  EXPECT_TRUE(same(knn(few, large, 5,
                       {.memory = 2 << 20,
                        .first_pass = FirstPass::int8,
                        .filter = RowFilter::of_ids(odd, 20000)},
                       &report),
                   filtered_reference(few, large, odd, 5, Metric::l2)));
  EXPECT_GT(report.scan.chunks, 1);
}

TEST(KnnFilter, ForbiddenRowsCostLittle) {
  // With the packed base kept and few queries all rows are scanned, and no more.
  const AnyMatrix base = gaussians(30000, 64, 36), queries = gaussians(60, 64, 37);
  const ExactSearcher searcher(base, {});
  KnnReport all, most, few;
  searcher.search(queries, 10, {}, &all);
  std::vector<Id> ids;
  for (Id row = 0; row < 30000; ++row)
    if (row % 100 != 0) ids.push_back(row);
  searcher.search(queries, 10, {.filter = RowFilter::of_ids(ids, 30000)}, &most);
  EXPECT_LE(most.scan.multiply_adds, all.scan.multiply_adds);
  EXPECT_LT(most.scan.hits_per_query, 1.2 * all.scan.hits_per_query);
  searcher.search(queries, 10, {.filter = RowFilter::of_ids(std::span(ids).first(300), 30000)},
                  &few);
  EXPECT_LT(few.scan.multiply_adds, 0.02 * all.scan.multiply_adds);
}

template <class Exception, class F>
void expect_error(F f, const std::string& text) {
  try {
    f();
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    return;
  } catch (const std::exception& error) {
    FAIL() << "another error: " << error.what();
  }
  FAIL() << "no error; expected one that says: " << text;
}

TEST(KnnErrors, NameTheArgumentAndTheValues) {
  AnyMatrix base = gaussians(50, 6, 1), queries = gaussians(4, 6, 2), wide = gaussians(4, 7, 2);
  expect_error<InvalidArgument>([&] { knn(queries, base, 0); }, "k must be at least 1, but is 0");
  AnyMatrix many = gaussians(1000, 6, 3);
  expect_error<MemoryBudgetError>([&] { knn(many, base, (std::int64_t{1} << 31) - 1); },
                                  "k is 2147483647 and there are 1000 queries");
  expect_error<ShapeMismatch>([&] { knn(wide, base, 1); }, "queries have 7 columns, base has 6");
  expect_error<InvalidArgument>([&] { knn(queries, base, 1, {.threads = -3}); }, "-3");
  expect_error<InvalidArgument>([&] { knn(queries, base, 1, {.first_pass = FirstPass::integer}); },
                                "first_pass is integer");
  set(queries, 2 * 6 + 4, NAN);
  expect_error<InvalidArgument>([&] { knn(queries, base, 1); },
                                "queries must be finite, but row 2 column 4 is nan");
  set(base, 49 * 6, INFINITY);
  expect_error<InvalidArgument>([&] { ExactSearcher(base, {}); },
                                "base must be finite, but row 49 column 0 is inf");
  const AnyMatrix none(ElementType::f32, 3, 0), vast(ElementType::u8, 1, 65537);
  expect_error<InvalidArgument>([&] { knn(none, none, 1); }, "between 1 and 65536 columns");
  expect_error<InvalidArgument>([&] { knn(vast, vast, 1); }, "has 65537");
  const AnyMatrix fine = gaussians(50, 6, 1);
  const ExactSearcher searcher(fine, {.metric = Metric::ip});
  expect_error<InvalidArgument>([&] { searcher.search(fine, 1, {}); }, "metric is l2");
}

TEST(KnnErrors, MuchPaddingIsRefusedUnlessThereIsALimitOfMemory) {
  const AnyMatrix base = gaussians(50, 6, 1), query = gaussians(1, 6, 2);
  constexpr std::int64_t gibibyte = std::int64_t{1} << 30, k = gibibyte / 12 + 51;
  const std::string says = "k is 89478536, but there are 50 rows, so that 1.07e+09 bytes of";
  expect_error<MemoryBudgetError>([&] { knn(query, base, k); }, says);
  expect_error<MemoryBudgetError>([&] { ExactSearcher(base, {}).search(query, k, {}); }, says);
  expect_error<MemoryBudgetError>([&] { self_join(base, k / 50 + 51); }, "padding");
  // A limit of memory holds the answer too, and is what refuses then.
  expect_error<MemoryBudgetError>([&] { knn(query, base, k, {.memory = 1 << 21}); }, "memory is");
  const Neighbors all = knn(query, base, 1000, {.memory = 1 << 21});
  EXPECT_EQ(all.ids.cols(), 1000);
  EXPECT_NE(all.ids.row(0)[49], no_id);
  EXPECT_EQ(all.ids.row(0)[50], no_id);
}

TEST(KnnErrors, SizesThatOverflowAreRefused) {
  const AnyMatrix base = gaussians(50, 6, 1);
  EXPECT_THROW(knn(base, base, std::int64_t{1} << 62), InvalidArgument);
  EXPECT_THROW(knn(base, base, (std::int64_t{1} << 60) + 1), InvalidArgument);
  EXPECT_THROW((Matrix<float>(std::int64_t{1} << 40, std::int64_t{1} << 40)), MemoryBudgetError);
  EXPECT_THROW((AnyMatrix(ElementType::f32, std::int64_t{1} << 31, std::int64_t{1} << 31)),
               MemoryBudgetError);
}

TEST(KnnErrors, ProgressCanStopTheWork) {
  const AnyMatrix base = gaussians(20000, 32, 1), queries = gaussians(300, 32, 2);
  int calls = 0;
  const Progress stop = [&](std::string_view, double) { return ++calls < 3; };
  EXPECT_THROW(knn(queries, base, 5, {.progress = stop}), Cancelled);
  double last = 0;
  const Progress watch = [&](std::string_view stage, double fraction) {
    if (stage == "search") {
      EXPECT_GE(fraction, last);
      last = fraction;
    }
    return true;
  };
  knn(queries, base, 5, {.progress = watch});
  EXPECT_EQ(last, 1.0);
}

TEST(KnnErrors, UnknownLevelIsRefused) {
  setenv("KNEAR_ISA", "avx1024", 1);
  const AnyMatrix base = gaussians(5, 3, 1);
  EXPECT_THROW(knn(base, base, 1), InvalidArgument);
  unsetenv("KNEAR_ISA");
}

TEST(KnnErrors, MoreWithinTheRadiusThanMemoryHolds) {
  const AnyMatrix floats = gaussians(20000, 8, 1);
  const AnyMatrix bytes =
      make(ElementType::u8, 20000, 8, [](auto r, auto c) { return (r + c) % 9; });
  for (const AnyMatrix* base : {&floats, &bytes})
    for (FirstPass pass : {FirstPass::automatic, FirstPass::int8, FirstPass::direct}) {
      const AnyMatrixView queries = base->view().rows(0, 200);
      const KnnOptions options{.memory = 40 << 20, .first_pass = pass};
      // Four million rows of 64 bytes: refused while they are being found.
      expect_error<MemoryBudgetError>([&] { range_search(queries, *base, 1e9, options); },
                                      "rows lie within the radius");
      KnnReport report;
      const RangeNeighbors few = range_search(queries.rows(0, 9), *base, 1e-3, options, &report);
      EXPECT_GE(few.ids.size(), 9u);  // each finds itself
      EXPECT_LE(report.memory_bytes, options.memory);
      EXPECT_EQ(report.k, 0);
    }
}

TEST(KnnErrors, Filters) {
  const AnyMatrix base = gaussians(10, 3, 1);
  const std::vector<Id> beyond = {3, 10}, negative = {-1};
  expect_error<InvalidArgument>([&] { RowFilter::of_ids(beyond, 10); },
                                "id 10 in place 1, but the base has rows 0 to 9");
  expect_error<InvalidArgument>([&] { RowFilter::of_ids(negative, 10); }, "id -1 in place 0");
  expect_error<ShapeMismatch>([&] { RowFilter::of_bits(std::vector<std::uint8_t>(1), 10); },
                              "1 bytes of bits, but 10 rows make 2");
  expect_error<ShapeMismatch>(
      [&] { knn(base, base, 1, {.filter = RowFilter::of_ids(std::vector<Id>{1}, 9)}); },
      "filter is for 9 rows, base has 10");
  const RowFilter beyond_the_last = RowFilter::of_bits(std::vector<std::uint8_t>{0, 0xff}, 10);
  EXPECT_EQ(beyond_the_last.count(), 2);
}

}  // namespace
}  // namespace knear
