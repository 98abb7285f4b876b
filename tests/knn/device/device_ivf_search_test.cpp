// Searches of inverted lists on the emulated GPU: the answers of the processor for the same probes,
// to the bit, and those of a plain loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/device/device_list_search.hpp"
#include "tests/knn/refused.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t list_count = 17;

// Vectors of a type, one in five of them a copy of another: ties, which go by id.
template <class T>
AnyMatrix vectors(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  AnyMatrix out(element_type_of<T>(), rows, dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    T* const to = static_cast<T*>(out.row(i));
    for (std::int64_t j = 0; j < dim; ++j) {
      if constexpr (std::is_same_v<T, std::uint8_t>)
        to[j] = static_cast<T>(random.below(30));
      else
        to[j] = static_cast<T>(2 * random.uniform() - 1);
    }
    if (i % 5 == 4) std::copy_n(static_cast<const T*>(out.row(i / 2)), dim, to);
  }
  return out;
}

// Rows of a segment in lists of unequal sizes: list 0 has half of them, list 3 none, list 4 one.
struct Rows {
  Rows(AnyMatrix of, Metric metric, std::uint64_t seed, Id first = 0)
      : base(std::move(of)), first_id(first), live(base.rows()) {
    Random random(seed);
    for (std::int64_t i = 0; i < base.rows(); ++i) {
      const auto list = static_cast<std::uint32_t>(random.below(2 * list_count));
      list_of.push_back(list >= list_count || list == 3 || list == 4 ? 0 : list);
    }
    list_of[0] = 4;
    const ValueRange found = find_value_range(base.view(), metric, "base", 1);
    prepared = std::make_unique<PreparedRows>(base.view(), metric, found);
    if (!packs_lists(base.rows(), list_count))
      lists = std::make_unique<ListedRows>(RowLists(list_of, list_count));
    else if (found.integer && metric != Metric::cosine)
      lists = std::make_unique<ListedRows>(std::make_shared<const PackedLists>(
          PackedLists::integer(base.view(), list_of, list_count, metric, active_isa(), found, 1)));
    else
      lists =
          std::make_unique<ListedRows>(std::make_shared<const PackedLists>(PackedLists::certified(
              base.view(), list_of, list_count, format_int8, prepared->coding_space(), 1)));
  }
  SearchSegment segment() const {
    SearchSegment out{prepared.get(), {first_id}};
    out.lists = lists.get();
    if (!live.all()) out.live = &live;
    return out;
  }

  AnyMatrix base;
  Id first_id;
  RowSet live;
  std::vector<std::uint32_t> list_of;
  std::unique_ptr<PreparedRows> prepared;
  std::unique_ptr<ListedRows> lists;
};

// Each query probes lists drawn at random, one in four of them fewer than the others.
Matrix<Id> random_probes(std::int64_t queries, std::int64_t probes, std::uint64_t seed) {
  Random random(seed);
  Matrix<Id> out(queries, probes);
  for (std::int64_t q = 0; q < queries; ++q) {
    std::vector<Id> all(list_count);
    for (std::size_t l = 0; l < all.size(); ++l) {
      const auto at = static_cast<std::size_t>(random.below(l + 1));
      all[l] = all[at], all[at] = static_cast<Id>(l);
    }
    const std::int64_t count = q % 4 == 3 ? random.below(static_cast<std::uint64_t>(probes) + 1)
                                          : static_cast<std::uint64_t>(probes);
    for (std::int64_t p = 0; p < probes; ++p)
      out.row(q)[p] = p < count ? all[static_cast<std::size_t>(p)] : no_id;
  }
  return out;
}

void expect_same(const ExactNeighbors& a, const ExactNeighbors& b, const std::string& what) {
  ASSERT_EQ(a.keys.rows(), b.keys.rows()) << what;
  ASSERT_EQ(a.columns(), b.columns()) << what;
  for (std::int64_t q = 0; q < a.keys.rows(); ++q)
    for (std::int64_t j = 0; j < a.columns(); ++j) {
      ASSERT_EQ(a.ids.row(q)[j], b.ids.row(q)[j]) << what << ", query " << q << ", place " << j;
      ASSERT_EQ(a.keys.row(q)[j], b.keys.row(q)[j]) << what << ", query " << q << ", place " << j;
    }
}

// The nearest rows of the lists that each query probes, all measured.
ExactNeighbors plain_loop(const SearchRequest& request, const std::vector<const Rows*>& segments,
                          MatrixView<Id> probes) {
  ExactNeighbors out = nothing_found(request.queries.rows(), request.k);
  for (std::int64_t q = 0; q < request.queries.rows(); ++q) {
    std::vector<std::pair<double, Id>> near;
    for (const Rows* rows : segments)
      visit(request.queries, [&](auto x) {
        visit(AnyMatrixView(rows->base), [&](auto y) {
          for (Id i = 0; i < y.rows(); ++i) {
            const Id* const list = std::find(probes.row(q), probes.row(q) + probes.cols(),
                                             Id{rows->list_of[static_cast<std::size_t>(i)]});
            if (list == probes.row(q) + probes.cols() || !rows->live.contains(i)) continue;
            const Metric metric = request.options.metric;
            near.emplace_back(
                order_key(metric, reference_distance(metric, x.row(q), y.row(i), y.cols())),
                rows->first_id + i);
          }
        });
      });
    std::sort(near.begin(), near.end());
    for (std::int64_t j = 0; j < std::min(request.k, std::ssize(near)); ++j)
      out.keys.row(q)[j] = near[static_cast<std::size_t>(j)].first,
      out.ids.row(q)[j] = near[static_cast<std::size_t>(j)].second;
  }
  return out;
}

KnnReport expect_as_the_processor(const HostQueue& queue, const SearchRequest& request,
                                  MatrixView<Id> probes, const std::string& what) {
  ExactNeighbors here, there;
  ListSearch(request).nearest(probes, here);
  DeviceListSearch<HostQueue> search(request, [queue] { return queue; });
  search.nearest(probes, there);
  expect_same(there, here, what);
  return search.report();
}

// A packed segment and one of few rows, whose numbers follow.
template <class T>
void expect_answers(std::uint64_t seed, std::int64_t rows, std::int64_t dim, std::int64_t queries,
                    std::int64_t k, std::int64_t probes) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    seed += 10;
    const Rows one(vectors<T>(rows, dim, seed), metric, seed),
        two(vectors<T>(60, dim, seed + 1), metric, seed + 1, rows);
    const SearchSegment segments[] = {one.segment(), two.segment()};
    const AnyMatrix asked = vectors<T>(queries, dim, seed + 2);
    const SearchRequest request(SearchKind::nearest, segments, asked, k,
                                {.metric = metric, .device = "cuda"}, Reuse::expected);
    const Matrix<Id> probed = random_probes(queries, probes, seed + 3);
    const std::string what = std::string(name_of(metric)) + ", " + std::to_string(queries) +
                             " queries, k " + std::to_string(k);
    ExactNeighbors found;
    const HostQueue queue(seed);
    DeviceListSearch<HostQueue> search(request, [queue] { return queue; });
    search.nearest(probed.view(), found);
    expect_same(found, plain_loop(request, {&one, &two}, probed.view()), what);
    const KnnReport report = search.report();
    EXPECT_EQ(report.device.name, "cuda");
    EXPECT_EQ(report.scan.fallback_queries, 0) << what;
    EXPECT_GT(report.prepare_seconds, 0);
    EXPECT_GT(report.device.bytes, 0);
    ExactNeighbors by_processor;
    ListSearch here(request);
    here.nearest(probed.view(), by_processor);
    expect_same(found, by_processor, what);
    EXPECT_EQ(report.scan.probed_rows, here.report().scan.probed_rows) << what;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(DeviceIvfSearch, AnswersAreThoseOfTheProcessorAndOfAPlainLoop) {
  expect_answers<float>(10, 500, 20, 5, 7, 4);
  expect_answers<std::uint8_t>(50, 400, 12, 130, 3, 3);
  expect_answers<double>(90, 300, 9, 3, 400, 17);
}

// One segment of floats, for what follows.
struct OneSegment {
  explicit OneSegment(std::int64_t rows, std::int64_t queries, std::uint64_t seed,
                      KnnOptions how = {})
      : base(vectors<float>(rows, 8, seed), how.metric, seed),
        asked(vectors<float>(queries, 8, seed + 1)),
        probes(random_probes(queries, 6, seed + 2)),
        options(std::move(how)) {
    options.device = "cuda";
  }
  SearchRequest request(std::int64_t k, Reuse reuse = Reuse::expected) const {
    SearchSegment segment = base.segment();
    segment.filter = filter;
    return {SearchKind::nearest, {&segment, 1}, asked, k, options, reuse};
  }
  // Of a search on this queue, whose answers are the processor's.
  KnnReport report(const HostQueue& queue, std::int64_t k, const std::string& what,
                   Reuse reuse = Reuse::expected) const {
    return expect_as_the_processor(queue, request(k, reuse), probes.view(), what);
  }

  Rows base;
  AnyMatrix asked;
  Matrix<Id> probes;
  KnnOptions options;
  RowFilter filter;
};

TEST(DeviceIvfSearch, RowsByListStayOnTheDevice) {
  const OneSegment one(400, 3, 100);
  const HostQueue queue(1);
  EXPECT_GT(one.report(queue, 4, "first").prepare_seconds, 0);
  EXPECT_EQ(one.report(queue, 9, "second").prepare_seconds, 0);
  EXPECT_GT(one.report(queue, 4, "for itself", Reuse::none).prepare_seconds, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] { EXPECT_EQ(one.report(queue, 5, "thread").prepare_seconds, 0); });
  for (std::thread& thread : threads) thread.join();
}

// A bit a row where many are left; few are sent by themselves.
TEST(DeviceIvfSearch, FiltersOfAllSizes) {
  OneSegment one(600, 4, 110);
  const HostQueue queue(2);
  one.report(queue, 4, "all");
  for (const std::int64_t every : {1, 3, 16, 17, 150, 600}) {
    std::vector<Id> ids;
    for (Id id = every / 2; id < 600; id += every) ids.push_back(id);
    one.filter = RowFilter::of_ids(ids, 600);
    const KnnReport report = one.report(queue, 10, "every " + std::to_string(every));
    EXPECT_EQ(report.scan.fallback_queries, 0);
    EXPECT_EQ(report.prepare_seconds == 0, std::ssize(ids) * 16 >= 600) << every;
  }
  one.filter = RowFilter::of_ids(std::vector<Id>{}, 600);
  one.report(queue, 10, "none");
}

TEST(DeviceIvfSearch, RemovedRows) {
  OneSegment one(500, 4, 120, {.metric = Metric::ip});
  Random random(3);
  for (int removed = 0; removed < 490; removed += 240) {
    const SearchRequest request = one.request(12);
    ExactNeighbors found;
    DeviceListSearch<HostQueue> search(request, [] { return HostQueue(4); });
    search.nearest(one.probes.view(), found);
    expect_same(found, plain_loop(request, {&one.base}, one.probes.view()),
                std::to_string(removed));
    EXPECT_EQ(search.report().prepare_seconds == 0, removed > 0);
    for (int i = 0; i < 240; ++i)
      one.base.live.remove(static_cast<std::int64_t>(random.below(500)));
  }
}

// Where the device has room for some of the lists at a time, they come in chunks, and a list that
// is larger than a chunk in several; and where it has none the processor answers.
TEST(DeviceIvfSearch, ListsLargerThanTheDevice) {
  bool chunks = false, nothing = false;
  for (const std::size_t kib : {1600, 1200, 900, 700, 500, 300, 100, 20}) {
    const OneSegment one(4000, 6, 130);
    const KnnReport report = one.report(HostQueue(5, kib << 10), 3, std::to_string(kib) + " KiB");
    chunks |= report.scan.chunks > 2 && report.scan.fallback_queries == 0;
    nothing |= report.scan.fallback_queries == 6;
    EXPECT_LE(report.device.bytes, static_cast<std::int64_t>(kib << 10));
    if (HasFailure()) return;
  }
  EXPECT_TRUE(chunks && nothing);
}

TEST(DeviceIvfSearch, MemoryOfTheProcessorIsKeptTo) {
  for (const std::int64_t kib : {3000, 6000}) {
    OneSegment one(2000, 140, 140);
    one.options.memory = kib << 10;
    one.report(HostQueue(6), 3, std::to_string(kib) + " KiB");
  }
}

// Lists are probed in several calls, some by some of the queries alone.
TEST(DeviceIvfSearch, GoesOnFromWhatWasFound) {
  const OneSegment one(500, 7, 150, {.metric = Metric::cosine});
  const SearchRequest request = one.request(6);
  ExactNeighbors here, there;
  ListSearch processor(request);
  DeviceListSearch<HostQueue> device(request, [] { return HostQueue(7); });
  const auto both = [&](MatrixView<Id> probes, std::span<const std::int64_t> which) {
    processor.nearest(probes, here, which);
    device.nearest(probes, there, which);
    expect_same(there, here, "after " + std::to_string(which.size()));
  };
  const MatrixView<Id> all = one.probes.view();
  both({all.data(), 7, 2, all.stride()}, {});
  const std::int64_t some[] = {1, 2, 6};
  Matrix<Id> more(3, 3);
  for (int i = 0; i < 3; ++i) std::copy_n(all.row(some[i]) + 2, 3, more.row(i));
  both(more.view(), some);
  EXPECT_EQ(device.report().scan.probed_rows, processor.report().scan.probed_rows);
}

TEST(DeviceIvfSearch, ZeroQueriesAndNobody) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    OneSegment one(300, 3, 160, {.metric = metric});
    std::fill_n(static_cast<float*>(one.asked.row(1)), 8, 0.0f);
    EXPECT_EQ(one.report(HostQueue(8), 5, "zero").scan.fallback_queries, 0);
  }
  OneSegment none(300, 0, 170);
  none.report(HostQueue(9), 5, "no queries");
}

TEST(DeviceIvfSearch, RangesAreRefused) {
  const OneSegment one(300, 2, 180);
  const SearchRequest request = one.request(1);
  DeviceListSearch<HostQueue> search(request, [] { return HostQueue(); });
  RangeLists found(2);
  test::expect_refused<InvalidArgument>([&] { search.within(one.probes.view(), 1, found); },
                                        "device is cuda");
}

}  // namespace
}  // namespace knear::detail
