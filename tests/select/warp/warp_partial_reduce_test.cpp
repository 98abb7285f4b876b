// WarpPartialReduce on the emulated warp against the plain reference: sizes around every edge,
// every kind of row, ids in the order of the places and in another.
#include "knear/select/warp/warp_partial_reduce.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "knear/select/partial_reduce.hpp"
#include "knear/select/sort/permutation.hpp"
#include "knear/simt/host_warp.hpp"
#include "tests/select/select_cases.hpp"

namespace knear {
namespace {

using test::SelectKind;

template <class Id>
struct Stored {
  std::vector<float> distances;
  std::vector<Id> ids;
  float dropped = -99;
  Id dropped_id = -99;

  template <class Reduce>
  explicit Stored(Reduce& reduce)
      : distances(Reduce::capacity, -99.0f), ids(Reduce::capacity, Id(-99)) {
    reduce.store(distances.data(), ids.data(), &dropped, &dropped_id);
  }
};

// Expects what is stored to equal the reference over the same row: the place of an id leads to its
// value, whose bits must be the same.
template <int bins_per_lane, int kept, class Id>
void expect_as_reference(const Stored<Id>& got, const std::vector<float>& row,
                         const std::vector<Id>& ids) {
  constexpr int bins = 32 * bins_per_lane;
  std::vector<PartialReduce> alone(bins, PartialReduce(1, kept));
  PartialReduce all(bins, kept);
  for (std::size_t i = 0; i < row.size(); ++i) {
    alone[i % bins].offer(0, row[i], ids[i]);
    all.offer(static_cast<std::int64_t>(i % bins), row[i], ids[i]);
  }
  for (int b = 0; b < bins_per_lane; ++b)
    for (int lane = 0; lane < 32; ++lane) {
      const auto wanted = alone[static_cast<std::size_t>(b * 32 + lane)].candidates();
      for (std::size_t j = 0; j < kept; ++j) {
        const std::size_t at = (static_cast<std::size_t>(b) * kept + j) * 32 + lane;
        if (j >= wanted.size()) {
          ASSERT_EQ(got.ids[at], Id(-1));
          ASSERT_EQ(got.distances[at], std::numeric_limits<float>::infinity());
          continue;
        }
        ASSERT_EQ(got.ids[at], wanted[j].second) << b << ' ' << lane << ' ' << j;
        const float value = static_cast<float>(wanted[j].first);
        ASSERT_TRUE(test::same_bits(&got.distances[at], &value, 1));
      }
    }
  if (all.best_dropped()) {
    ASSERT_EQ(got.dropped_id, all.best_dropped()->second);
    ASSERT_EQ(got.dropped, static_cast<float>(all.best_dropped()->first));
  } else {
    ASSERT_EQ(got.dropped_id, Id(-1));
    ASSERT_EQ(got.dropped, std::numeric_limits<float>::infinity());
  }
}

template <int bins_per_lane, int kept, class Id>
void check_row(const std::vector<float>& row) {
  std::vector<Id> ids(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) ids[i] = static_cast<Id>(i);
  WarpPartialReduce<HostWarp, Id, bins_per_lane, kept> by_place{HostWarp()}, by_id{HostWarp()};
  by_place.add_row(row.data(), static_cast<Id>(row.size()));
  expect_as_reference<bins_per_lane, kept, Id>(Stored<Id>(by_place), row, ids);
  if (testing::Test::HasFatalFailure() || row.empty()) return;
  // Original ids of a permuted row.
  const Permutation order(static_cast<std::int64_t>(row.size()), 3);
  for (Id& id : ids) id = static_cast<Id>(order(id));
  by_id.add_row_with_ids(row.data(), ids.data(), static_cast<Id>(row.size()));
  expect_as_reference<bins_per_lane, kept, Id>(Stored<Id>(by_id), row, ids);
}

class WarpPartialReduceKinds : public testing::TestWithParam<SelectKind> {};

TEST_P(WarpPartialReduceKinds, EqualsThePlainReference) {
  std::uint64_t seed = 1;
  for (int n : {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 500, 1000, 3001}) {
    SCOPED_TRACE(testing::Message() << "n " << n << " seed " << seed);
    const auto row = test::select_values(GetParam(), n, seed++);
    check_row<1, 1, int>(row);
    check_row<1, 2, int>(row);
    check_row<1, 3, int>(row);
    check_row<1, 4, int>(row);
    check_row<2, 1, int>(row);
    check_row<3, 2, int>(row);
    check_row<4, 1, int>(row);
    check_row<4, 4, int>(row);
    check_row<2, 3, std::int64_t>(row);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(AllKinds, WarpPartialReduceKinds,
                         testing::ValuesIn(test::all_select_kinds),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

TEST(WarpPartialReduce, PartsOfARowAndWideIds) {
  const std::vector<float> row = test::select_values(SelectKind::ties, 700, 5);
  constexpr std::int64_t first = std::int64_t{1} << 40;
  std::vector<std::int64_t> ids(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) ids[i] = first + static_cast<std::int64_t>(i);
  WarpPartialReduce<HostWarp, std::int64_t, 2, 2> reduce{HostWarp()};
  reduce.add_row(row.data(), 64 * 5, first);
  reduce.add_row(row.data() + 64 * 5, 700 - 64 * 5, first + 64 * 5);
  expect_as_reference<2, 2, std::int64_t>(Stored<std::int64_t>(reduce), row, ids);
}

// The whole method: a sorted base in permuted order, its candidates and its certificate.
TEST(WarpPartialReduce, AnswersAQueryOverASortedBase) {
  constexpr int n = 5000, k = 10;
  const Permutation order(n, 11);
  std::vector<float> row(n);
  std::vector<int> ids(n);
  for (int i = 0; i < n; ++i) {  // row i has the distance i / 2
    row[static_cast<std::size_t>(order(i))] = static_cast<float>(i / 2);
    ids[static_cast<std::size_t>(order(i))] = i;
  }
  WarpPartialReduce<HostWarp, int, 1, 4> reduce{HostWarp()};
  reduce.add_row_with_ids(row.data(), ids.data(), n);
  const Stored<int> stored(reduce);
  std::vector<KeyedId> results;
  for (std::size_t i = 0; i < stored.ids.size(); ++i)
    if (stored.ids[i] >= 0) results.emplace_back(stored.distances[i], stored.ids[i]);
  keep_smallest(results, k);
  sort_pairs(results);
  for (int i = 0; i < k; ++i) EXPECT_EQ(results[static_cast<std::size_t>(i)], KeyedId(i / 2, i));
  EXPECT_TRUE(certified(results, k, KeyedId(stored.dropped, stored.dropped_id)));
}

}  // namespace
}  // namespace knear
