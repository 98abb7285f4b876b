// tests/index/sharded_index_test.cpp -- an index in shards beside one index: the same bits through
// all changes, whatever the number of shards, replicas and threads; changes that are whole or not
// at all; and what a report says of all shards.
#include "knear/index/index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/cpu_groups.hpp"
#include "knear/factory/factory.hpp"
#include "knear/knn/device/replica_speeds.hpp"
#include "tests/core/present_cpus.hpp"
#include "tests/index/index_model.hpp"
#include "tests/index/sharded_cases.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using io::expect_error;
using test::make;
using test::present_cpus;

constexpr ElementType types[] = {ElementType::f32, ElementType::f16, ElementType::bf16,
                                 ElementType::u8,  ElementType::i8,  ElementType::f64};

// Whole numbers, so that every type holds them and there are ties; with halves where they fit.
AnyMatrix vectors_of(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  const bool whole = type == ElementType::u8 || type == ElementType::i8;
  return make(type, rows, dim, [&](std::int64_t, std::int64_t) {
    const double x = std::floor(5 * random.uniform());
    return whole ? x : x / 2 - 1;
  });
}

void expect_same(const RangeNeighbors& got, const RangeNeighbors& wanted) {
  EXPECT_EQ(got.begin, wanted.begin);
  EXPECT_EQ(got.ids, wanted.ids);
  EXPECT_EQ(got.distances, wanted.distances);
}

std::vector<Id> some_ids(const std::vector<Id>& all, std::size_t step) {
  std::vector<Id> out;
  for (std::size_t i = step / 2; i < all.size(); i += step) out.push_back(all[i]);
  return out;
}

// The same history for one index and for one in shards.
template <class AnyIndex>
void add_all(AnyIndex& index, ElementType type, std::int64_t dim) {
  const ChangeOptions one{.threads = 1};
  index.add(vectors_of(type, 700, dim, 1), one);
  std::vector<Id> own(300);
  Random random(5);
  for (std::size_t i = 0; i < own.size(); ++i)
    own[i] = 700 + static_cast<Id>(3 * i + random.below(3));
  std::reverse(own.begin(), own.begin() + 100);
  index.add(vectors_of(type, 300, dim, 2), own, one);
  for (std::int64_t i = 0; i < 5; ++i)
    index.add(vectors_of(type, 1, dim, 10 + static_cast<std::uint64_t>(i)), one);
}
template <class AnyIndex>
void change_all(AnyIndex& index, ElementType type, std::int64_t dim) {
  index.remove(some_ids(index.ids(), 7));
  const std::vector<Id> replaced = some_ids(index.ids(), 5);
  index.replace(replaced, vectors_of(type, std::ssize(replaced), dim, 3));
  index.add(vectors_of(type, 400, dim, 4));
}

// Searches of both that have to be the same.
void expect_same_answers(const Index& one, const Index& all, AnyMatrixView queries,
                         SearchMethod method, std::initializer_list<std::int64_t> ks,
                         std::initializer_list<int> threads) {
  const std::vector<Id> ids = one.ids();
  std::vector<std::uint8_t> bits(static_cast<std::size_t>((one.next_id() + 7) / 8));
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(37 * i);
  const IdFilter filters[] = {{},
                              IdFilter::of_ids(some_ids(ids, 3)),
                              IdFilter::of_ids(std::vector<Id>{ids[0], ids[ids.size() / 2]}),
                              IdFilter::of_ids({}),
                              IdFilter::of_bits(bits, one.next_id())};
  for (const std::int64_t k : ks)
    for (const int count : threads)
      for (const IdFilter& filter : filters) {
        const SearchOptions options{.threads = count, .filter = filter, .method = method};
        KnnReport wanted, got;
        const Neighbors near = one.search(queries, k, options, &wanted);
        expect_same(all.search(queries, k, options, &got), near);
        EXPECT_EQ(got.rows, one.size());
        EXPECT_EQ(got.k, k);
        EXPECT_EQ(got.queries, queries.rows());
        if (got.allowed_rows >= 0 && wanted.allowed_rows >= 0) {
          EXPECT_EQ(got.allowed_rows, wanted.allowed_rows);
        }
        EXPECT_EQ(got.short_queries, wanted.short_queries);
        EXPECT_EQ(got.promise.promised_recall, wanted.promise.promised_recall);
        EXPECT_EQ(got.promise.recall_argument, wanted.promise.recall_argument);
        EXPECT_EQ(got.promise.certified_queries, wanted.promise.certified_queries);
        if (testing::Test::HasFailure()) {
          ADD_FAILURE() << "k " << k << ", threads " << count << ", filter "
                        << &filter - std::begin(filters);
          return;
        }
      }
}

TEST(ShardedIndex, FlatAnswersAreThoseOfOneIndex) {
  constexpr std::int64_t dim = 13;
  for (const ElementType type : types)
    for (const Metric metric : test::metrics) {
      const AnyMatrix queries = vectors_of(type, 9, dim, 77);
      for (const int shards : {1, 2, 3, 7}) {
        if (test::small() && shards != 3) continue;
        Index one = make_index("Flat", dim, metric);
        Index all =
            make_index("Flat", dim, metric).divided({.shards = shards, .replicas = shards % 3 + 1});
        add_all(one, type, dim), add_all(all, type, dim);
        expect_same_answers(one, all, queries, {}, {1, 10}, {2});
        change_all(one, type, dim), change_all(all, type, dim);
        EXPECT_EQ(all.ids(), one.ids());
        EXPECT_EQ(all.size(), one.size());
        EXPECT_EQ(all.next_id(), one.next_id());
        EXPECT_EQ(all.element_type(), one.element_type());
        expect_same_answers(one, all, queries, {}, {7, 500, one.size() + 3}, {1, 4});
        AnyMatrix a = one.reconstruct(some_ids(one.ids(), 11)),
                  b = all.reconstruct(some_ids(one.ids(), 11));
        EXPECT_EQ(std::memcmp(a.row(0), b.row(0),
                              static_cast<std::size_t>(a.rows() * a.cols() * size_of(a.type()))),
                  0);
        if (HasFailure()) FAIL() << name_of(type) << ' ' << name_of(metric) << ' ' << shards;
      }
    }
}

TEST(ShardedIndex, ReplicasDoNotChangeAnswers) {
  const AnyMatrix base = rows_in_clusters(3000, 24, 1), queries = rows_in_clusters(400, 24, 2);
  Index one = make_index("Flat", 24);
  one.add(base);
  const Neighbors wanted = one.search(queries, 10);
  const RangeNeighbors near = one.range_search(queries, 2);
  const CpuSet cpus = present_cpus();
  const bool grouped = cpus.size() > 1;  // else nothing is divided
  if (grouped)
    ::setenv("KNEAR_CPU_GROUPS",
             (std::to_string(cpus.front()) + ":" + std::to_string(cpus.back())).c_str(), 1);
  for (const int shards : {1, 2, 3})
    for (const int replicas : {1, 2, 3}) {
      Index all = make_index("Flat", 24).divided({.shards = shards, .replicas = replicas});
      all.add(base);
      for (const int threads : {1, 2, 3, 6})
        for (int again = 0; again < 2; ++again) {
          KnnReport report;
          expect_same(all.search(queries, 10, {.threads = threads}, &report), wanted);
          EXPECT_EQ(report.shards.count, shards);
          EXPECT_EQ(report.shards.replicas, grouped ? std::min(threads, replicas) : 1);
          EXPECT_EQ(report.promise.certified_queries, 400);
          EXPECT_GT(report.scan.survivors_per_query, 9);
          expect_same(all.range_search(queries, 2, {.threads = threads}, &report), near);
          EXPECT_EQ(report.queries, 400);
        }
    }
  AnyMatrix wrong = rows_in_clusters(400, 24, 2);
  static_cast<float*>(wrong.row(390))[3] = std::numeric_limits<float>::quiet_NaN();
  Index all = make_index("Flat", 24).divided({.shards = 2, .replicas = 2});
  all.add(base);
  expect_error<InvalidArgument>([&] { all.search(wrong, 10, {.threads = 4}); }, "row 390");
  const Index copies = one.divided({.replicas = 2});
  EXPECT_EQ(copies.size(), 3000);
  expect_same(copies.search(queries, 10, {.threads = 2}), wanted);
  ::unsetenv("KNEAR_CPU_GROUPS");
  KnnReport report;
  expect_same(copies.search(queries, 10, {.threads = 2}, &report), wanted);
  EXPECT_EQ(report.shards.replicas, 1);  // threads of one group share all queries
}

// Distances that float32 cannot tell apart, nearest where the ids are greatest: whoever merges
// what was rounded takes the smallest ids.
TEST(ShardedIndex, MergesBeforeDistancesAreRounded) {
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    const double sign = metric == Metric::ip ? 1 : -1;
    const AnyMatrix base = make(ElementType::f64, 60, 3, [&](std::int64_t i, std::int64_t) {
      return 1 + sign * 1e-12 * static_cast<double>(i);
    });
    const AnyMatrix query = make(ElementType::f64, 1, 3, [&](std::int64_t, std::int64_t) {
      return metric == Metric::ip ? 1.0 : 0.0;
    });
    Index one = make_index("Flat", 3, metric);
    Index all = make_index("Flat", 3, metric).divided({.shards = 3});
    one.add(base), all.add(base);
    // In one group of processors, and in two.
    const CpuSet cpus = present_cpus();
    if (cpus.size() > 1) {
      const std::string two = std::to_string(cpus.front()) + ":" + std::to_string(cpus.back());
      ::setenv("KNEAR_CPU_GROUPS", two.c_str(), 1);
      expect_same(all.search(query, 50, {.threads = 2}), one.search(query, 50));
      ::unsetenv("KNEAR_CPU_GROUPS");
    }
    const Neighbors near = all.search(query, 50);
    expect_same(near, one.search(query, 50));
    EXPECT_EQ(near.ids.row(0)[0], 59);
    EXPECT_EQ(near.ids.row(0)[49], 10);
    EXPECT_EQ(near.distances.row(0)[0], near.distances.row(0)[49]);
  }
}

// Equal rows in all shards, under ids that ascend in none of them with the order of shards.
TEST(ShardedIndex, TiesGoToTheSmallerId) {
  const AnyMatrix base =
      make(ElementType::u8, 600, 4, [](std::int64_t, std::int64_t) { return 3.0; });
  std::vector<Id> ids(600);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>(i * 7 % 600);
  Index all = make_index("Flat", 4).divided({.shards = 3});
  all.add(base, ids);
  const AnyMatrix query =
      make(ElementType::u8, 1, 4, [](std::int64_t, std::int64_t) { return 1.0; });
  for (const std::int64_t k : {1, 5, 250, 600}) {
    const Neighbors near = all.search(query, k);
    for (std::int64_t j = 0; j < k; ++j) ASSERT_EQ(near.ids.row(0)[j], j) << "k " << k;
  }
}

TEST(ShardedIndex, ListsAndCodesAnswerAsOneIndexWithTheSameProbes) {
  const AnyMatrix vectors = rows_in_clusters(6000, 16, 1), queries = rows_in_clusters(120, 16, 2);
  for (const std::string kind :
       {"IVF32,Flat", "PQ4", "SQ8", "IVF32,PQ4", "IVF32,PQ8x4", "IVF32,SQ8", "OPQ4_8,IVF32,PQ4",
        "PCA8,Flat", "SQfp16", "IVF32,SQbf16"})
    for (const Metric metric : test::metrics) {
      Index one = make_index(kind, 16, metric);
      one.train(vectors);
      for (const int shards : {2, 3}) {
        Index trained = make_index(kind, 16, metric);
        trained.train(vectors);
        Index all = trained.divided({.shards = shards, .replicas = 2});
        if (one.size() == 0) add_all(one, ElementType::f32, 16);
        add_all(all, ElementType::f32, 16);
        for (const std::int64_t probes : {1, 5, 32}) {
          const SearchMethod method{.probes = one.lists() > 0 ? probes : 0};
          expect_same_answers(one, all, queries, method, {1, 10, 600}, {2, 4});
          const double radius = metric == Metric::ip ? 0.5 : 0.7;
          if (metric != Metric::cosine)
            expect_same(all.range_search(queries, radius, {.method = method}),
                        one.range_search(queries, radius, {.method = method}));
          if (HasFailure()) FAIL() << kind << ' ' << name_of(metric) << ' ' << shards;
        }
        EXPECT_EQ(all.list_sizes(), one.list_sizes());
        const Matrix<float> ours = all.centroids(), theirs = one.centroids();
        EXPECT_TRUE(same_bits(ours, theirs));
      }
    }
}

// Rows of a type of which some are copies of others, so that keys tie between shards.
AnyMatrix rows_with_copies(ElementType type, std::int64_t rows, std::int64_t dim,
                           std::uint64_t seed) {
  const Matrix<float> from = clustered(rows, dim, seed, {.count = 20, .spread = 0.3});
  return make(type, rows, dim, [&](std::int64_t i, std::int64_t j) {
    const double x = from.row(i % 3 == 0 ? i / 2 : i)[j];
    return type == ElementType::u8 ? std::round(80 * (x + 1)) : x;
  });
}

// Searched as segments of one index, whose lists are joined: the answer is that of a plain loop.
TEST(ShardedIndex, ListsOfAllShardsAnswerAsAPlainLoop) {
  constexpr std::int64_t n = 2400, dim = 12;
  for (const ElementType type : {ElementType::f32, ElementType::u8, ElementType::f64})
    for (const Metric metric : test::metrics) {
      const AnyMatrix base = rows_with_copies(type, n, dim, 1),
                      queries = rows_with_copies(type, 90, dim, 2);
      OpenIndex trained(make_index("IVF24,Flat", dim, metric));
      trained.train(base);
      for (const int shards : {1, 3}) {
        IndexModel model(trained);
        Index all = trained.divided({.shards = shards});
        std::vector<Id> ids;
        for (std::int64_t i = 0; i < n; ++i) ids.push_back(5 + 7 * i % n);  // to and fro
        const auto put = [&](std::int64_t begin, std::int64_t end) {
          const auto some = std::span(ids).subspan(static_cast<std::size_t>(begin),
                                                   static_cast<std::size_t>(end - begin));
          all.add(base.view().rows(begin, end), some);
          for (std::int64_t i = begin; i < end; ++i)
            model.put(ids[static_cast<std::size_t>(i)], base, i);
        };
        const auto check = [&] {
          const std::vector<Id> now = all.ids(), some = some_ids(now, 3);
          for (const bool filtered : {false, true})
            for (const std::int64_t count : {90, 1})
              for (const int threads : {1, 3})
                for (const std::int64_t k : {1, 10, 70}) {
                  const SearchOptions options{
                      .threads = threads,
                      .filter = filtered ? IdFilter::of_ids(some) : IdFilter(),
                      .method = {.probes = 5}};
                  const Neighbors near = all.search(queries.view().rows(0, count), k, options);
                  for (std::int64_t q = 0; q < count; q += 11) {
                    const auto expected = model.search(queries, q, k, {.probes = 5}, [&](Id id) {
                      return !filtered || std::binary_search(some.begin(), some.end(), id);
                    });
                    for (std::int64_t j = 0; j < k; ++j)
                      ASSERT_EQ(near.ids.row(q)[j],
                                j < std::ssize(expected)
                                    ? expected[static_cast<std::size_t>(j)].second
                                    : no_id)
                          << name_of(type) << ' ' << name_of(metric) << ", " << shards
                          << " shards, query " << q << " of " << count << ", place " << j << " of "
                          << k << (filtered ? ", filtered" : "");
                  }
                }
        };
        put(0, 1700);
        check();
        put(1700, 2300), put(2300, n);  // more segments, the last too small to be packed
        check();
        const std::vector<Id> gone = some_ids(ids, 9);
        all.remove(gone);
        for (const Id id : gone) model.rows.erase(id);
        check();
        if (testing::Test::HasFailure()) return;
      }
    }
}

// What joining is for: nothing is measured that one index would not measure. So it is after files.
using ListsOfShards = io::FileTest;
TEST_F(ListsOfShards, AreScannedAsOne) {
  // Rows of two columns are coded around the centroids of their lists.
  for (const std::int64_t dim : {16, 2})
    for (const Metric metric : test::metrics) {
      const AnyMatrix vectors = rows_in_clusters(20000, dim, 1),
                      queries = rows_in_clusters(300, dim, 2);
      Index one = make_index("IVF32,Flat", dim, metric);
      one.train(vectors);
      Index shards = one.divided({.shards = 3});
      one.add(vectors);
      shards.add(vectors);
      shards.save(path("shards.knear"));
      Index loaded = Index::load(path("shards.knear"));
      const auto check = [&](const IdFilter& filter, const std::string& what) {
        const SearchOptions options{.filter = filter, .method = {.probes = 8}};
        KnnReport alone, report;
        const Neighbors near = one.search(queries, 10, options, &alone);
        for (const Index* each : {&std::as_const(shards), &std::as_const(loaded)}) {
          expect_same(each->search(queries, 10, options, &report), near);
          EXPECT_LT(report.scan.survivors_per_query, 1.1 * alone.scan.survivors_per_query) << what;
        }
      };
      check({}, "all rows");
      // A filter, or rows that are gone, that leave nearly all.
      std::vector<Id> most, gone;
      for (Id id = 0; id < 20000; ++id) (id % 8 == 1 ? gone : most).push_back(id);
      check(IdFilter::of_ids(most), "a filter");
      one.remove(gone), shards.remove(gone), loaded.remove(gone);
      check({}, "removed rows");
    }
}

TEST(ShardedIndex, MergesWhatOtherIndexesHold) {
  const AnyMatrix vectors = rows_in_clusters(3000, 16, 1), queries = rows_in_clusters(50, 16, 2);
  const AnyMatrixView rows = vectors;
  for (const std::string kind : {"Flat", "IVF16,Flat", "IVF16,PQ4"})
    for (const MergeIds ids : {MergeIds::keep, MergeIds::shifted}) {
      Index one = make_index(kind, 16), more = make_index(kind, 16), few = make_index(kind, 16);
      one.train(vectors), more.train(vectors), few.train(vectors);
      Index all = one.divided({.shards = 3}), other = one.divided({.shards = 4});
      const Id first = ids == MergeIds::keep ? 1000 : 0;
      std::vector<Id> own(1500), last(100);
      std::iota(own.begin(), own.end(), first), std::iota(last.begin(), last.end(), 3 * first);
      one.add(rows.rows(0, 1000)), all.add(rows.rows(0, 1000));
      more.add(rows.rows(1000, 2500), own), other.add(rows.rows(1000, 2500), own);
      few.add(rows.rows(2900, 3000), last);
      one.merge(more, ids), all.merge(other, ids);
      one.merge(few, ids), all.merge(few, ids);
      EXPECT_EQ(all.ids(), one.ids()) << kind;
      EXPECT_EQ(all.next_id(), one.next_id());
      const std::vector<std::int64_t> sizes = all.shard_sizes();
      EXPECT_LT(*std::max_element(sizes.begin(), sizes.end()), 1200);
      const SearchOptions options{.method = {.probes = one.lists() > 0 ? 5 : 0}};
      expect_same(all.search(queries, 10, options), one.search(queries, 10, options));
      if (one.lists() > 0) {
        const std::vector<Id> some{0, 17, 999, 1000, 2499};
        EXPECT_EQ(all.lists_of(some), one.lists_of(some));
      }
      EXPECT_EQ(other.size(), 1500);
    }
  // An id that both hold is refused as a whole, in whatever shards it is.
  Index all = make_index("Flat", 16).divided({.shards = 2}),
        other = make_index("Flat", 16).divided({.shards = 3});
  std::vector<Id> own(30);
  std::iota(own.begin(), own.end(), 9);
  all.add(rows.rows(0, 10)), other.add(rows.rows(0, 30), own);
  expect_error<InvalidArgument>([&] { all.merge(other); }, "holds id 9");
  EXPECT_EQ(all.size(), 10);
  EXPECT_EQ(all.version(), 1);
  expect_error<ShapeMismatch>([&] { all.merge(make_index("Flat", 17)); }, "17 columns");
  expect_error<InvalidArgument>([&] { all.lists_of(own); }, "no inverted lists");
  for (MergeIds ids : {MergeIds::keep, MergeIds::shifted})
    expect_error<InvalidArgument>([&] { all.merge(all, ids); }, "other is the index itself");
  EXPECT_EQ(all.size(), 10);
  EXPECT_EQ(all.next_id(), 10);
}

TEST(ShardedIndex, TrainsOnceForAllShards) {
  const AnyMatrix vectors = rows_in_clusters(5000, 16, 1), queries = rows_in_clusters(60, 16, 2);
  Index all = make_index("IVF16,PQ4", 16).divided({.shards = 3});
  EXPECT_FALSE(all.is_trained());
  expect_error<InvalidArgument>([&] { all.add(vectors); }, "not trained");
  all.train(vectors);
  all.add(vectors);
  Index one = make_index("IVF16,PQ4", 16);
  one.train(vectors), one.add(vectors);
  const SearchOptions options{.method = {.probes = 4}};
  expect_same(all.search(queries, 10, options), one.search(queries, 10, options));
  // What shards share is counted once: centroids alone take more than these few rows.
  const auto bytes_of = [&](int shards, std::int64_t rows) {
    Index index = make_index("IVF1024,Flat", 16).divided({.shards = shards});
    index.train(vectors);
    if (rows > 0) index.add(AnyMatrixView(vectors).rows(0, rows));
    return index.memory_bytes();
  };
  EXPECT_EQ(bytes_of(3, 0), bytes_of(1, 0));
  EXPECT_GE(bytes_of(3, 0), 1024 * 16 * 4);
  EXPECT_LT(bytes_of(3, 30) - bytes_of(1, 30), 1024 * 16 * 4);
  expect_error<InvalidArgument>([&] { all.train(vectors); }, "before any are added");
}

TEST(ShardedIndex, CertificatesAreThoseOfAllShards) {
  const AnyMatrix vectors = rows_in_clusters(6000, 16, 1), queries = rows_in_clusters(300, 16, 2);
  Index all = make_index("IVF32,Flat", 16).divided({.shards = 3, .replicas = 2});
  all.train(vectors), all.add(vectors);
  Index flat = make_index("Flat", 16);
  flat.add(vectors);
  const Neighbors truth = flat.search(queries, 5);
  KnnReport report;
  const Neighbors near = all.search(
      queries, 5, {.threads = 2, .method = {.probes = 3, .lists = {.certify = true}}}, &report);
  EXPECT_EQ(report.promise.certified_queries + std::ssize(report.promise.uncertified), 300);
  EXPECT_TRUE(std::is_sorted(report.promise.uncertified.begin(), report.promise.uncertified.end()));
  EXPECT_GT(report.promise.certified_queries, 0);
  EXPECT_FALSE(report.promise.uncertified.empty());
  EXPECT_EQ(report.lists.count, 32);
  EXPECT_NEAR(report.lists.probes, 3, 1e-9);
  for (std::int64_t q = 0; q < 300; ++q)
    if (!std::binary_search(report.promise.uncertified.begin(), report.promise.uncertified.end(),
                            q)) {
      for (std::int64_t j = 0; j < 5; ++j) ASSERT_EQ(near.ids.row(q)[j], truth.ids.row(q)[j]) << q;
    }
  expect_same(all.search(queries, 5, {.method = {.recall = 1}}, &report), truth);
  EXPECT_EQ(report.promise.certified_queries, 300);
  EXPECT_EQ(report.promise.recall_argument, "exact");
}

// Queries of lists are divided between replicas in another order than they came in.
TEST(ShardedIndex, ReplicasOfListsAnswerEachQuery) {
  const CpuSet cpus = present_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "one processor is one group";
  const std::string two = std::to_string(cpus.front()) + ":" + std::to_string(cpus.back());
  const AnyMatrix vectors = rows_in_clusters(6000, 16, 1), queries = rows_in_clusters(300, 16, 2);
  for (const char* factory : {"IVF32,Flat", "IVF32,PQ4,RFlat"}) {
    Index one = make_index(factory, 16);
    one.train(vectors), one.add(vectors);
    const bool certify = !one.has_codes();
    const SearchOptions options{.threads = 2,
                                .method = {.probes = 3, .lists = {.certify = certify}}};
    KnnReport wanted;
    const Neighbors near = one.search(queries, 5, options, &wanted);
    const SearchOptions ranged{.threads = 2, .method = {.probes = 3}};
    const RangeNeighbors within = one.range_search(queries, 1, ranged);
    // Each of several shards refines as many codes as all together would.
    for (int shards = 1; shards <= (certify ? 2 : 1); ++shards) {
      Index all = make_index(factory, 16).divided({.shards = shards, .replicas = 2});
      all.train(vectors), all.add(vectors);
      ::setenv("KNEAR_CPU_GROUPS", two.c_str(), 1);
      KnnReport report;
      expect_same(all.search(queries, 5, options, &report), near);
      EXPECT_EQ(report.shards.replicas, 2);
      if (shards == 1 && certify) {
        EXPECT_FALSE(report.promise.uncertified.empty());
        EXPECT_EQ(report.promise.uncertified, wanted.promise.uncertified);
      }
      expect_same(all.range_search(queries, 1, ranged, &report), within);
      EXPECT_EQ(report.shards.replicas, 2);
      SearchOptions limited = options;
      limited.memory = 200 << 20;
      expect_same(all.search(queries, 5, limited, &report), near);
      EXPECT_EQ(report.shards.replicas, 2);
      ::unsetenv("KNEAR_CPU_GROUPS");
    }
  }
}

double recall_of(const Neighbors& near, const Neighbors& truth) {
  std::int64_t found = 0;
  for (std::int64_t q = 0; q < truth.ids.rows(); ++q)
    for (std::int64_t j = 0; j < truth.ids.cols(); ++j)
      found += near.distances.row(q)[j] <= truth.distances.row(q)[truth.ids.cols() - 1];
  return static_cast<double>(found) / static_cast<double>(truth.ids.rows() * truth.ids.cols());
}

// All neighbours of a query are in one shard, which is the worst that a division can do.
TEST(ShardedIndex, PartialReduceKeepsItsPromiseAfterTheMerge) {
  constexpr std::int64_t rows = 60000, dim = 8, k = 20;
  Random random(3);
  const AnyMatrix base = make(ElementType::f32, rows, dim, [&](std::int64_t i, std::int64_t) {
    return random.uniform() + (i < rows / 3 ? 0 : 40);
  });
  const AnyMatrix queries = make(ElementType::f32, 300, dim,
                                 [&](std::int64_t, std::int64_t) { return random.uniform(); });
  Index all = make_index("Flat", dim).divided({.shards = 3});
  all.add(base);
  const Neighbors truth = all.search(queries, k);
  for (const double recall : {0.5, 0.9, 0.99}) {
    std::int64_t kept = 0;
    for (const std::int64_t logical : {std::int64_t{0}, rows, 4 * rows}) {
      KnnReport report;
      const Neighbors near = all.search(queries, k,
                                        {.method = {.kind = Method::partial_reduce,
                                                    .recall = recall,
                                                    .partial_reduce = {.logical_rows = logical}}},
                                        &report);
      EXPECT_EQ(report.promise.promised_recall, recall);
      EXPECT_EQ(report.method, "partial-reduce");
      // Of a base that is a quarter of the logical rows the promise is for the answer merged with
      // the other quarters, in which most of the k are.
      if (logical <= rows) {
        EXPECT_GE(recall_of(near, truth), recall);
      }
      EXPECT_GT(report.partial_reduce.bins, 0);
      // The base is all that there is: that it is random helps nothing. As a quarter it does.
      if (logical == 0) kept = report.partial_reduce.kept_per_bin;
      if (logical == rows) {
        EXPECT_EQ(report.partial_reduce.kept_per_bin, kept);
      } else if (logical > rows) {
        EXPECT_LT(report.partial_reduce.kept_per_bin, kept);
      }
    }
  }
  KnnReport report;
  expect_same(all.search(queries, k, {.method = {.kind = Method::partial_reduce}}, &report), truth);
  EXPECT_EQ(report.promise.certified_queries, 300);
  const auto search = [&](SearchMethod method) { all.search(queries, k, {.method = method}); };
  expect_error<InvalidArgument>(
      [&] {
        search({.kind = Method::partial_reduce, .partial_reduce = {.logical_rows = rows - 1}});
      },
      "logical_rows must be between the 60000 rows");
  expect_error<InvalidArgument>(
      [&] { search({.kind = Method::partial_reduce, .partial_reduce = {.aggregate = false}}); },
      "aggregate is off");
}

TEST(ShardedIndex, RowsAreSpreadEvenly) {
  Index all = make_index("Flat", 3).divided({.shards = 3});
  using Sizes = std::vector<std::int64_t>;
  all.add(vectors_of(ElementType::f32, 10, 3, 1));
  EXPECT_EQ(all.shard_sizes(), (Sizes{4, 3, 3}));
  all.add(vectors_of(ElementType::f32, 1, 3, 1));
  EXPECT_EQ(all.shard_sizes(), (Sizes{4, 4, 3}));
  all.remove(std::vector<Id>{0, 1, 2, 3});  // all of the first shard
  EXPECT_EQ(all.shard_sizes(), (Sizes{0, 4, 3}));
  all.add(vectors_of(ElementType::f32, 2, 3, 1));
  EXPECT_EQ(all.shard_sizes(), (Sizes{2, 4, 3}));
  all.add(vectors_of(ElementType::f32, 3, 3, 1));
  EXPECT_EQ(all.shard_sizes(), (Sizes{4, 4, 4}));
  all.add(vectors_of(ElementType::f32, 100, 3, 1));
  EXPECT_EQ(all.shard_sizes(), (Sizes{38, 37, 37}));
  EXPECT_EQ(all.next_id(), 116 + 1 - 1);
}

TEST(ShardedIndex, FewerRowsThanShards) {
  Index all = make_index("Flat", 3).divided({.shards = 7, .replicas = 2});
  Index one = make_index("Flat", 3);
  const AnyMatrix queries = vectors_of(ElementType::f32, 5, 3, 9);
  expect_same(all.search(queries, 4), one.search(queries, 4));
  const AnyMatrix two = vectors_of(ElementType::f32, 2, 3, 1);
  all.add(two), one.add(two);
  expect_same(all.search(queries, 4), one.search(queries, 4));
  EXPECT_EQ(all.search(AnyMatrixView(two).rows(0, 0), 4).ids.rows(), 0);
  // The first rows decide the type, in the shards too that had none of them.
  all.add(vectors_of(ElementType::u8, 20, 3, 1)), one.add(vectors_of(ElementType::u8, 20, 3, 1));
  EXPECT_EQ(all.element_type(), ElementType::f32);
  expect_same(all.search(queries, 30), one.search(queries, 30));
}

// Whatever goes wrong in one shard, no shard has changed, and the row is named as the caller
// counts.
TEST(ShardedIndex, ChangesAreWholeOrNotAtAll) {
  Index all = make_index("Flat", 4).divided({.shards = 3});
  all.add(vectors_of(ElementType::u8, 900, 4, 1));
  const AnyMatrix queries = vectors_of(ElementType::u8, 20, 4, 2);
  const Neighbors before = all.search(queries, 30);
  const std::int64_t version = all.version();
  const auto unchanged = [&] {
    EXPECT_EQ(all.version(), version);
    EXPECT_EQ(all.size(), 900);
    EXPECT_EQ(all.next_id(), 900);
    expect_same(all.search(queries, 30), before);
  };
  AnyMatrix more(ElementType::f32, 300, 4);
  std::fill_n(static_cast<float*>(more.row(0)), 1200, 1.0f);
  static_cast<float*>(more.row(250))[1] = 0.5f;
  expect_error<InvalidArgument>([&] { all.add(more); }, "row 250");
  unchanged();
  static_cast<float*>(more.row(250))[1] = std::numeric_limits<float>::quiet_NaN();
  expect_error<InvalidArgument>([&] { all.add(more); }, "row 250");
  unchanged();
  std::vector<Id> ids(300);
  std::iota(ids.begin(), ids.end(), 100);
  expect_error<InvalidArgument>([&] { all.replace(ids, more); }, "row 250");
  static_cast<float*>(more.row(250))[1] = 0.5f;
  expect_error<InvalidArgument>([&] { all.replace(ids, more); }, "row 250");
  unchanged();
  ids[299] = 900;
  expect_error<InvalidArgument>([&] { all.remove(ids); }, "900 in place 299");
  expect_error<InvalidArgument>([&] { all.add(more, ids); }, "100 in place 0");
  ids[299] = ids[3];
  expect_error<InvalidArgument>([&] { all.remove(ids); }, "twice");
  unchanged();
  // Stopped at each report, so in each shard.
  std::int64_t stops = 0;
  for (int after = 1;; ++after) {
    int calls = 0;
    const AnyMatrix many = vectors_of(ElementType::u8, 3000, 4, 3);
    try {
      all.add(many, {.threads = 1,
                     .progress = [&](std::string_view, double) { return ++calls < after; }});
      break;
    } catch (const Cancelled&) {
      ++stops;
      unchanged();
    }
  }
  EXPECT_GE(stops, 3);
  EXPECT_EQ(all.size(), 3900);
  expect_error<InvalidArgument>(
      [&] {
        all.search(queries, 1, {.filter = IdFilter::of_ids(std::vector<Id>{5, 9999})});
      },
      "filter holds id 9999");
  const std::vector<std::uint8_t> bits(1000);
  expect_error<ShapeMismatch>(
      [&] { all.search(queries, 1, {.filter = IdFilter::of_bits(bits, 8000)}); },
      "ids below 8000, but those of the index are below 3900");
}

TEST(ShardedIndex, RefusesWhatCannotBe) {
  const Index flat = make_index("Flat", 4);
  expect_error<InvalidArgument>([&] { flat.divided({.shards = 0}); },
                                "shards must be between 1 and 4096, but is 0");
  expect_error<InvalidArgument>([&] { flat.divided({.replicas = 5000}); },
                                "replicas must be between 1 and 4096, but is 5000");
  Index rows = make_index("Flat", 4);
  rows.add(vectors_of(ElementType::f32, 3, 4, 1));
  expect_error<InvalidArgument>([&] { rows.divided({.shards = 2}); }, "has 3 rows");
  Index all = flat.divided({.shards = 2});
  all.add(vectors_of(ElementType::f32, 3, 4, 1));
  const AnyMatrix queries = vectors_of(ElementType::f32, 2, 4, 1);
  expect_error<InvalidArgument>([&] { all.search(queries, 0); }, "k must be at least 1");
  expect_error<ShapeMismatch>([&] { all.search(vectors_of(ElementType::f32, 2, 5, 1), 1); },
                              "5 columns, index has 4");
  expect_error<InvalidArgument>([&] { all.search(queries, 1, {.method = {.probes = 3}}); },
                                "no inverted lists");
  expect_error<InvalidArgument>(
      [&] { all.range_search(queries, std::numeric_limits<double>::quiet_NaN()); }, "radius");
}

// Two states of all rows, of which a search may see either but no mixture.
TEST(ShardedIndex, ASearchSeesOneStateOfAllShards) {
  constexpr std::int64_t rows = 300;
  const auto rows_at = [](double x) {
    return make(ElementType::f32, rows, 4, [x](std::int64_t, std::int64_t) { return x; });
  };
  const AnyMatrix near = rows_at(1), far = rows_at(2);
  const AnyMatrix query =
      make(ElementType::f32, 1, 4, [](std::int64_t, std::int64_t) { return 0.0; });
  Index all = make_index("Flat", 4).divided({.shards = 3});
  all.add(near);
  std::vector<Id> ids(rows);
  std::iota(ids.begin(), ids.end(), 0);
  std::atomic<bool> done = false;
  std::atomic<int> mixed = 0, searches = 0;
  std::thread reader([&] {
    while (!done) {
      const Neighbors found = all.search(query, rows, {.threads = 1});
      mixed += found.distances.row(0)[0] != found.distances.row(0)[rows - 1];
      ++searches;
    }
  });
  for (int i = 0; i < 100 || searches < 20; ++i)
    all.replace(ids, i % 2 ? near : far, {.threads = 1});
  done = true;
  reader.join();
  EXPECT_EQ(mixed, 0);
}

// The index that shards were made like goes its own way.
TEST(ShardedIndex, SharesNothingThatChanges) {
  Index one = make_index("Flat", 4);
  one.add(vectors_of(ElementType::f32, 500, 4, 1));
  Index all = one.divided({});
  const AnyMatrix queries = vectors_of(ElementType::f32, 20, 4, 2);
  const Neighbors before = one.search(queries, 10);
  one.add(vectors_of(ElementType::f32, 500, 4, 3));
  expect_same(all.search(queries, 10), before);
  const Neighbors after = one.search(queries, 10);
  all.add(vectors_of(ElementType::f32, 500, 4, 5));
  all.remove(std::vector<Id>{0, 1, 2});
  expect_same(one.search(queries, 10), after);
}

TEST(ShardedIndex, RecallIsTheLeastPromise) {
  const AnyMatrix vectors = rows_in_clusters(12000, 16, 1), queries = rows_in_clusters(500, 16, 2);
  Index all = make_index("IVF64,Flat", 16).divided({.shards = 2, .replicas = 2});
  all.train(vectors), all.add(vectors);
  const Neighbors truth = all.search(queries, 10, {.method = {.recall = 1}});
  const std::vector<OperatingPoint> points = all.tune(10);
  ASSERT_FALSE(points.empty());
  for (std::size_t i = 1; i < points.size(); ++i)
    EXPECT_GT(points[i].promised_recall, points[i - 1].promised_recall);
  KnnReport report;
  const Neighbors near = all.search(queries, 10, {.method = {.recall = 0.9}}, &report);
  EXPECT_EQ(report.promise.recall_argument, "calibrated");
  EXPECT_GE(report.promise.expected_recall, 0.9);
  EXPECT_GT(report.promise.promised_recall, 0.88);  // of 500 queries less than of 1,000
  EXPECT_LT(report.promise.promised_recall, 0.9);
  EXPECT_EQ(report.shards.replicas, 1);
  EXPECT_GE(recall_of(near, truth), 0.9);
}

TEST(ShardedIndex, GraphsFindWhatIsNear) {
  const AnyMatrix vectors = rows_in_clusters(6000, 16, 1), queries = rows_in_clusters(200, 16, 2);
  Index all = make_index("Graph16", 16).divided({.shards = 2, .replicas = 2});
  all.add(vectors);
  EXPECT_EQ(all.optimize(), 6000);
  Index flat = make_index("Flat", 16);
  flat.add(vectors);
  KnnReport report;
  const Neighbors near = all.search(queries, 10, {.threads = 2, .method = {.ef = 64}}, &report);
  EXPECT_EQ(report.method, "graph");
  EXPECT_GE(recall_of(near, flat.search(queries, 10)), 0.95);
  for (const int threads : {1, 3, 4})
    expect_same(all.search(queries, 10, {.threads = threads, .method = {.ef = 64}}), near);
}

TEST(ShardedIndex, ChangesThatKeepAnswers) {
  const AnyMatrix vectors = rows_in_clusters(5000, 16, 1), queries = rows_in_clusters(50, 16, 2);
  Index all = make_index("Flat", 16).divided({.shards = 2});
  all.reserve(5000);
  for (std::int64_t i = 0; i < 5000; i += 500) all.add(AnyMatrixView(vectors).rows(i, i + 500));
  all.remove(some_ids(all.ids(), 9));
  const Neighbors before = all.search(queries, 10);
  all.compact();
  expect_same(all.search(queries, 10), before);
  all.optimize();
  expect_same(all.search(queries, 10), before);
  expect_error<InvalidArgument>(
      [&] {
        all.add(vectors, {.progress = [&](std::string_view, double) {
                  all.compact();
                  return true;
                }});
      },
      "progress callback");
}

// Each part on processors of its own: the same answers, errors and progress, and threads that may
// go anywhere afterwards.
TEST(ShardedIndex, PartsStayOnGroupsOfProcessors) {
  const CpuSet all_cpus = cpu_groups().front();
  if (all_cpus.size() < 2) GTEST_SKIP() << "one processor is no two groups";
  const std::string groups =
      std::to_string(all_cpus.front()) + ":" + std::to_string(all_cpus.back());
  ::setenv("KNEAR_CPU_GROUPS", groups.c_str(), 1);
  const AnyMatrix base = rows_in_clusters(3000, 24, 1), queries = rows_in_clusters(400, 24, 2);
  Index one = make_index("Flat", 24);
  one.add(base);
  const Neighbors wanted = one.search(queries, 10);
  for (const auto& [shards, replicas] : {std::pair(2, 1), std::pair(1, 2), std::pair(3, 2)}) {
    Index all = make_index("Flat", 24).divided({.shards = shards, .replicas = replicas});
    all.add(base, {.threads = 2});
    for (const int threads : {2, 4, 6}) {
      bool searched = false;
      const Progress searches = [&](std::string_view, double) {
        if (!std::exchange(searched, true)) expect_same(all.search(queries, 10), wanted);
        return true;
      };
      expect_same(all.search(queries, 10, {.threads = threads, .progress = searches}), wanted);
      EXPECT_TRUE(searched);
      EXPECT_EQ(present_cpus(), all_cpus);
    }
    AnyMatrix wrong = rows_in_clusters(400, 24, 2);
    static_cast<float*>(wrong.row(390))[3] = std::numeric_limits<float>::quiet_NaN();
    expect_error<InvalidArgument>([&] { all.search(wrong, 10, {.threads = 4}); }, "row 390");
    expect_error<InvalidArgument>([&] { all.add(wrong); }, "row 390");
    EXPECT_EQ(present_cpus(), all_cpus);
  }
  ::setenv("KNEAR_CPU_GROUPS", "0;1", 1);
  Index all = make_index("Flat", 24).divided({.shards = 2});
  expect_error<InvalidArgument>([&] { all.add(base); }, "KNEAR_CPU_GROUPS is '0;1'");
  ::unsetenv("KNEAR_CPU_GROUPS");
}

using RecallOfShards = io::FileTest;

// Codes of one shard compete with those of the others, so that recall is measured of all shards as
// one index: the same promise, the same lists and the same answers.
TEST_F(RecallOfShards, IsThatOfOneIndex) {
  const AnyMatrix vectors = rows_in_clusters(6000, 16, 1), queries = rows_in_clusters(120, 16, 2);
  for (const std::string kind :
       {"PQ4", "IVF32,PQ4", "IVF32,PQ4,Refine(SQ8)", "IVF32,PQ4,RFlat", "IVF32,Flat"}) {
    SCOPED_TRACE(kind);
    Index all = make_index(kind, 16).divided({.shards = 3});
    Index one = make_index(kind, 16);
    all.train(vectors), one.train(vectors);
    all.add(vectors), one.add(vectors);
    const auto expect_alike = [&](const Index& shards, double recall) {
      const SearchOptions asked{.method = {.recall = recall}};
      KnnReport got, wanted;
      expect_same(shards.search(queries, 5, asked, &got), one.search(queries, 5, asked, &wanted));
      EXPECT_EQ(got.promise.promised_recall, wanted.promise.promised_recall);
      EXPECT_EQ(got.promise.expected_recall, wanted.promise.expected_recall);
      EXPECT_EQ(got.promise.recall_argument, "calibrated");
      EXPECT_EQ(got.lists.probes, wanted.lists.probes);
      EXPECT_EQ(got.shards.count, 3);
    };
    expect_alike(all, 0.3);
    const std::vector<OperatingPoint> points = all.tune(5), wanted = one.tune(5);
    ASSERT_EQ(points.size(), wanted.size());
    for (std::size_t i = 0; i < points.size(); ++i)
      EXPECT_EQ(points[i].promised_recall, wanted[i].promised_recall);
    // What was found out is in the files: nothing is calibrated first.
    all.save(path("shards.knear"));
    const Index loaded = Index::load(path("shards.knear"));
    KnnReport report;
    loaded.search(queries, 5, {.method = {.recall = 0.3}}, &report);
    EXPECT_EQ(report.note.find("calibrated first"), std::string::npos) << report.note;
    expect_alike(loaded, 0.3);
  }
}

// With the vectors from which codes were made, after changes, and once a shard is missing.
TEST_F(RecallOfShards, OfCodesIsTunedByVectors) {
  const AnyMatrix vectors = rows_in_clusters(6000, 16, 1), queries = rows_in_clusters(120, 16, 2);
  Index all = make_index("IVF32,PQ8", 16).divided({.shards = 3});
  Index one = make_index("IVF32,PQ8", 16);
  all.train(vectors, {.hold_out = false}), one.train(vectors, {.hold_out = false});
  all.add(vectors), one.add(vectors);
  const SearchOptions asked{.method = {.recall = 0.4}};
  expect_error<InvalidArgument>([&] { all.search(queries, 5, asked); }, "recall of 5 neighbours");
  const std::vector<OperatingPoint> points = all.tune(5, {}, vectors, {}),
                                    wanted = one.tune(5, {}, vectors, {});
  ASSERT_EQ(points.size(), wanted.size());
  for (std::size_t i = 0; i < points.size(); ++i)
    EXPECT_EQ(points[i].promised_recall, wanted[i].promised_recall);
  expect_same(all.search(queries, 5, asked), one.search(queries, 5, asked));
  // What is known of neighbours follows changes of any shard: a new calibration is that of one.
  const std::vector<Id> gone = some_ids(all.ids(), 11), replaced = some_ids(all.ids(), 13);
  std::vector<Id> others;
  std::set_difference(replaced.begin(), replaced.end(), gone.begin(), gone.end(),
                      std::back_inserter(others));
  const AnyMatrix more = rows_in_clusters(700, 16, 5),
                  instead = rows_in_clusters(std::ssize(others), 16, 6);
  const auto change = [&](auto& index) {
    index.remove(gone), index.replace(others, instead), index.add(more);
  };
  change(all), change(one);
  const std::vector<OperatingPoint> now = all.tune(7), then = one.tune(7);
  ASSERT_EQ(now.size(), then.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    EXPECT_EQ(now[i].promised_recall, then[i].promised_recall);
    EXPECT_EQ(now[i].rows, then[i].rows);
  }
  expect_same(all.search(queries, 7, asked), one.search(queries, 7, asked));
  all.save(path("shards.knear"));
  const std::vector<std::string> names = Index::load(path("shards.knear")).shard_names();
  ASSERT_TRUE(std::filesystem::remove(path(names.at(1))));
  const Index part = Index::load(path("shards.knear"), {.allow_partial = true});
  expect_error<InvalidArgument>([&] { part.search(queries, 5, asked); }, "some are missing");
  EXPECT_NO_THROW(part.search(queries, 5, {.method = {.probes = 3}}));
}

TEST(ReplicaSpeeds, DivideByMeasuredSpeed) {
  detail::ReplicaSpeeds speeds(3);
  using Begins = std::vector<std::int64_t>;
  EXPECT_EQ(speeds.split(300, 3), (Begins{0, 100, 200, 300}));
  speeds.note({0, 0, 100, 200}, {0, 1, 1});  // one of them had nothing to do
  EXPECT_EQ(speeds.split(300, 3), (Begins{0, 100, 200, 300}));
  speeds.note({0, 100, 200, 300}, {1, 1, 0.5});
  EXPECT_EQ(speeds.split(400, 3), (Begins{0, 100, 200, 400}));
  EXPECT_EQ(speeds.split(400, 2), (Begins{0, 200, 400}));
  // A call that takes long for other reasons says the same.
  speeds.note({0, 100, 200, 300}, {100, 100, 50});
  EXPECT_EQ(speeds.split(400, 3), (Begins{0, 100, 200, 400}));
  // A slow replica keeps some queries, by which it can be seen to be fast again.
  for (int i = 0; i < 50; ++i) speeds.note({0, 100, 101, 201}, {1, 1e6, 1});
  EXPECT_EQ(speeds.split(300, 3), (Begins{0, 144, 156, 300}));
  for (int i = 0; i < 50; ++i) speeds.note({0, 100, 200, 300}, {1, 1, 1});
  EXPECT_EQ(speeds.split(300, 3), (Begins{0, 100, 200, 300}));
  for (const std::int64_t queries : {0, 1, 2, 3, 4}) {
    const Begins begin = speeds.split(queries, 3);
    EXPECT_TRUE(std::is_sorted(begin.begin(), begin.end()));
    EXPECT_EQ(begin.back(), queries);
  }
}

// A replica that was slow for a while, and is as fast as the other since, has half of the queries
// again, even where a call takes as long for any number of them: with one query of each call it
// would have been taken to be slow for ever.
TEST(ReplicaSpeeds, SlowForAWhileIsNotSlowForEver) {
  for (const double call : {0., 30., 400.}) {  // what a call takes, in times of a query
    for (const std::int64_t queries : {96, 1000, 10000}) {
      detail::ReplicaSpeeds speeds(2);
      const auto calls = [&](int count, double slower) {
        for (int i = 0; i < count; ++i) {
          const std::vector<std::int64_t> begin = speeds.split(queries, 2);
          speeds.note(begin,
                      {call + double(begin[1]), slower * (call + double(queries - begin[1]))});
        }
        return double(queries - speeds.split(queries, 2)[1]) / double(queries);
      };
      EXPECT_LT(calls(50, 1000), 0.08);
      EXPECT_GT(calls(1000, 1), 0.4) << call << " " << queries;
    }
  }
}

}  // namespace
}  // namespace knear
