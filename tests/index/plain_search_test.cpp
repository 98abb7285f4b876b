// Searches of rows that no index has packed have the bits of searches of an index, at every level.
#include "knear/index/plain_search.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/given_lists.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/knn/knn.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using detail::PlainSearch;
using Kind = PlainSearch::Kind;

Matrix<float> rows_of(std::int64_t n, std::int64_t dim, float far, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(n, dim);
  for (std::int64_t i = 0; i < n * dim; ++i)
    out.data()[i] = far + static_cast<float>(random.uniform() + random.uniform() - 1);
  for (std::int64_t i = n / 2; i < std::min(n, n / 2 + 9); ++i)  // ties
    std::copy_n(out.row(i - n / 2), dim, out.row(i));
  return out;
}

template <class F>
void at_every_level(F f) {
  for (const Isa isa : test::levels()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    SCOPED_TRACE(name_of(isa));
    f();
  }
  unsetenv("KNEAR_ISA");
}

void expect_same(const Neighbors& got, const Neighbors& expected) {
  ASSERT_EQ(got.ids.rows(), expected.ids.rows());
  ASSERT_EQ(got.ids.cols(), expected.ids.cols());
  for (std::int64_t i = 0; i < got.ids.rows() * got.ids.cols(); ++i) {
    ASSERT_EQ(got.ids.data()[i], expected.ids.data()[i]) << i;
    ASSERT_EQ(got.distances.data()[i], expected.distances.data()[i]) << i;
  }
}

TEST(PlainSearch, VectorsAreThoseOfKnn) {
  at_every_level([] {
    for (const auto& [kind, type] :
         {std::pair(Kind::f32, ElementType::f32), std::pair(Kind::f16, ElementType::f16),
          std::pair(Kind::bf16, ElementType::bf16)})
      for (const Metric metric : {Metric::l2, Metric::ip})
        for (const std::int64_t dim : {1, 3, 16, 17, 40, 130})
          for (const float far : {0.0f, 30.0f}) {
            const std::int64_t n = 700;
            const AnyMatrix base = detail::rounded_to(type, rows_of(n, dim, far, 1).view(), 1);
            const Matrix<float> queries = rows_of(9, dim, far, 2);
            const PlainSearch search({.kind = kind, .metric = metric, .dim = dim});
            const PlainSearch::Rows rows{
                .bytes = static_cast<const std::uint8_t*>(base.view().data()), .n = n};
            for (const std::int64_t k : {1, 10, 701})
              for (const int threads : {1, 3}) {
                const auto found =
                    search.nearest(rows, queries.view(), MatrixView<Id>(), k, threads);
                ASSERT_TRUE(found.has_value());
                EXPECT_EQ(found->probed, 9 * n);
                expect_same(found->neighbors,
                            knn(queries.view(), base.view(), k, {.metric = metric}));
              }
          }
  });
}

TEST(PlainSearch, CodesAreThoseOfAnIndex) {
  at_every_level([] {
    for (const bool four : {false, true})
      for (const Metric metric : {Metric::l2, Metric::ip})
        for (const std::int64_t dim : {1, 7, 33, 128})
          for (const bool lists : {false, true}) {
            const std::int64_t n = 900;
            const Matrix<float> base = rows_of(n, dim, 2, 3), queries = rows_of(7, dim, 2, 4);
            const std::string name = std::string(lists ? "IVF6," : "") + (four ? "SQ4" : "SQ8");
            Index index = make_index(name, dim, metric);
            index.train(base.view(), {.hold_out = false});
            const PlainSearch search({.kind = four ? Kind::codes4 : Kind::codes8,
                                      .metric = metric,
                                      .dim = dim,
                                      .like = &index});
            // Any codes in any lists will do.
            Random random(5);
            Matrix<std::uint8_t> codes(n, search.row_bytes());
            for (std::int64_t i = 0; i < n * codes.cols(); ++i)
              codes.data()[i] = static_cast<std::uint8_t>(random.below(256));
            for (std::int64_t i = 0; four && dim % 2 == 1 && i < n; ++i)
              codes.row(i)[codes.cols() - 1] &= 15;
            std::vector<Id> list_of;
            for (std::int64_t i = 0; lists && i < n; ++i) list_of.push_back(random.below(6));
            detail::add_to_lists(index, codes.view(), list_of);
            Matrix<Id> probes(7, lists ? 3 : 0);
            for (std::int64_t q = 0; lists && q < 7; ++q)
              for (std::int64_t p = 0; p < 3; ++p)
                probes.row(q)[p] = (q + p) % 7 == 6 ? no_id : (q + 2 * p) % 7 % 6;
            for (std::int64_t q = 0; lists && q < 7; ++q)  // none twice
              for (std::int64_t p = 0; p < 3; ++p)
                for (std::int64_t other = 0; other < p; ++other)
                  if (probes.row(q)[p] == probes.row(q)[other]) probes.row(q)[p] = no_id;
            PlainSearch::Rows rows{.bytes = codes.data(), .n = n, .list_of = list_of};
            for (const std::int64_t k : {1, 12}) {
              const Neighbors expected =
                  lists ? detail::search_lists(index, queries.view(), probes.view(), k)
                        : index.search(queries.view(), k);
              const auto found = search.nearest(rows, queries.view(),
                                                lists ? probes.view() : MatrixView<Id>(), k, 1);
              ASSERT_TRUE(found.has_value());
              expect_same(found->neighbors, expected);
              if (!lists) continue;
              const auto [by_list, begin] = detail::rows_by_list(list_of, 6);
              rows.by_list = by_list, rows.begin = begin;
              expect_same(search.nearest(rows, queries.view(), probes.view(), k, 2)->neighbors,
                          expected);
              rows.by_list = rows.begin = {};
            }
          }
  });
}

TEST(PlainSearch, LeavesNumbersThatAreNotFiniteToTheIndex) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  at_every_level([&] {
    for (const Metric metric : {Metric::l2, Metric::ip})
      for (const float bad : {infinity, -infinity, nan, 3e38f})
        for (const std::int64_t at : {0, 20}) {
          Matrix<float> base = rows_of(300, 21, 0, 1), queries = rows_of(2, 21, 0, 2);
          const PlainSearch search({.kind = Kind::f32, .metric = metric, .dim = 21});
          const PlainSearch::Rows rows{.bytes = reinterpret_cast<const std::uint8_t*>(base.data()),
                                       .n = 300};
          const auto found = [&] {
            return search.nearest(rows, queries.view(), MatrixView<Id>(), 3, 1).has_value();
          };
          EXPECT_TRUE(found());
          const float before = base.row(299)[at];
          base.row(299)[at] = bad;
          if (!std::isfinite(bad) || metric == Metric::l2) {
            EXPECT_FALSE(found());
          }
          base.row(299)[at] = before;
          queries.row(1)[at] = bad;
          if (!std::isfinite(bad) || metric == Metric::l2) {
            EXPECT_FALSE(found());
          }
        }
  });
}

TEST(PlainSearch, RefusesWrongArguments) {
  EXPECT_THROW(PlainSearch({.kind = Kind::f32, .metric = Metric::cosine, .dim = 2}),
               InvalidArgument);
  EXPECT_THROW(PlainSearch({.kind = Kind::codes8, .metric = Metric::l2, .dim = 2}),
               InvalidArgument);
  EXPECT_THROW(PlainSearch({.kind = Kind::bits6, .metric = Metric::l2, .dim = 2}), ShapeMismatch);
  EXPECT_THROW(PlainSearch::kind_of("5"), InvalidArgument);
  const Matrix<float> some = rows_of(4, 2, 0, 1);
  const PlainSearch search(
      {.kind = Kind::f32, .metric = Metric::l2, .dim = 2, .coarse = some.view()});
  const std::vector<Id> list_of = {0, 1, 2, 3};
  const PlainSearch::Rows rows{
      .bytes = reinterpret_cast<const std::uint8_t*>(some.data()), .n = 4, .list_of = list_of};
  EXPECT_EQ(search.nearest(rows, some.view(), 1, 1, 1)->neighbors.ids.row(1)[0], 1);
  EXPECT_THROW(search.nearest(rows, some.view(), 5, 1, 1), InvalidArgument);
  Matrix<Id> probes(4, 1);
  probes.row(2)[0] = 4;
  EXPECT_THROW(search.nearest(rows, some.view(), probes.view(), 1, 1), InvalidArgument);
}

}  // namespace
}  // namespace knear
