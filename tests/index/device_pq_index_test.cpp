// Indexes of codes searched on the emulated device: the processor's answers, to the bit, from
// several segments, with rows removed and filtered, measured by vectors or not; what stays on the
// device, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "knear/index/lists/code_search.hpp"
#include "knear/knn/device/queue_code_search.hpp"
#include "tests/index/index_test.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear {
namespace {

using detail::CodeSearch;

constexpr std::int64_t dim = 8, queries = 5;

// Counts the queues that were made.
std::unique_ptr<detail::DeviceCodeSearch> emulated(int& made,
                                                   std::size_t bytes = std::size_t{1} << 40) {
  return std::make_unique<detail::QueueCodeSearch<HostQueue>>(
      "emulated", [&made, bytes] { return HostQueue(static_cast<std::uint64_t>(++made), bytes); });
}

// Of 6 lists and codes of 4 parts: of what is left beside centroids, or of whole vectors, as files
// of FAISS may have them.
Index lists_of_codes(Metric metric, bool residual) {
  return Index(std::make_unique<detail::IndexImpl>(
      detail::IndexShape{.dim = dim,
                         .metric = metric,
                         .lists = 6,
                         .codes = detail::CodeShape{.kind = detail::CodeKind::product,
                                                    .parts = 4,
                                                    .bits = residual ? 8 : 4,
                                                    .residual = residual}}));
}

// Rows that come at two times, of which some go again.
void fill(Index& index) {
  index.train(clustered(600, dim, 1).view());
  index.add(clustered(560, dim, 2).view());
  index.add(clustered(250, dim, 3).view());
  std::vector<Id> gone;
  for (Id id = 5; id < 800; id += 9) gone.push_back(id);
  index.remove(gone);
}

std::vector<detail::SearchSegment> segments_of(const detail::State& state) {
  std::vector<detail::SearchSegment> out;
  for (const detail::Segment& segment : state.segments) {
    detail::SearchSegment to;
    to.ids = segment.rows->ids();
    if (!segment.live.all()) to.live = &segment.live;
    out.push_back(std::move(to));
  }
  return out;
}

// The nearest among the first lists of each query, and then among more of some of them.
ExactNeighbors found_by(CodeSearch& search, const detail::State& state, AnyMatrixView vectors) {
  ExactNeighbors out;
  if (!state.coarse) {
    search.nearest(Matrix<Id>(vectors.rows(), 1).view(), out);
    return out;
  }
  const Neighbors near = state.coarse->probe(vectors, 4, 1);
  Matrix<Id> first(vectors.rows(), 2), others(2, 2);
  for (std::int64_t q = 0; q < vectors.rows(); ++q) std::copy_n(near.ids.row(q), 2, first.row(q));
  const std::vector<std::int64_t> which = {1, 4};
  for (std::int64_t i = 0; i < 2; ++i)
    std::copy_n(near.ids.row(which[static_cast<std::size_t>(i)]) + 2, 2, others.row(i));
  search.nearest(first.view(), out);
  search.nearest(others.view(), out, which);
  return out;
}

void expect_same(const ExactNeighbors& a, const ExactNeighbors& b) {
  ASSERT_EQ(a.keys.cols(), b.keys.cols());
  for (std::int64_t i = 0; i < a.keys.rows() * a.keys.cols(); ++i) {
    ASSERT_EQ(a.ids.data()[i], b.ids.data()[i]) << "place " << i;
    ASSERT_EQ(a.keys.data()[i], b.keys.data()[i]) << "place " << i;
  }
}

// Returns how many queries were answered by products, of the first search and of the second.
std::vector<std::int64_t> check(const Index& index, std::int64_t k, std::int64_t refine_factor,
                                const Matrix<float>& vectors = clustered(queries, dim, 4)) {
  const auto state = index.body().one().state();
  const auto segments = segments_of(*state);
  EXPECT_GT(segments.size(), 1u);
  const KnnOptions options{.metric = index.metric(), .threads = 1};
  const detail::SearchRequest request = detail::request_of_codes(
      detail::SearchKind::nearest, *state, segments, vectors.view(), k, options);
  const auto answer = [&](CodeSearch& search) {
    return found_by(search, *state, AnyMatrixView(vectors.view()));
  };
  CodeSearch here(*state, request, segments, vectors.view(), refine_factor, 0);
  const ExactNeighbors wanted = answer(here);
  EXPECT_EQ(here.report().device.name, "cpu");
  int made = 0;
  std::vector<std::int64_t> multiplied;
  for (int time = 0; time < 2; ++time) {  // the second goes by what stayed there
    CodeSearch there(*state, request, segments, vectors.view(), refine_factor, 0);
    auto device = emulated(made);
    const auto& by = static_cast<const detail::QueueCodeSearch<HostQueue>&>(*device);
    there.scan_on(std::move(device));
    expect_same(answer(there), wanted);
    multiplied.push_back(by.multiplied());
    EXPECT_EQ(there.report().scan.fallback_queries, 0);
    EXPECT_GT(there.report().device.bytes, 0);
  }
  EXPECT_EQ(made, static_cast<int>(segments.size()));
  return multiplied;
}

TEST(DevicePqIndex, AnswersAsTheProcessor) {
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const bool residual : {true, false}) {
      SCOPED_TRACE(std::string(name_of(metric)) + (residual ? ", residual" : ""));
      Index index = lists_of_codes(metric, residual);
      fill(index);
      EXPECT_EQ(check(index, 10, 0), (std::vector<std::int64_t>{0, 0}));  // few
    }
}

// So many queries that products take less time than tables; those of zeros, to which all rows are
// equally near, have tables.
TEST(DevicePqIndex, ManyQueriesAreAnsweredByProducts) {
  constexpr std::int64_t many = 150, zeros = 3;
  Matrix<float> vectors = clustered(many, dim, 4);
  for (std::int64_t q = 0; q < zeros; ++q) std::fill_n(vectors.row(40 * q), dim, 0.0f);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine})
    for (const bool residual : {true, false}) {
      SCOPED_TRACE(std::string(name_of(metric)) + (residual ? ", residual" : ""));
      Index index = lists_of_codes(metric, residual);
      fill(index);
      const std::int64_t asked = metric == Metric::l2 ? many : many - zeros;
      EXPECT_EQ(check(index, 10, 0, vectors), (std::vector{asked, asked}));
    }
  Index refined = make_index("IVF6,PQ4,RFlat", dim);
  fill(refined);
  EXPECT_EQ(check(refined, 7, 4, vectors), (std::vector{many, many}));
  Index scalar = make_index("SQ8", dim);
  fill(scalar);
  EXPECT_EQ(check(scalar, 20, 0, vectors), (std::vector{many, many}));
}

// Where rows of one segment have room and those of all have not, none are decoded: products of some
// answer nothing.
TEST(DevicePqIndex, RowsOfAllSegmentsAreDecodedOrNone) {
  constexpr std::int64_t many = 30;
  Index index = make_index("IVF2,PQ2x4", dim);
  fill(index);
  detail::State state = *index.body().one().state();
  std::reverse(state.segments.begin(), state.segments.end());  // first the one with fewer rows
  const auto segments = segments_of(state);
  ASSERT_GT(segments.size(), 1u);
  const Matrix<float> vectors = clustered(many, dim, 4);
  const detail::SearchRequest request =
      detail::request_of_codes(detail::SearchKind::nearest, state, segments, vectors.view(), 3,
                               KnnOptions{.metric = Metric::l2, .threads = 1});
  bool all = false;
  std::vector<std::size_t> decoded;  // bytes that stayed, of less memory first
  for (std::size_t kilobytes = 40; !all; kilobytes *= 2) {
    SCOPED_TRACE(std::to_string(kilobytes) + " KiB");
    const auto device = std::make_shared<HostDevice>(0, kilobytes << 10);
    const auto open = [&] { return HostQueue(1, std::size_t{1} << 40, device); };
    const std::string name = "with " + std::to_string(kilobytes) + " KiB";
    const auto search = [&](AnyMatrixView some, const detail::SearchRequest& of) {
      CodeSearch there(state, of, segments, some, 0, 0);
      auto by = std::make_unique<detail::QueueCodeSearch<HostQueue>>(name, open);
      const auto& multiplies = *by;
      there.scan_on(std::move(by));
      found_by(there, state, some);
      EXPECT_EQ(there.report().scan.fallback_queries, 0);
      return multiplies.multiplied();
    };
    const Matrix<float> few = clustered(queries, dim, 4);
    search(few.view(),
           detail::request_of_codes(detail::SearchKind::nearest, state, segments, few.view(), 3,
                                    KnnOptions{.metric = Metric::l2, .threads = 1}));
    const std::size_t codes = device->bytes_in_use();
    all = search(vectors.view(), request) > 0;
    decoded.push_back(device->bytes_in_use() - codes);
    EXPECT_LE(decoded.back(), ((kilobytes << 10) - codes) / 2);
  }
  EXPECT_EQ(decoded.front(), 0u);
  EXPECT_GT(decoded.back(), 0u);
  for (const std::size_t bytes : decoded) EXPECT_TRUE(bytes == 0 || bytes == decoded.back());
}

// Rows are decoded by one of them, while the other waits or has others decoded.
TEST(DevicePqIndex, SearchesByProductsAtTheSameTime) {
  constexpr std::int64_t many = 140;
  Index index = make_index("IVF2,PQ2x4", dim);
  fill(index);
  const auto state = index.body().one().state();
  const auto segments = segments_of(*state);
  const Matrix<float> vectors = clustered(many, dim, 4);
  const detail::SearchRequest request =
      detail::request_of_codes(detail::SearchKind::nearest, *state, segments, vectors.view(), 3,
                               KnnOptions{.metric = Metric::l2, .threads = 1});
  CodeSearch here(*state, request, segments, vectors.view(), 0, 0);
  const ExactNeighbors wanted = found_by(here, *state, vectors.view());
  ExactNeighbors got[2];
  std::int64_t multiplied[2] = {};
  std::atomic<int> made = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        CodeSearch there(*state, request, segments, vectors.view(), 0, 0);
        auto device = std::make_unique<detail::QueueCodeSearch<HostQueue>>(
            "emulated", [&] { return HostQueue(static_cast<std::uint64_t>(++made)); });
        const auto& by = *device;
        there.scan_on(std::move(device));
        got[i] = found_by(there, *state, vectors.view());
        multiplied[i] = by.multiplied();
      });
  }
  for (std::size_t i = 0; i < 2; ++i) {
    expect_same(got[i], wanted);
    EXPECT_EQ(multiplied[i], many);
  }
  EXPECT_EQ(made, static_cast<int>(segments.size()));
}

// As many queries at a time as the processor's memory holds with what is found for them.
TEST(DevicePqIndex, ManyNeighboursAreFoundForSomeQueriesAtATime) {
  constexpr std::int64_t many = 140, k = 40;
  Index index = make_index("IVF2,PQ2x4", dim);
  index.train(clustered(300, dim, 1).view());
  index.add(clustered(150, dim, 2).view());
  const auto state = index.body().one().state();
  const auto segments = segments_of(*state);
  const Matrix<float> vectors = clustered(many, dim, 4);
  int searches = 0;
  const KnnOptions options{
      .metric = Metric::l2, .threads = 1, .progress = [&](std::string_view stage, double fraction) {
        searches += stage == "search" && fraction == 1;
        return true;
      }};
  const detail::SearchRequest request = detail::request_of_codes(
      detail::SearchKind::nearest, *state, segments, vectors.view(), k, options);
  CodeSearch here(*state, request, segments, vectors.view(), 0, 0);
  const Matrix<Id> lists = [] {
    Matrix<Id> out(many, 2);
    for (std::int64_t q = 0; q < many; ++q) out.row(q)[0] = q % 2, out.row(q)[1] = 1 - q % 2;
    return out;
  }();
  ExactNeighbors wanted, got;
  here.nearest(lists.view(), wanted);
  CodeSearch there(*state, request, segments, vectors.view(), 0, 0);
  auto device = std::make_unique<detail::QueueCodeSearch<HostQueue>>(
      "emulated", [] { return HostQueue(); }, many * dim * 8);
  const auto& by = *device;
  there.scan_on(std::move(device));
  searches = 0;
  there.nearest(lists.view(), got);
  expect_same(got, wanted);
  EXPECT_EQ(by.multiplied(), many);
  EXPECT_EQ(searches, 2);
}

TEST(DevicePqIndex, VectorsMeasureWhatItFinds) {
  Index index = make_index("IVF6,PQ4,RFlat", dim);
  fill(index);
  check(index, 7, 4);
}

// The id of a row that was removed is given again, or a row gets another vector: ids are there
// twice, and only one of the two rows may be found and measured.
TEST(DevicePqIndex, IdsThatWereGivenAgain) {
  Index index = make_index("IVF6,PQ4,RFlat", dim);
  fill(index);
  std::vector<Id> ids;
  for (Id id = 0; id < 400; id += 24)
    if (index.contains(id)) ids.push_back(id);
  index.replace(ids, clustered(std::ssize(ids), dim, 5).view());
  check(index, 7, 4);
}

TEST(DevicePqIndex, WithoutListsAndOfScalarQuantizers) {
  Index product = make_index("PQ4", dim);
  fill(product);
  check(product, 20, 0);
  Index scalar = make_index("SQ8", dim, Metric::ip);
  fill(scalar);
  check(scalar, 20, 0);
}

TEST(DevicePqIndex, TheProcessorAnswersWhatTheDeviceHasNoMemoryFor) {
  Index index = make_index("IVF6,PQ4", dim);
  fill(index);
  const auto state = index.body().one().state();
  const auto segments = segments_of(*state);
  const Matrix<float> vectors = clustered(queries, dim, 4);
  const detail::SearchRequest request =
      detail::request_of_codes(detail::SearchKind::nearest, *state, segments, vectors.view(), 10,
                               KnnOptions{.metric = Metric::l2, .threads = 1});
  CodeSearch here(*state, request, segments, vectors.view(), 0, 0);
  int made = 0;
  CodeSearch there(*state, request, segments, vectors.view(), 0, 0);
  there.scan_on(emulated(made, 4096));
  expect_same(found_by(there, *state, vectors.view()), found_by(here, *state, vectors.view()));
  EXPECT_EQ(there.report().scan.fallback_queries, queries);
}

TEST(DevicePqIndex, RefusesWhatItHasNot) {
  Index index = make_index("IVF6,PQ4", dim);
  fill(index);
  const Matrix<float> vectors = clustered(queries, dim, 4);
  SearchOptions options;
  options.method.probes = 2, options.device = "cuda:4095";
  EXPECT_THROW(index.search(vectors.view(), 3, options), DeviceUnavailable);
  EXPECT_THROW(index.range_search(vectors.view(), 3, options), InvalidArgument);
  options.memory = 1 << 30;
  EXPECT_THROW(index.search(vectors.view(), 3, options), InvalidArgument);
  options.memory = 0, options.device = "gpu";
  EXPECT_THROW(index.search(vectors.view(), 3, options), InvalidArgument);
}

}  // namespace
}  // namespace knear
