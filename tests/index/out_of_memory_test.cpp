// tests/index/out_of_memory_test.cpp -- allocations that the system refuses, each in turn: every
// public call ends in a knear::Error, and what it was to change is as it was before.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "knear/cluster/k_means.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/convert.hpp"
#include "knear/io/statistics.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/streamed_search.hpp"
#include "knear/select/select_k.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/knn_cases.hpp"

namespace {

enum class Refuse { none, one, all_from };
std::atomic<Refuse> refuse = Refuse::none;
std::atomic<std::int64_t> until_refused;

bool is_refused() {
  const Refuse how = refuse.load();
  if (how == Refuse::none) return false;
  const std::int64_t left = until_refused--;
  return how == Refuse::one ? left == 1 : left <= 1;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  bytes = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* memory = is_refused() ? nullptr : std::malloc(bytes);
  if (memory && alignment > alignof(std::max_align_t)) {
    std::free(memory);
    memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) memory = nullptr;
  }
  if (!memory) throw std::bad_alloc();
  return memory;
}

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
// std::stable_sort asks for memory by it.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return is_refused() ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1));
}
void* operator new[](std::size_t bytes, const std::nothrow_t& none) noexcept {
  return operator new(bytes, none);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return is_refused() ? nullptr : __real_aligned_alloc(alignment, bytes);
}
}

namespace knear {
namespace {

using namespace test;

// Calls `call` with its n-th allocation refused, then with that and all after it, for n = 1, 2, ...
// until there is none to refuse: all of the first 25, and more and more thinly those that follow.
// before() puts back what the call changes; after() looks at what a call that failed left.
void refuse_each(const std::string& name, const std::function<void()>& call,
                 const std::function<void()>& before = {},
                 const std::function<void()>& after = {}) {
  if (before) before();
  ASSERT_NO_THROW(call()) << name;
  std::int64_t failures = 0;
  for (const Refuse how : {Refuse::one, Refuse::all_from})
    for (std::int64_t n = 1;; n += std::max<std::int64_t>(1, n / 25)) {
      if (before) before();
      bool failed = true;
      std::string other;
      until_refused = n;
      refuse = how;
      try {
        call();
        failed = false;
      } catch (const Error&) {
      } catch (const std::exception& e) {
        refuse = Refuse::none;
        other = e.what();
      }
      refuse = Refuse::none;
      ASSERT_EQ(other, "") << name << ": allocation " << n;
      if (!failed && until_refused > 0) break;
      failures += failed;
      if (failed && after) after();
    }
  EXPECT_GT(failures, 0) << name;
}

Matrix<float> floats(const AnyMatrix& rows) {
  Matrix<float> out(rows.rows(), rows.cols());
  std::copy_n(rows.view().as<float>().data(), rows.rows() * rows.cols(), out.data());
  return out;
}

TEST(OutOfMemory, Searches) {
  const AnyMatrix base = gaussians(1500, 24, 1), queries = gaussians(40, 24, 2);
  for (const Metric metric : metrics) {
    const Neighbors expected = reference_knn(queries, base, 5, metric);
    const std::string name(name_of(metric));
    const KnnOptions options{.metric = metric, .threads = 2};
    refuse_each("knn " + name, [&] { knn(queries, base, 5, options); });
    refuse_each("range_search " + name,
                [&] { range_search(queries, base, metric == Metric::ip ? 2 : 0.5, options); });
    refuse_each("self_join " + name, [&] { self_join(base, 3, options); });
    // One that has failed before, while it was packed say, answers as any other.
    std::optional<ExactSearcher> searcher;
    refuse_each(
        "ExactSearcher " + name,
        [&] {
          if (!searcher) searcher.emplace(base, options);
          searcher->search(queries, 5, options);
        },
        {},
        [&] {
          if (!searcher) return;
          EXPECT_TRUE(same(searcher->search(queries, 5, options), expected));
          searcher.reset();
        });
  }
}

TEST(OutOfMemory, SearchesByEachWay) {
  const AnyMatrix base = gaussians(1500, 24, 1), queries = gaussians(40, 24, 2);
  for (const FirstPass pass :
       {FirstPass::int16, FirstPass::fp32, FirstPass::direct, FirstPass::prefix})
    refuse_each(std::string(name_of(pass)),
                [&] { knn(queries, base, 5, {.threads = 2, .first_pass = pass}); });
  for (const Method method : {Method::threshold_heap, Method::partial_reduce})
    refuse_each(std::string(name_of(method)), [&] {
      knn(queries, base, 5,
          {.threads = 2,
           .method = {.kind = method, .recall = method == Method::partial_reduce ? 0.9 : 1}});
    });
  refuse_each("memory", [&] { knn(queries, base, 5, {.threads = 2, .memory = 1 << 22}); });
  refuse_each("filter", [&] {
    constexpr Id ids[] = {5, 7, 700};
    knn(queries, base, 5, {.threads = 2, .filter = RowFilter::of_ids(ids, 1500)});
  });
  refuse_each("StreamedSearch", [&] {
    StreamedSearch search(queries, 5, {.threads = 2}, 1500);
    search.add(base.view().rows(0, 700));
    search.add(base.view().rows(700, 1500));
    search.finish();
    search.take_distances();
  });
  refuse_each("select_k", [&] { select_k(base, 7, {.threads = 2}); });
  const Matrix<float> rows = floats(base);
  refuse_each("k_means", [&] {
    k_means(rows.view(), 10,
            {.iterations = 2, .seeding = Seeding::k_means_plus_plus, .threads = 2});
  });
  refuse_each("k_means, two levels", [&] {
    k_means(rows.view(), 10, {.iterations = 2, .rows_per_centroid = 5, .levels = 2});
  });
  refuse_each("nearest_centroids",
              [&] { nearest_centroids(rows.view(), rows.view(), Metric::l2, 2); });
}

// An index that a failing call was to change has the same rows and answers as before.
TEST(OutOfMemory, Changes) {
  for (const auto& [whole, lists] : {std::pair(false, 0), std::pair(true, 0), std::pair(false, 6),
                                     std::pair(true, 6), std::pair(false, 300)}) {
    AnyMatrix rows = gaussians(900, 16, 3, 30);
    for (std::int64_t i = 0; whole && i < 900 * 16; ++i)
      set(rows, i, std::round(rows.view().as<float>().data()[i]));
    const AnyMatrix queries = gaussians(8, 16, 4, 30);
    const Matrix<float> some_rows = floats(rows);
    const auto made = [&, count = lists]() -> Index {
      if (count == 0) return make_index("Flat", 16);
      return index_with_centroids(some_rows.view().rows(0, count));
    };
    SearchOptions how{.threads = 2};
    if (lists > 0) how.method.probes = lists / 2;
    Index index = made();
    std::optional<Neighbors> expected;
    std::vector<Id> ids;
    std::int64_t version = 0;
    const auto start = [&] {
      index = made();
      index.add(rows.view().rows(0, 400));
      index.add(rows.view().rows(400, 410));
      index.remove(std::vector<Id>{3, 402}), version = index.version();
      ids = index.ids();
      if (!expected) expected = index.search(queries, 6, how);
    };
    const auto is_unchanged = [&] {
      EXPECT_EQ(index.version(), version);
      EXPECT_EQ(index.ids(), ids);
      EXPECT_TRUE(same(index.search(queries, 6, how), *expected));
      index.add(rows.view().rows(410, 412));  // and it can be changed as ever
      EXPECT_EQ(index.ids().back(), 411);
    };
    const ChangeOptions options{.threads = 2};
    const AnyMatrixView more = rows.view().rows(410, 900);
    refuse_each("constructor", [&] { made(); });
    refuse_each(
        "add", [&] { index.add(more, options); }, start, is_unchanged);
    std::vector<Id> own(490);
    std::iota(own.rbegin(), own.rend(), 1000);
    refuse_each(
        "add ids", [&] { index.add(more, own, options); }, start, is_unchanged);
    std::vector<Id> some(250);
    std::iota(some.begin(), some.end(), 50);
    refuse_each(
        "remove", [&] { index.remove(some, options); }, start, is_unchanged);
    refuse_each(
        "replace", [&] { index.replace(some, rows.view().rows(500, 750), options); }, start,
        is_unchanged);
    Index other = made();
    other.add(more);
    refuse_each(
        "merge", [&] { index.merge(other, MergeIds::shifted); }, start, is_unchanged);
    refuse_each(
        "compact", [&] { index.compact(options); }, start, is_unchanged);
    refuse_each(
        "optimize", [&] { index.optimize(options); }, start, is_unchanged);
    start();
    refuse_each("reconstruct", [&] { index.reconstruct(ids); });
    refuse_each("ids", [&] { index.ids(); });
    refuse_each("search", [&] { index.search(queries, 6, how); });
    SearchOptions filtered = how;
    filtered.filter = IdFilter::of_ids(some);
    refuse_each("filtered", [&] { index.search(queries, 6, filtered); });
    refuse_each("range", [&] { index.range_search(queries, 5000, how); });
    if (lists == 0) continue;
    how.method.lists.widen = how.method.lists.certify = true;
    refuse_each("certified", [&] { index.search(queries, 6, how); });
    refuse_each("train", [&] {
      make_index(fmt::format("IVF{},Flat", lists), 16).train(rows, {.iterations = 2, .threads = 2});
    });
    refuse_each("tune", [&] { index.tune(6, queries, options); });
    for (const double recall : {0.8, 1.0}) {
      const SearchOptions asking{.threads = 2, .method = {.recall = recall}};
      refuse_each("recall", [&] { index.search(queries, 6, asking); });
    }
  }
}

using OutOfMemoryFiles = io::FileTest;

TEST_F(OutOfMemoryFiles, SavingAndLoading) {
  const AnyMatrix rows = gaussians(700, 16, 5), queries = gaussians(8, 16, 6);
  Index first = make_index("Flat", 16), second = make_index("Flat", 16);
  first.add(rows.view().rows(0, 300));
  second.add(rows);
  const Neighbors expected = first.search(queries, 6);
  const std::string file = path("index.knear");
  refuse_each(
      "save", [&] { second.save(file); }, [&] { first.save(file); },
      [&] {
        EXPECT_EQ(file_count(), 1);
        EXPECT_TRUE(same(Index::load(file).search(queries, 6), expected));
      });
  first.save(file);
  refuse_each("load", [&] { Index::load(file).search(queries, 6, {.threads = 2}); });
}

TEST_F(OutOfMemoryFiles, VectorFiles) {
  const AnyMatrix rows = gaussians(700, 16, 5);
  const std::string file = path("rows.fvecs"), numpy = path("rows.npy"), out = path("out.npy"),
                    ids_file = path("ids.npy");
  refuse_each(
      "write_vectors", [&] { io::write_vectors(file, rows); }, {},
      [&] { std::filesystem::remove(file); });
  io::write_vectors(file, rows);
  io::write_vectors(numpy, rows);
  refuse_each("convert", [&] { io::convert_file(file, out); });
  refuse_each("open", [&] { io::VectorFile::open(file, {.type = ElementType::f16}); });
  refuse_each("blocks", [&] {
    io::VectorBlocks blocks(numpy, {.type = ElementType::f16});
    while (blocks.next(100).rows() > 0) continue;
  });
  refuse_each("statistics", [&] { io::compute_statistics(file); });
  refuse_each("inspect", [&] { io::inspect(file); });
  const Matrix<Id> ids(20, 10);
  refuse_each("write_ids", [&] { io::write_ids(ids_file, ids); });
  refuse_each("read_ids", [&] { io::read_ids(ids_file); });
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they need the addresses
std::int64_t address_space() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// In a process of its own: everything with `room` bytes of address space more than there are now.
// Exits with 0 if it was done, with 1 if it ended in an Error.
void search_within(std::int64_t room) {
  const AnyMatrix base = gaussians(20000, 32, 1), queries = gaussians(100, 32, 2);
  const auto all = static_cast<rlim_t>(address_space() + room);
  const rlimit limit{all, all};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
  try {
    Index index = make_index("Flat", 32);
    index.add(base, {.threads = 4});
    index.search(queries, 10, {.threads = 4});
    knn(queries, base, 10, {.threads = 4});
  } catch (const Error& e) {
    std::fprintf(stderr, "Error: %s", e.what());
    std::exit(1);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "not an Error: %s", e.what());
    std::exit(3);
  }
  std::exit(0);
}

// Neither does the process end where there is no room for oneTBB's threads.
TEST(OutOfMemory, InALimitedAddressSpace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(search_within(0), testing::ExitedWithCode(1), "Error");
  EXPECT_EXIT(search_within(256 << 20), testing::ExitedWithCode(0), "");
  const auto either = [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) <= 1; };
  for (std::int64_t room = 1; room < 36; ++room)
    EXPECT_EXIT(search_within(room << 20), either, "") << room << " MiB";
}
#endif

}  // namespace
}  // namespace knear
