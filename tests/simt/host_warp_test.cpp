// The emulated warp: every operation lane by lane, and what it must refuse.
#include "knear/simt/host_warp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

namespace knear {
namespace {

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
