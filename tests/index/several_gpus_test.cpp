// Searches by several emulated GPUs: the bits of the processor whatever the number of GPUs and
// shards, the rows of each shard on its own GPU, queries divided between replicas; what is refused,
// and a GPU without memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/device/device_grid.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/lists/listed_rows.hpp"
#include "knear/knn/streamed_search.hpp"
#include "tests/index/sharded_cases.hpp"
#include "tests/io/file_cases.hpp"
#include "tests/knn/device/emulated_gpus.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using io::expect_error;
using test::EmulatedGpus;

constexpr std::int64_t dim = 9;

std::string names(int gpus) {
  std::string out = "cuda:0";
  for (int i = 1; i < gpus; ++i) out += "," + std::to_string(i);
  return out;
}

// Vectors in clusters, every seventh of them a copy of another, so that ids decide.
AnyMatrix vectors(std::int64_t rows, std::uint64_t seed) {
  AnyMatrix out = rows_in_clusters(rows, dim, seed);
  for (std::int64_t i = 7; i < rows; i += 7)
    std::copy_n(static_cast<const float*>(out.row(i / 2)), dim, static_cast<float*>(out.row(i)));
  return out;
}

Index sharded(const std::string& description, int shards, Metric metric = Metric::l2) {
  Index index = make_index(description, dim, metric).divided({.shards = shards});
  const AnyMatrix all = vectors(410, 1);
  if (!index.is_trained()) index.train(all);
  index.add(all);
  index.add(vectors(60, 2));
  return index;
}

void remove_some(Index& index) {
  std::vector<Id> gone;
  for (Id id = 3; id < index.next_id(); id += 11) gone.push_back(id);
  index.remove(gone);
}

void expect_same(const RangeNeighbors& got, const RangeNeighbors& wanted) {
  EXPECT_EQ(got.begin, wanted.begin);
  EXPECT_EQ(got.ids, wanted.ids);
  EXPECT_EQ(got.distances, wanted.distances);
}

// The processor's answer, and what it says of it, by numbers of GPUs that go with the shards: the
// first of the queries, so many that each replica has a block of them.
void expect_as_here(const EmulatedGpus& there, const Index& index, AnyMatrixView all,
                    std::int64_t k, const SearchOptions& options, const std::string& what) {
  SCOPED_TRACE(what);
  for (const int gpus : {2, 3, 4}) {
    const std::int64_t replicas = std::max<std::int64_t>(1, gpus / index.shards());
    if (gpus > index.shards() && gpus % index.shards() != 0) continue;
    if (replicas > 2 && what.find(',') != std::string::npos) continue;  // it takes long
    SCOPED_TRACE(std::to_string(gpus) + " GPUs");
    const AnyMatrixView queries = all.rows(0, replicas > 1 ? 128 * replicas + 3 : 37);
    KnnReport here;
    const Neighbors wanted = index.search(queries, k, options, &here);
    const std::vector<std::int64_t> before = there.launches();
    SearchOptions by = options;
    by.device = names(gpus);
    KnnReport report;
    expect_same(index.search(queries, k, by, &report), wanted);
    EXPECT_EQ(report.device.name, names(gpus));
    EXPECT_EQ(report.rows, here.rows);
    EXPECT_EQ(report.allowed_rows, here.allowed_rows);
    EXPECT_EQ(report.queries, here.queries);
    EXPECT_EQ(report.k, k);
    EXPECT_EQ(report.promise.certified_queries, here.promise.certified_queries);
    EXPECT_EQ(report.promise.uncertified, here.promise.uncertified);
    EXPECT_EQ(report.promise.promised_recall, here.promise.promised_recall);
    EXPECT_EQ(report.promise.recall_argument, here.promise.recall_argument);
    EXPECT_EQ(report.lists.probes, here.lists.probes);
    EXPECT_EQ(report.short_queries, here.short_queries);
    EXPECT_EQ(report.shards.count, here.shards.count);
    EXPECT_EQ(report.shards.replicas, replicas);
    EXPECT_EQ(report.scan.fallback_queries, 0);
    EXPECT_GT(report.device.bytes, 0);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(there[i].launches() > before[static_cast<std::size_t>(i)], i < gpus)
          << "cuda:" << i;
  }
}

IdFilter third(const Index& index) {
  std::vector<std::uint8_t> bits(static_cast<std::size_t>((index.next_id() + 7) / 8));
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(73 * i);
  return IdFilter::of_bits(bits, index.next_id());
}

// So many queries that four replicas have a block each.
constexpr std::int64_t many = 4 * 128 + 19;

TEST(SeveralGpus, FlatAnswersAreTheProcessors) {
  const AnyMatrix queries = vectors(many, 9);
  for (const int shards : {1, 2, 3, 4}) {
    if (test::small() && shards % 2 == 0) continue;
    Index index = sharded("Flat", shards, shards == 3 ? Metric::cosine : Metric::l2);
    const EmulatedGpus gpus(4);
    const std::string what = std::to_string(shards) + " shards";
    expect_as_here(gpus, index, queries, 10, {}, what);
    remove_some(index);
    expect_as_here(gpus, index, queries, 30, {.threads = 1}, what + ", rows removed");
    expect_as_here(gpus, index, queries, 7, {.filter = third(index)}, what + ", filtered");
    if (HasFailure()) return;
  }
}

TEST(SeveralGpus, AnswersOfInvertedListsAreTheProcessors) {
  const AnyMatrix queries = vectors(many, 9);
  for (const int shards : {1, 2}) {
    Index index = sharded("IVF12,Flat", shards, shards == 2 ? Metric::ip : Metric::l2);
    const EmulatedGpus gpus(4);
    const std::string what = std::to_string(shards) + " shards";
    expect_as_here(gpus, index, queries, 10, {.method = {.probes = 3}}, what);
    expect_as_here(gpus, index, queries, 90, {.method = {.probes = 2, .lists = {.widen = true}}},
                   what + ", widen");
    expect_as_here(gpus, index, queries, 5, {.method = {.probes = 4, .lists = {.certify = true}}},
                   what + ", certified");
    expect_as_here(gpus, index, queries, 5, {.method = {.recall = 0.9}}, what + ", recall");
    expect_as_here(gpus, index, queries, 5, {.method = {.recall = 1}}, what + ", everything");
    remove_some(index);
    expect_as_here(gpus, index, queries, 10, {.method = {.probes = 3}}, what + ", rows removed");
    expect_as_here(gpus, index, queries, 10, {.filter = third(index), .method = {.probes = 3}},
                   what + ", filtered");
    if (HasFailure()) return;
  }
}

TEST(SeveralGpus, AnswersOfCodesAreTheProcessors) {
  const AnyMatrix queries = vectors(many, 9);
  for (const std::string description : {"IVF12,PQ3", "IVF6,PQ3,RFlat", "PQ3"})
    for (const int shards : {1, 2}) {
      if (shards == 1 && description == "PQ3") continue;
      Index index = sharded(description, shards);
      const SearchMethod method{.probes = description == "PQ3" ? 0 : 3};
      const EmulatedGpus gpus(4);
      const std::string what = description + ", " + std::to_string(shards) + " shards";
      expect_as_here(gpus, index, queries, 10, {.method = method}, what);
      remove_some(index);
      expect_as_here(gpus, index, queries, 10, {.filter = third(index), .method = method},
                     what + ", filtered");
      if (HasFailure()) return;
    }
}

TEST(SeveralGpus, EachHasTheRowsOfItsShardsAlone) {
  const Index four = sharded("Flat", 4), one = sharded("Flat", 1);
  const AnyMatrix queries = vectors(20, 9);
  const auto bytes = [&](const Index& index, const std::string& device) {
    EmulatedGpus gpus(4);
    for (int i = 0; i < 4; ++i) index.search(queries, 10, {.device = device});
    std::vector<std::size_t> out;
    for (int i = 0; i < 4; ++i) out.push_back(gpus[i].bytes_in_use());
    return out;
  };
  // What stays of all rows, and of a quarter.
  const std::size_t all = bytes(sharded("Flat", 1), "cuda:0")[0];
  EXPECT_GT(all, 470u * dim * 4);
  for (const std::size_t some : bytes(four, "cuda:0,1,2,3")) {
    EXPECT_GT(some, all / 8);
    EXPECT_LT(some, all * 2 / 3);
  }
  for (const std::size_t replica : bytes(one, "cuda:0,1,2,3")) EXPECT_EQ(replica, all);
  // In turn where there are more shards than GPUs; in the order in which they are named.
  const Index three = sharded("Flat", 3);
  const auto two = bytes(three, "cuda:3,1");
  EXPECT_EQ(two[0], 0u);
  EXPECT_EQ(two[2], 0u);
  EXPECT_GT(two[3], two[1] * 3 / 2);
}

// Each GPU gets its rows while others get theirs: otherwise the time for which one waits would
// count as that of its search, by which queries are divided.
TEST(SeveralGpus, WhatStaysIsMadeOnAllAtTheSameTime) {
  const auto met = [](auto& forms) {
    std::mutex mutex;
    std::condition_variable one_more;
    int there = 0;
    std::atomic<bool> all = true;
    const auto make = [&]() -> std::shared_ptr<void> {
      std::unique_lock lock(mutex);
      ++there;
      one_more.notify_all();
      if (!one_more.wait_for(lock, std::chrono::seconds(20), [&] { return there == 2; }))
        all = false;
      return std::make_shared<int>(there);
    };
    std::vector<std::thread> gpus;
    for (const std::string name : {"0 int8", "1 int8"})
      gpus.emplace_back([&, name] {
        const auto made = forms.form(name, make);
        EXPECT_EQ(made, forms.kept(name));
      });
    for (std::thread& gpu : gpus) gpu.join();
    EXPECT_NE(forms.kept("0 int8"), forms.kept("1 int8"));
    return all.load();
  };
  const AnyMatrix base = vectors(300, 3);
  detail::PreparedRows rows(detail::BaseRows(base.view()), Metric::l2, {});
  EXPECT_TRUE(met(rows.device_copies));
  detail::ListedRows lists(detail::RowLists{});
  EXPECT_TRUE(met(lists.device_copies));
  // What cannot be made is not kept, and made by the next who asks.
  EXPECT_THROW(rows.device_copies.form(
                   "2 int8", []() -> std::shared_ptr<void> { throw MemoryBudgetError("none"); }),
               MemoryBudgetError);
  EXPECT_EQ(rows.device_copies.kept("2 int8"), nullptr);
  EXPECT_NE(rows.device_copies.form("2 int8", [] { return std::make_shared<int>(2); }), nullptr);
}

TEST(SeveralGpus, ReplicasShareABatchAndFewQueriesTakeTurns) {
  const Index index = sharded("Flat", 1).as_one().divided({.replicas = 2});
  EmulatedGpus gpus(2);
  const AnyMatrix queries = vectors(many, 9);
  KnnReport report;
  index.search(queries, 10, {.device = "cuda:0,1"}, &report);
  EXPECT_EQ(report.shards.replicas, 2);
  const auto before = gpus.launches();
  for (int i = 0; i < 2; ++i) {
    index.search(queries.view().rows(i, i + 1), 10, {.device = "cuda:0,1"}, &report);
    EXPECT_EQ(report.shards.replicas, 1);
  }
  EXPECT_GT(gpus[0].launches(), before[0]);
  EXPECT_GT(gpus[1].launches(), before[1]);
}

TEST(SeveralGpus, QueriesAreDividedByTheSpeedOfReplicas) {
  const detail::DeviceGrid grid({{5, 6, 7, 8}}, 2);
  EXPECT_EQ(grid.replicas(), 2);
  EXPECT_EQ(grid.columns(), 2);
  EXPECT_EQ(grid.gpu(0, 1), 6);
  EXPECT_EQ(grid.gpu(1, 0), 7);
  const std::vector<std::int64_t> even = grid.split(10'000);
  EXPECT_EQ(even, (std::vector<std::int64_t>{0, 4992, 10'000}));
  for (int i = 0; i < 20; ++i) {
    const auto begin = grid.split(10'000);
    // The second takes three times as long for a query.
    grid.note(begin, {1e-3 * double(begin[1]), 3e-3 * double(begin[2] - begin[1])});
  }
  EXPECT_EQ(grid.split(10'000)[1], 7552);  // 59 blocks of 128, three quarters
  EXPECT_EQ(grid.split(256), (std::vector<std::int64_t>{0, 128, 256}));
  // Fewer than a block for each: one replica's, and the next call the other's.
  const auto first = grid.split(255), second = grid.split(255);
  EXPECT_NE(first, second);
  for (const auto& begin : {first, second})
    EXPECT_TRUE(begin[1] == 0 || begin[1] == 255) << begin[1];
  const detail::DeviceGrid turns({{0, 1}}, 3);
  EXPECT_EQ(turns.replicas(), 1);
  EXPECT_EQ(turns.column_of(2), 0);
}

// A GPU whose rows have to be sent first, which takes far longer than the search.
class SlowToPrepare final : public detail::ProbedSearch {
 public:
  explicit SlowToPrepare(double seconds) : left_(seconds) {}
  void nearest(MatrixView<Id>, ExactNeighbors&, std::span<const std::int64_t>) override {
    const double now = std::exchange(left_, 0);
    std::this_thread::sleep_for(std::chrono::duration<double>(now + 0.02));
    prepared_ += now;
  }
  void within(MatrixView<Id>, double, detail::RangeLists&) override {}
  KnnReport report() override {
    KnnReport out;
    out.prepare_seconds = prepared_;
    return out;
  }

 private:
  double left_, prepared_ = 0;
};
class SlowGpus final : public detail::DeviceMaker {
 public:
  SlowGpus() { detail::use_devices(this); }
  ~SlowGpus() override { detail::use_devices(nullptr); }
  int count() const override { return 12; }
  void check(int) const override {}
  DeviceTraits traits(int) const override { return {}; }
  std::unique_ptr<detail::DeviceEngine> engine(int, std::int64_t) const override { return nullptr; }
  std::unique_ptr<detail::ProbedSearch> list_search(int gpu, const detail::SearchRequest&,
                                                    std::int64_t) const override {
    return std::make_unique<SlowToPrepare>(gpu == 11 ? 0.5 : 0);
  }
  std::unique_ptr<detail::DeviceCodeSearch> device_code_search(int) const override {
    return nullptr;
  }
};

TEST(SeveralGpus, WhatIsSentFirstIsNoPartOfTheirSpeed) {
  const SlowGpus gpus;
  const AnyMatrix base = vectors(50, 3), queries = vectors(512, 4);
  detail::PreparedRows rows(detail::BaseRows(base.view()), Metric::l2, {});
  const detail::SearchSegment segment{&rows};
  const detail::SearchRequest request(detail::SearchKind::nearest, {&segment, 1}, queries, 3,
                                      KnnOptions{.threads = 2, .device = "cuda:10,11"},
                                      detail::Reuse::expected);
  const detail::Devices both{{10, 11}};
  detail::DividedListSearch search(request, both, 0);
  ExactNeighbors found;
  search.nearest(Matrix<Id>(512, 1).view(), found);
  const std::int64_t half = detail::DeviceGrid(both, 1).split(12'800)[1];
  EXPECT_GT(half, 12'800 / 4);
  EXPECT_LT(half, 12'800 * 3 / 4);
}

TEST(SeveralGpus, SearchesWithoutAnIndexAreDivided) {
  const AnyMatrix queries = vectors(many, 9), base = vectors(300, 3);
  const Neighbors wanted = knn(queries, base, 12);
  const Neighbors joined = self_join(base, 5);
  const RangeNeighbors within = range_search(queries, base, 0.4);
  const Neighbors heap = knn(queries, base, 4, {.method = {.kind = Method::threshold_heap}});
  EmulatedGpus gpus(3);
  const KnnOptions options{.device = "cuda:2,0,1"};
  KnnReport report;
  expect_same(knn(queries, base, 12, options, &report), wanted);
  EXPECT_EQ(report.device.name, "cuda:2,0,1");
  EXPECT_EQ(report.shards.replicas, 3);
  EXPECT_EQ(report.promise.certified_queries, many);
  expect_same(self_join(base, 5, options, &report), joined);
  EXPECT_EQ(report.k, 5);
  EXPECT_EQ(report.shards.replicas, 2);  // 300 rows
  expect_same(range_search(queries, base, 0.4, options, &report), within);
  EXPECT_EQ(report.k, 0);
  expect_same(
      knn(queries, base, 4, {.method = {.kind = Method::threshold_heap}, .device = "cuda:0,1"}),
      heap);
  ExactSearcher searcher(base, {});
  for (int i = 0; i < 2; ++i) expect_same(searcher.search(queries, 12, options), wanted);
  // A base that comes in blocks.
  StreamedSearch streamed(queries, 12, options, base.rows());
  for (std::int64_t begin = 0; begin < 300; begin += 100)
    streamed.add(base.view().rows(begin, begin + 100));
  expect_same(streamed.finish(&report), wanted);
  // No query, no row.
  EXPECT_EQ(knn(queries.view().rows(0, 0), base, 3, options).ids.rows(), 0);
  EXPECT_EQ(knn(queries, base.view().rows(0, 0), 3, options).ids.row(5)[2], no_id);
}

TEST(SeveralGpus, RangeSearchesOfShards) {
  const AnyMatrix queries = vectors(many, 9);
  for (const int shards : {1, 2, 3}) {
    const Index index = sharded("Flat", shards);
    const RangeNeighbors wanted = index.range_search(queries, 0.5);
    EmulatedGpus gpus(4);
    for (const std::string device : {"cuda:0,1", "cuda:3", "cuda:1,0,2,3"}) {
      if (shards == 3 && device.size() > 9) continue;
      KnnReport report;
      expect_same(index.range_search(queries, 0.5, {.device = device}, &report), wanted);
      EXPECT_EQ(report.device.name, device);
    }
  }
}

TEST(SeveralGpus, APlainIndexHasAReplicaOnEach) {
  Index index = make_index("Flat", dim);
  index.add(vectors(300, 1));
  const AnyMatrix queries = vectors(many, 9);
  const Neighbors wanted = index.search(queries, 9);
  EmulatedGpus gpus(2);
  KnnReport report;
  expect_same(index.search(queries, 9, {.device = "cuda:0,1"}, &report), wanted);
  EXPECT_EQ(report.shards.replicas, 2);
  EXPECT_EQ(gpus[0].bytes_in_use(), gpus[1].bytes_in_use());
  EXPECT_GT(gpus[0].bytes_in_use(), 0u);
  // Partial-reduce with as many GPUs as it has.
  expect_error<InvalidArgument>(
      [&] {
        index.search(queries, 9,
                     {.method = {.kind = Method::partial_reduce}, .device = "cuda:0,1"});
      },
      "device is cuda:0,1, but method is partial-reduce, whose bins are those of one GPU");
}

TEST(SeveralGpus, WhatCannotBeIsSaid) {
  const AnyMatrix queries = vectors(3, 9), base = vectors(50, 3);
  const auto refuses = [&]<class Error>(Error*, const std::string& device, const char* text) {
    expect_error<Error>([&] { knn(queries, base, 3, {.device = device}); }, text);
  };
  InvalidArgument* const wrong = nullptr;
  DeviceUnavailable* const absent = nullptr;
  refuses(absent, "cuda:0,1", "device is cuda:0,1, but this knear was built without CUDA");
  EmulatedGpus gpus(3);
  for (const char* device : {"cuda:", "cuda:0,", "cuda:,1", "cuda:0;1", "cuda:0,x", "cuda:-1",
                             "cuda:0,1 ", "cuda:0,cuda:1", "cuda:99999999999", "cpu,cuda"})
    refuses(wrong, device, "device must be cpu, cuda or cuda:N, or cuda:N,N,... of several GPUs");
  refuses(wrong, "cuda:1,0,1", "device is 'cuda:1,0,1', which names GPU 1 twice");
  refuses(absent, "cuda:0,3", "device must be between cuda:0 and cuda:2, but is cuda:3");
  expect_error<InvalidArgument>([] { check_one_device("cuda:0,1"); },
                                "device must be cpu, cuda or cuda:N, but is 'cuda:0,1'");
  check_device("cuda:0,2");
  // Where one would have nothing to do.
  const Index two = sharded("Flat", 2);
  expect_error<InvalidArgument>([&] { two.search(queries, 3, {.device = "cuda:0,1,2"}); },
                                "device is cuda:0,1,2, 3 GPUs, but the index has 2 shards");
  const Index graph = make_index("Graph8,Flat", dim).divided({.shards = 2});
  expect_error<InvalidArgument>([&] { graph.search(queries, 3, {.device = "cuda:0,1"}); },
                                "device is cuda:0,1");
}

TEST(SeveralGpus, TheProcessorAnswersForOneWithoutMemory) {
  const AnyMatrix queries = vectors(many, 9);
  for (const std::string description : {"Flat", "IVF12,Flat", "IVF12,PQ3"}) {
    const Index index = sharded(description, 2);
    const SearchMethod method{.probes = description == "Flat" ? 0 : 3};
    const Neighbors wanted = index.search(queries, 10, {.method = method});
    EmulatedGpus gpus(2, 2000);
    KnnReport report;
    expect_same(index.search(queries, 10, {.method = method, .device = "cuda:0,1"}, &report),
                wanted);
    EXPECT_GT(report.scan.fallback_queries, 0) << description;
  }
}

TEST(SeveralGpus, SearchesFromSeveralThreads) {
  const Index index = sharded("Flat", 2), lists = sharded("IVF12,Flat", 1);
  const AnyMatrix queries = vectors(100, 9);
  const Neighbors wanted = index.search(queries, 10);
  const Neighbors probed = lists.search(queries, 10, {.method = {.probes = 3}});
  EmulatedGpus gpus(4);
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&, t] {
      for (int i = 0; i < 2; ++i)
        if (t % 2 == 0)
          expect_same(index.search(queries, 10, {.threads = t + 1, .device = "cuda:0,1,2,3"}),
                      wanted);
        else
          expect_same(
              lists.search(queries, 10,
                           {.threads = t + 1, .method = {.probes = 3}, .device = "cuda:3,2,1"}),
              probed);
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(SeveralGpus, ProgressGoesOnAndStops) {
  const Index index = sharded("Flat", 2);
  const AnyMatrix queries = vectors(many, 9);
  EmulatedGpus gpus(2);
  double most = 0;
  index.search(queries, 10,
               {.progress = [&](std::string_view, double done) { return most = done, done <= 1; },
                .device = "cuda:0,1"});
  EXPECT_EQ(most, 1);
  EXPECT_THROW(index.search(queries, 10,
                            {.progress = [](std::string_view, double) { return false; },
                             .device = "cuda:0,1"}),
               Cancelled);
}

}  // namespace
}  // namespace knear
