// parallel_for: every task once, nested and from many threads; exceptions; a thread that waits
// within a task starts no other task of that loop.
#include "knear/core/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace knear {
namespace {

TEST(ParallelFor, RunsEveryTaskOnceNestedToo) {
  for (const int outer : {1, 2, 5})
    for (const int inner : {1, 2, 3, 5}) {
      std::vector<std::atomic<int>> done(40 * 7);
      parallel_for(outer, 40, [&](std::int64_t i) {
        parallel_for(inner, 3, [&](std::int64_t j) { ++done[i * 7 + j]; });
        parallel_for(inner + 1, 4, [&](std::int64_t j) { ++done[i * 7 + 3 + j]; });
      });
      for (const auto& count : done) ASSERT_EQ(count, 1) << outer << ' ' << inner;
    }
}

TEST(ParallelFor, AThreadThatWaitsStartsNoTaskOfTheOuterLoop) {
  static thread_local int depth = 0;
  std::atomic<int> deepest = 0;
  for (int round = 0; round < 50; ++round)
    parallel_for(4, 16, [&](std::int64_t) {
      ++depth;
      if (depth > deepest) deepest = depth;
      parallel_for(4, 4, [](std::int64_t i) {
        std::this_thread::sleep_for(std::chrono::microseconds(50 * i));
      });
      --depth;
    });
  EXPECT_EQ(deepest, 1);
}

TEST(ParallelFor, ThrowsWhatATaskThrowsAndGoesOn) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(parallel_for(3, 9,
                              [&](std::int64_t i) {
                                parallel_for(2, 2, [&](std::int64_t j) {
                                  if (i == 5 && j == 1) throw std::runtime_error("no");
                                });
                              }),
                 std::runtime_error);
    std::atomic<int> sum = 0;
    parallel_for(3, 9, [&](std::int64_t i) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum, 36);
  }
}

TEST(ParallelFor, FromManyThreadsAtOnce) {
  std::atomic<int> sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t)
    threads.emplace_back([&sum, t] {
      for (int round = 0; round < 50; ++round)
        parallel_for(1 + (t + round) % 2, 4, [&](std::int64_t) { ++sum; });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 12 * 50 * 4);
}

}  // namespace
}  // namespace knear
