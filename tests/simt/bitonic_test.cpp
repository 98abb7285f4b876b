// The networks on the emulated warp against std::sort, and the emulated warp itself.
#include "knear/simt/bitonic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "knear/simt/candidate.hpp"
#include "knear/simt/host_warp.hpp"

namespace knear {
namespace {

using Pair = std::pair<float, std::int64_t>;
using Item = Candidate<HostWarp, std::int64_t>;

template <int R>
void scatter(const std::vector<Pair>& pairs, Item (&x)[R]) {
  for (int i = 0; i < 32 * R; ++i) {
    x[i / 32].distance.lane[i % 32] = pairs[i].first;
    x[i / 32].id.lane[i % 32] = pairs[i].second;
  }
}

template <int R>
std::vector<Pair> gather(const Item (&x)[R]) {
  std::vector<Pair> pairs;
  for (int i = 0; i < 32 * R; ++i)
    pairs.emplace_back(x[i / 32].distance.lane[i % 32], x[i / 32].id.lane[i % 32]);
  return pairs;
}

// Few distinct distances, so that ids decide often; ids in random order.
std::vector<Pair> random_pairs(int n, int distinct, std::mt19937& random) {
  std::vector<Pair> pairs;
  for (int i = 0; i < n; ++i) pairs.emplace_back(float(int(random() % distinct) - 3), i);
  std::shuffle(pairs.begin(), pairs.end(), random);
  return pairs;
}

template <int R>
void sort_and_merge() {
  SCOPED_TRACE(R);
  std::mt19937 random(R);
  for (int distinct : {1, 2, 7, 1000000})
    for (int repeat = 0; repeat < 4; ++repeat) {
      std::vector<Pair> pairs = random_pairs(32 * R, distinct, random), sorted = pairs;
      std::sort(sorted.begin(), sorted.end());
      Item x[R];
      scatter(pairs, x);
      warp_sort<Order::ascending>(HostWarp(), x);
      ASSERT_EQ(gather(x), sorted);
      warp_sort<Order::descending>(HostWarp(), x);
      ASSERT_EQ(gather(x), std::vector<Pair>(sorted.rbegin(), sorted.rend()));

      // Every bitonic shape: up for `rising` items, then down.
      const auto rising = std::ptrdiff_t(random() % (32 * R + 1));
      std::vector<Pair> bitonic = pairs;
      std::sort(bitonic.begin(), bitonic.begin() + rising);
      std::sort(bitonic.begin() + rising, bitonic.end(), std::greater<>());
      scatter(bitonic, x);
      warp_merge<Order::ascending>(HostWarp(), x);
      ASSERT_EQ(gather(x), sorted);
      scatter(bitonic, x);
      warp_merge<Order::descending>(HostWarp(), x);
      ASSERT_EQ(gather(x), std::vector<Pair>(sorted.rbegin(), sorted.rend()));
    }
}

TEST(Bitonic, SortsAndMergesAllSizes) {
  sort_and_merge<1>();
  sort_and_merge<2>();
  sort_and_merge<8>();
  sort_and_merge<32>();
}

template <int R, int T>
void keep_smallest() {
  SCOPED_TRACE(R * 100 + T);
  std::mt19937 random(R * 100 + T);
  for (int distinct : {1, 5, 1000000}) {
    const std::vector<Pair> all = random_pairs(32 * (R + T), distinct, random);
    std::vector<Pair> best(all.begin(), all.begin() + 32 * R),
        other(all.begin() + 32 * R, all.end());
    std::sort(best.begin(), best.end());
    std::sort(other.begin(), other.end(), std::greater<>());
    Item x[R], y[T];
    scatter(best, x);
    scatter(other, y);
    warp_keep_smallest(HostWarp(), x, y);
    std::vector<Pair> wanted = all;
    std::sort(wanted.begin(), wanted.end());
    wanted.resize(32 * R);
    ASSERT_EQ(gather(x), wanted);
  }
}

TEST(Bitonic, KeepsTheSmallestOfTwoSortedArrays) {
  keep_smallest<1, 1>();
  keep_smallest<1, 2>();
  keep_smallest<1, 8>();
  keep_smallest<2, 1>();
  keep_smallest<4, 4>();
  keep_smallest<8, 4>();
  keep_smallest<32, 8>();
  keep_smallest<4, 16>();
}

TEST(HostWarp, OperationsWorkLaneByLane) {
  const HostWarp w;
  const auto lane = w.lane<int>();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(lane.lane[i], i);
    EXPECT_EQ(w.shuffle_xor(lane, 5).lane[i], i ^ 5);
    EXPECT_EQ(w.broadcast(lane, 17).lane[i], 17);
    EXPECT_EQ((lane + w.fill(3)).lane[i], i + 3);
    EXPECT_EQ((lane - w.fill(3)).lane[i], i - 3);
    EXPECT_EQ((lane & w.fill(6)).lane[i], i & 6);
    EXPECT_EQ(w.lanes_with(8).lane[i], (i & 8) != 0);
    EXPECT_EQ(w.select(lane < w.fill(4), lane, w.fill(-1)).lane[i], i < 4 ? i : -1);
    EXPECT_EQ(((lane <= w.fill(4)) ^ (lane == w.fill(4))).lane[i], i < 4);
    EXPECT_EQ(((lane < w.fill(4)) | !(lane < w.fill(9))).lane[i], i < 4 || i >= 9);
  }
  EXPECT_TRUE(w.any(lane == w.fill(31)));
  EXPECT_FALSE(w.any(lane == w.fill(32)));
  EXPECT_THROW(w.shuffle_xor(lane, 32), std::out_of_range);
  EXPECT_THROW(w.broadcast(lane, -1), std::out_of_range);
}

TEST(HostWarp, MinimumPrefersNumbersToNan) {
  const HostWarp w;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(w.minimum(w.fill(nan), w.fill(2.0f)).lane[3], 2.0f);
  EXPECT_EQ(w.minimum(w.fill(2.0f), w.fill(nan)).lane[3], 2.0f);
  EXPECT_EQ(w.minimum(w.fill(2.0f), w.fill(-1.0f)).lane[3], -1.0f);
}

TEST(HostWarp, LoadsAndStoresTouchOnlyTheCountedLanes) {
  const HostWarp w;
  for (int count : {-5, 0, 1, 31, 32, 40}) {
    const int touched = std::clamp(count, 0, 32);
    std::vector<float> from(touched), to(touched, -1.0f);  // one more would be out of bounds
    for (int i = 0; i < touched; ++i) from[i] = float(i);
    const auto x = w.load(from.data(), count, 9.0f);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(x.lane[i], i < touched ? float(i) : 9.0f);
    w.store(to.data(), count, x);
    EXPECT_EQ(to, from);
  }
}

}  // namespace
}  // namespace knear
