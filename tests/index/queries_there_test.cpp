// Searches of a flat index for queries in the memory of the emulated device, where the answers go:
// the bits of Index::search(), over several segments, own ids, removed rows, filters, ties, zeros,
// full lists and few rows; and how many bytes cross the bus.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/impl/device_query_index.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "tests/index/sharded_cases.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/device/emulated_gpus.hpp"
#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using io::expect_error;
using test::EmulatedGpus;
using test::make;

AnyMatrix vectors(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  const bool whole = type == ElementType::u8 || type == ElementType::i8;
  AnyMatrix out = make(type, rows, dim, [&](std::int64_t, std::int64_t) {
    return whole ? double(random.below(60)) : 2 * random.uniform() - 1;
  });
  const auto bytes = static_cast<std::size_t>(dim * size_of(type));
  for (std::int64_t i = 5; i < rows; i += 5)  // copies: ids decide
    std::memcpy(out.row(i), out.row(i / 2), bytes);
  return out;
}

// Queries and answers in memory of cuda:0 that belongs to the caller.
class There {
 public:
  explicit There(const EmulatedGpus& gpus) : gpus_(gpus), queue_(gpus.queue(0)) {}

  Neighbors search(const Index& index, AnyMatrixView queries, std::int64_t k,
                   SearchOptions options = {}, KnnReport* report = nullptr) {
    const auto bytes = static_cast<std::size_t>(queries.bytes());
    auto asked = queue_.allocate<unsigned char>(bytes);
    if (bytes > 0)
      queue_.upload(asked.data(), static_cast<const unsigned char*>(queries.row(0)), bytes);
    const auto places = static_cast<std::size_t>(queries.rows() * k);
    auto ids = queue_.allocate<Id>(places);
    auto distances = queue_.allocate<float>(places);
    queue_.wait();
    detail::DeviceRowData<HostQueue> rows;
    rows.borrowed = asked.data(), rows.type = queries.type();
    rows.count = queries.rows(), rows.dim = queries.cols();
    options.device = "cuda:0";
    const std::int64_t up = gpus_[0].bytes_up(), down = gpus_[0].bytes_down();
    detail::search_on_device<HostQueue>(
        index.body().one(), queue_,
        [&] {
          if (meanwhile) std::exchange(meanwhile, nullptr)();
          return gpus_.queue(0);
        },
        rows, k, options, {ids.data(), distances.data()}, report);
    sent = gpus_[0].bytes_up() - up, returned = gpus_[0].bytes_down() - down;
    Neighbors out{Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
    queue_.download(out.ids.data(), ids.data(), places);
    queue_.download(out.distances.data(), distances.data(), places);
    queue_.wait();
    return out;
  }

  std::int64_t sent = 0, returned = 0;  // bytes of the last search
  std::function<void()> meanwhile;      // done once, when the next search has begun

 private:
  const EmulatedGpus& gpus_;
  HostQueue queue_;
};

// Three segments, own ids in one of them that do not ascend with the rows.
void fill(Index& index, ElementType type) {
  const std::int64_t dim = index.dim();
  index.add(vectors(type, 330, dim, 1));
  std::vector<Id> own;
  for (Id i = 0; i < 140; ++i) own.push_back(5000 - 7 * i);
  index.add(vectors(type, 140, dim, 2), own);
  index.add(vectors(type, 40, dim, 3));
}

IdFilter half(const Index& index) {
  std::vector<std::uint8_t> bits(static_cast<std::size_t>((index.next_id() + 7) / 8));
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(93 * i);
  return IdFilter::of_bits(bits, index.next_id());
}

TEST(DeviceQuerySearch, AnswersAreThoseOfTheIndex) {
  struct Case {
    ElementType type;
    Metric metric;
    std::int64_t dim;
  };
  for (const Case& one : {Case{ElementType::f32, Metric::l2, 13},
                          {ElementType::f32, Metric::ip, 6},
                          {ElementType::f32, Metric::cosine, 33},
                          {ElementType::u8, Metric::l2, 20},
                          {ElementType::f16, Metric::ip, 9},
                          {ElementType::f64, Metric::cosine, 5}}) {
    if (test::small() && one.type != ElementType::f32) continue;
    SCOPED_TRACE(std::string(name_of(one.type)) + " " + std::string(name_of(one.metric)));
    EmulatedGpus gpus(1);
    There there(gpus);
    Index index = make_index("Flat", one.dim, one.metric);
    fill(index, one.type);
    const AnyMatrix queries = vectors(one.type, 130, one.dim, 9);
    const auto check = [&](std::int64_t count, std::int64_t k, const SearchOptions& options) {
      const AnyMatrixView some = queries.view().rows(0, count);
      KnnReport here, report;
      const Neighbors wanted = index.search(some, k, options, &here);
      expect_same(there.search(index, some, k, options, &report), wanted);
      EXPECT_EQ(report.device.name, "cuda:0");
      EXPECT_EQ(report.rows, here.rows);
      EXPECT_EQ(report.allowed_rows, here.allowed_rows);
      EXPECT_EQ(report.k, k);
      EXPECT_EQ(report.queries, count);
      EXPECT_EQ(report.version, here.version);
      EXPECT_EQ(report.promise.certified_queries, here.promise.certified_queries);
      EXPECT_EQ(report.scan.fallback_queries, 0);
    };
    check(130, 10, {});
    check(3, 1, {});
    check(20, 600, {});  // beyond the rows
    check(40, 4, {.filter = half(index)});
    std::vector<Id> gone;
    for (Id id = 1; id < 300; id += 3) gone.push_back(id);
    index.remove(gone);
    check(40, 7, {});
    index.add(vectors(one.type, 30, one.dim, 4));
    check(5, 7, {.filter = IdFilter::of_ids(std::vector<Id>{0, 5000})});  // few: another way
    if (HasFailure()) return;
  }
}

TEST(DeviceQuerySearch, NeitherQueriesNorAnswersCross) {
  EmulatedGpus gpus(1);
  There there(gpus);
  constexpr std::int64_t dim = 32, count = 300, k = 20;
  Index index = make_index("Flat", dim);
  index.add(vectors(ElementType::f32, 700, dim, 1));
  const AnyMatrix queries = vectors(ElementType::f32, count, dim, 9);
  there.search(index, queries, k);
  EXPECT_GT(there.sent, 700 * dim * 4);  // the rows, which stay
  KnnReport report;
  there.search(index, queries, k, {}, &report);
  EXPECT_EQ(report.scan.repeated_queries, 0);
  EXPECT_EQ(there.sent, 0);
  // Of each query two numbers, and the range of all.
  EXPECT_EQ(there.returned, count * 8 + std::int64_t{sizeof(detail::RowsFound)});
  // Removed rows are a bit each.
  index.remove(std::vector<Id>{3});
  there.search(index, queries, k);
  EXPECT_EQ(there.sent, (700 + 31) / 32 * 4);
}

TEST(DeviceQuerySearch, WhatIsLeftIsAnsweredAllTheSame) {
  EmulatedGpus gpus(1);
  There there(gpus);
  constexpr std::int64_t dim = 8;
  const AnyMatrix queries = make(ElementType::f32, 40, dim, [](std::int64_t q, std::int64_t i) {
    return q % 3 == 0 ? 0.0 : double(q * 7 + i % 5) / 100;  // zeros among them
  });
  for (const Metric metric : {Metric::ip, Metric::cosine}) {
    Index index = make_index("Flat", dim, metric);
    index.add(vectors(ElementType::f32, 300, dim, 1));
    KnnReport report;
    expect_same(there.search(index, queries, 5, {}, &report), index.search(queries, 5));
    EXPECT_EQ(report.scan.repeated_queries, 14);
  }
  // Copies of one row, more than a list has room for (those of a block of queries or fewer are
  // longer), and of another, so many that the first rows that are scanned have some.
  Index copies = make_index("Flat", dim);
  copies.add(make(ElementType::f32, 3000, dim,
                  [](std::int64_t row, std::int64_t) { return row < 2200 ? 0.25 : 0.5; }));
  const AnyMatrix many = make(ElementType::f32, 130, dim, [](std::int64_t q, std::int64_t) {
    return q % 9 == 0 ? 0.0 : 1 + double(q) / 1000;
  });
  KnnReport report;
  expect_same(there.search(copies, many, 3, {}, &report), copies.search(many, 3));
  EXPECT_EQ(report.scan.repeated_queries, 15);  // those to which the copies are nearest
}

// All answers of a search are of the index as it was when the search began, also those of queries
// that come back.
TEST(DeviceQuerySearch, AChangeMeanwhileIsSeenByNone) {
  EmulatedGpus gpus(1);
  There there(gpus);
  constexpr std::int64_t dim = 8;
  const AnyMatrix queries = make(ElementType::f32, 6, dim, [](std::int64_t q, std::int64_t i) {
    return q % 2 == 0 ? 0.0 : double(q * 7 + i % 5) / 100;  // zeros among them
  });
  Index index = make_index("Flat", dim, Metric::ip);
  index.add(vectors(ElementType::f32, 300, dim, 1));
  const Neighbors wanted = index.search(queries, 5);
  std::vector<Id> gone;
  for (std::int64_t q = 0; q < 6; ++q) gone.push_back(wanted.ids.row(q)[0]);
  std::sort(gone.begin(), gone.end());
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  there.meanwhile = [&] { index.remove(gone); };
  const std::int64_t version = index.version();
  KnnReport report;
  expect_same(there.search(index, queries, 5, {}, &report), wanted);
  EXPECT_EQ(report.scan.repeated_queries, 3);
  EXPECT_EQ(report.rows, 300);
  EXPECT_EQ(report.version, version);
  expect_same(there.search(index, queries, 5), index.search(queries, 5));
}

TEST(DeviceQuerySearch, OtherKindsGoByTheProcessorsMemory) {
  EmulatedGpus gpus(1);
  There there(gpus);
  const AnyMatrix base = vectors(ElementType::f32, 400, 8, 1),
                  queries = vectors(ElementType::f32, 30, 8, 1);
  for (const std::string description : {"IVF8,Flat", "PQ4", "L2norm,Flat"}) {
    Index index = make_index(description, 8, Metric::l2);
    if (!index.is_trained()) index.train(base);
    index.add(base);
    const SearchOptions options{.method = {.probes = description == "IVF8,Flat" ? 2 : 0}};
    const AnyMatrixView some = queries.view().rows(0, 30);
    expect_same(there.search(index, some, 6, options), index.search(some, 6, options));
  }
  // An index without rows, and no queries.
  const Index empty = make_index("Flat", 8);
  expect_same(there.search(empty, queries, 3), empty.search(queries, 3));
  EXPECT_EQ(there.search(empty, queries.view().rows(0, 0), 3).ids.rows(), 0);
}

TEST(DeviceQuerySearch, ADeviceWithoutMemoryAndWrongArguments) {
  Index index = make_index("Flat", 8);
  index.add(vectors(ElementType::f32, 2000, 8, 1));
  const AnyMatrix queries = vectors(ElementType::f32, 10, 8, 2);
  const Neighbors wanted = index.search(queries, 4);
  {
    EmulatedGpus gpus(1, 24'000);
    There there(gpus);
    KnnReport report;
    expect_same(there.search(index, queries, 4, {}, &report), wanted);
    EXPECT_EQ(report.scan.repeated_queries, 10);
  }
  EmulatedGpus gpus(1);
  There there(gpus);
  expect_error<ShapeMismatch>([&] { there.search(index, vectors(ElementType::f32, 3, 9, 1), 4); },
                              "queries have 9 columns, index has 8");
  expect_error<InvalidArgument>([&] { there.search(index, queries, 0); }, "k must be at least 1");
  AnyMatrix bad = vectors(ElementType::f32, 10, 8, 2);
  static_cast<float*>(bad.row(6))[2] = std::numeric_limits<float>::infinity();
  expect_error<InvalidArgument>([&] { there.search(index, bad, 4); }, "queries");
}

}  // namespace
}  // namespace knear
