// tests/index/call_allocations_test.cpp -- how often a search of few rows asks for memory: for the
// two arrays of its answer, and for nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "tests/index/index_test.hpp"

namespace {

std::atomic<std::int64_t> allocations = 0;

// Not inlined: the compiler would say that memory of posix_memalign() is freed by operator delete.
[[gnu::noinline]] void* allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, alignof(std::max_align_t)),
                     std::max<std::size_t>(1, bytes)) != 0)
    throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

// Every allocation of the standard library, and with --wrap those of knear's own arrays.
void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
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

extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __real_aligned_alloc(alignment, bytes);
}
}

namespace knear {
namespace {

TEST(CallAllocations, ASearchOfFewRowsAllocatesItsAnswerAlone) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Matrix<float> base = clustered(20, 16, 3), queries = clustered(1, 16, 5);
    Index index = make_index("Flat", 16, metric);
    index.add(base.view());
    for (const SearchOptions& options :
         {SearchOptions{}, SearchOptions{.threads = 1}, SearchOptions{.method = {.recall = 0.9}}}) {
      KnnReport report;
      index.search(queries.view(), 5, options, &report);
      const std::int64_t before = allocations;
      const Neighbors without_report = index.search(queries.view(), 5, options);
      EXPECT_EQ(allocations - before, 2) << name_of(metric);
      const Neighbors near = index.search(queries.view(), 5, options, &report);
      EXPECT_EQ(allocations - before, 4) << name_of(metric);
      EXPECT_EQ(near.ids.row(0)[0], without_report.ids.row(0)[0]);
    }
  }
}

}  // namespace
}  // namespace knear
