// Reporter: each hundredth is told, and in a hundredth that takes long whether to go on is asked.
// StopCheck: asked between the tasks of a loop, in the thread that made it, while it lives.
#include "knear/core/progress.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(Reporter, TellsEachHundredthOnceWhereThatIsQuick) {
  std::vector<double> told;
  const Progress progress = [&](std::string_view stage, double fraction) {
    EXPECT_EQ(stage, "work");
    told.push_back(fraction);
    return true;
  };
  const auto start = Clock::now();
  Reporter reporter(progress, "work", 10'000);
  for (int i = 0; i < 10'000; ++i) reporter.add(1);
  const auto intervals = (Clock::now() - start) / 50ms;
  EXPECT_GE(told.size(), 101u);
  EXPECT_LE(std::ssize(told), 101 + intervals);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_EQ(told.back(), 1);
}

TEST(Reporter, AsksInAHundredthThatTakesLong) {
  std::vector<double> told;
  const Progress progress = [&](std::string_view, double fraction) {
    told.push_back(fraction);
    return told.size() < 4;
  };
  Reporter reporter(progress, "work", 1'000'000);
  int done = 0;
  EXPECT_THROW(
      for (; done < 5'000; ++done) {
        reporter.add(1);
        std::this_thread::sleep_for(1ms);
      },
      Cancelled);
  EXPECT_LT(done, 5'000);  // half of a hundredth
  EXPECT_EQ(told.size(), 4u);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_LT(told.back(), 0.01);
}

// As of Python, where the calling thread alone learns of a signal.
TEST(Reporter, AsksInTheThreadThatMadeItWhateverOthersAdd) {
  const auto caller = std::this_thread::get_id();
  int asked = 0;
  const Progress progress = [&](std::string_view, double) {
    return std::this_thread::get_id() != caller || ++asked < 3;
  };
  Reporter reporter(progress, "work", std::int64_t{1} << 60);
  std::atomic<bool> ended = false;
  std::thread other([&] {
    while (!ended) reporter.add(1);
  });
  int done = 0;
  EXPECT_THROW(
      for (; done < 5'000; ++done) {
        reporter.add(1);
        std::this_thread::sleep_for(1ms);
      },
      Cancelled);
  ended = true;
  other.join();
  EXPECT_LT(done, 5'000);
}

TEST(StopCheck, StopsALoopBetweenItsTasks) {
  for (const int threads : {1, 2, 5}) {
    std::atomic<int> asked = 0, done = 0;
    {
      const StopCheck check([&] {
        if (++asked == 2) throw Cancelled("enough");
      });
      EXPECT_THROW(parallel_for(threads, 100'000,
                                [&](std::int64_t) {
                                  ++done;
                                  std::this_thread::sleep_for(1ms);
                                }),
                   Cancelled);
    }
    EXPECT_LT(done, 50'000) << threads;
    // Gone with its scope; the threads are as good as before.
    done = 0;
    parallel_for(threads, 60, [&](std::int64_t) {
      ++done;
      std::this_thread::sleep_for(1ms);
    });
    EXPECT_EQ(done, 60);
    EXPECT_EQ(asked, 2);
  }
}

// Those that other threads have taken up end too.
TEST(StopCheck, StopsLoopsWithinTasks) {
  const StopCheck check([] { throw Cancelled("enough"); });
  std::atomic<int> done = 0;
  EXPECT_THROW(parallel_for(2, 2,
                            [&](std::int64_t) {
                              parallel_for(1, 10'000, [&](std::int64_t) {
                                ++done;
                                std::this_thread::sleep_for(1ms);
                              });
                            }),
               Cancelled);
  EXPECT_LT(done, 10'000);
}

TEST(StopCheck, TheLatestOfAThreadCountsAndThoseOfOthersDoNot) {
  int outer = 0, inner = 0;
  const auto ask_for = [](std::chrono::milliseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) stop_if_asked();
  };
  const StopCheck first([&] { ++outer; });
  {
    const StopCheck second([&] { ++inner; });
    ask_for(120ms);
    EXPECT_GE(inner, 1);
    EXPECT_EQ(outer, 0);
  }
  const int before = inner;
  std::thread([&] { ask_for(60ms); }).join();
  EXPECT_EQ(outer, 0);
  ask_for(120ms);
  EXPECT_GE(outer, 1);
  EXPECT_LE(outer, 3);  // not at every call
  EXPECT_EQ(inner, before);
}

TEST(StopCheck, RefusesPreparationsInTasksToo) {
  EXPECT_TRUE(may_prepare());
  EXPECT_EQ(StopCheck::preparing(), Preparing::allowed);
  const StopCheck check([] {}, Preparing::refused);
  EXPECT_EQ(StopCheck::preparing(), Preparing::refused);
  EXPECT_FALSE(check.has_refused());
  std::atomic<int> refused = 0;
  parallel_for(3, 10, [&](std::int64_t) { refused += !may_prepare(); });
  EXPECT_EQ(refused, 10);
  EXPECT_TRUE(check.has_refused());
  std::thread([] { EXPECT_TRUE(may_prepare()); }).join();
  const StopCheck inner([] {});
  EXPECT_TRUE(may_prepare());
}

}  // namespace
}  // namespace knear
