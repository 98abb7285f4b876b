// tests/index/memory_limit_test.cpp -- searches in a limited memory: what they allocate stays
// within it however many lists are probed, and the answers are those without a limit.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "tests/index/index_test.hpp"

namespace {

std::atomic<std::int64_t> held = 0, most_held = 0;

void* note(void* memory) {
  if (!memory) return nullptr;
  const std::int64_t now = held += static_cast<std::int64_t>(malloc_usable_size(memory));
  std::int64_t most = most_held;
  while (most < now && !most_held.compare_exchange_weak(most, now)) {
  }
  return memory;
}
void* allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, alignof(std::max_align_t)),
                     std::max<std::size_t>(1, bytes)) != 0)
    throw std::bad_alloc();
  return note(memory);
}
void release(void* memory) { std::free(memory); }  // by way of the one below

}  // namespace

// Every allocation of the standard library, and with --wrap those of knear's own arrays.
void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return note(std::malloc(std::max<std::size_t>(1, bytes)));
}
void* operator new[](std::size_t bytes, const std::nothrow_t& none) noexcept {
  return operator new(bytes, none);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return note(__real_aligned_alloc(alignment, bytes));
}
void __real_free(void* memory);
void __wrap_free(void* memory) {
  if (memory) held -= static_cast<std::int64_t>(malloc_usable_size(memory));
  __real_free(memory);
}
}

namespace knear {
namespace {

constexpr std::int64_t queries = 2000, lists = 256, k = 5;

class MemoryLimit : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    index_.train(base_.view());
    index_.add(base_.view());
    index_.search(queries_.view(), k, options(0));  // makes what searches keep
  }
  SearchOptions options(std::int64_t memory) const {
    SearchOptions out;
    out.threads = 2, out.memory = memory, out.method.probes = lists;
    return out;
  }
  // The most that f() allocates.
  template <class F>
  static std::int64_t bytes_of(F f) {
    const std::int64_t before = held;
    most_held = before;
    f();
    return most_held - before;
  }
  // A search with these options allocates at least `without` bytes, and in a memory of `limit` no
  // more than that, for the same answer and report.
  void expect_kept(SearchOptions asked, std::int64_t limit, std::int64_t without) {
    Neighbors all, some;
    KnnReport report, limited;
    asked.memory = 0;
    EXPECT_GT(bytes_of([&] { all = index_.search(queries_.view(), k, asked, &report); }), without);
    asked.memory = limit;
    EXPECT_LE(bytes_of([&] { some = index_.search(queries_.view(), k, asked, &limited); }), limit);
    expect_equal(some, all);
    EXPECT_EQ(limited.lists.probes, report.lists.probes);
    EXPECT_EQ(limited.promise.certified_queries, report.promise.certified_queries);
    EXPECT_EQ(limited.short_queries, report.short_queries);
    EXPECT_EQ(limited.promise.recall_argument, report.promise.recall_argument);
    EXPECT_EQ(limited.promise.uncertified, report.promise.uncertified);
  }

  const Matrix<float> base_ = clustered(8000, 16, 1), queries_ = clustered(queries, 16, 2);
  Index index_ = make_index(GetParam(), 16);
};

TEST_P(MemoryLimit, IsKeptByAnyNumberOfProbes) {
  for (const std::int64_t probes : {16L, lists}) {
    SCOPED_TRACE(probes);
    SearchOptions asked = options(0);
    asked.method.probes = probes;
    expect_kept(asked, 3'000'000, queries * probes * 12);
  }
}

TEST_P(MemoryLimit, IsKeptByWiderProbing) {
  // Of a filter that leaves less than k in the first lists.
  std::vector<Id> few;
  for (Id id = 0; id < 8000; id += 1600) few.push_back(id);
  SearchOptions asked = options(0);
  asked.method.probes = 8, asked.method.lists.widen = true;
  asked.filter = IdFilter::of_ids(few);
  expect_kept(asked, 6'000'000, queries * lists * 12);
}

TEST_P(MemoryLimit, IsKeptByARecall) {
  index_.tune(k);
  SearchOptions asked = options(0);
  asked.method.probes = 0, asked.method.recall = 0.5;
  expect_kept(asked, 8'000'000, 0);
}

TEST_P(MemoryLimit, IsKeptByARangeSearch) {
  RangeNeighbors all, some;
  const std::int64_t limit = queries * lists * 16 + 4'000'000;
  SearchOptions asked = options(0);
  EXPECT_GT(bytes_of([&] { all = index_.range_search(queries_.view(), 0.01, asked); }), limit);
  asked.memory = limit;
  EXPECT_LE(bytes_of([&] { some = index_.range_search(queries_.view(), 0.01, asked); }), limit);
  EXPECT_EQ(some.ids, all.ids);
  EXPECT_EQ(some.distances, all.distances);
}

TEST_P(MemoryLimit, TooLittleIsRefusedByANumberThatIsEnough) {
  for (const std::int64_t rows : {std::int64_t{7}, queries})
    for (const std::int64_t probes : {std::int64_t{1}, std::int64_t{20}, lists}) {
      const AnyMatrixView some = AnyMatrixView(queries_.view()).rows(0, rows);
      SearchOptions asked = options(0);
      asked.method.probes = probes;
      const Neighbors all = index_.search(some, k, asked);
      asked.memory = 10'000;
      const std::string begin = "memory is 10000 bytes, but this search needs at least ";
      std::string said = "no error";
      try {
        index_.search(some, k, asked);
      } catch (const MemoryBudgetError& error) {
        said = error.what();
      }
      ASSERT_EQ(said.rfind(begin, 0), 0u) << said;
      asked.memory = std::stoll(said.substr(begin.size()));
      expect_equal(index_.search(some, k, asked), all);
    }
}

// Ten times as many codes as there are rows were counted, so that a search was refused for want of
// memory that it would not have taken.
TEST(MemoryLimitOfRefinement, CountsNoMoreCodesThanThereAre) {
  const Matrix<float> base = clustered(8000, 16, 1), few = clustered(20, 16, 2);
  for (const char* name : {"IVF256,PQ8x4,RFlat", "PQ8x4,Refine(SQ8)"}) {
    SCOPED_TRACE(name);
    Index index = make_index(name, 16);
    index.train(base.view()), index.add(base.view());
    SearchOptions asked{.threads = 2};
    asked.method.probes = index.lists(), asked.method.codes.refine_factor = 1 << 14;
    const Neighbors all = index.search(few.view(), k, asked);
    asked.memory = 16'000'000;
    expect_equal(index.search(few.view(), k, asked), all);
  }
}

INSTANTIATE_TEST_SUITE_P(Indexes, MemoryLimit,
                         testing::Values("IVF256,Flat", "IVF256_SOAR,Flat", "IVF256,PQ8",
                                         "IVF256,PQ8x4,RFlat", "IVF256,SQ8"));

class MemoryLimitOfProofs : public MemoryLimit {};

TEST_P(MemoryLimitOfProofs, IsKept) {
  SearchOptions asked = options(0);
  asked.method.probes = 0, asked.method.recall = 1;
  expect_kept(asked, 8'000'000, 0);
  asked.method.recall.reset(), asked.method.probes = 20, asked.method.lists.certify = true;
  expect_kept(asked, 8'000'000, 0);
}

INSTANTIATE_TEST_SUITE_P(Indexes, MemoryLimitOfProofs, testing::Values("IVF256,Flat"));

}  // namespace
}  // namespace knear
