// parallel_for: every task once, nested and from many threads; exceptions; no task of a loop taken
// up by a thread that waits within another, nor by one that waits for a background task.
// run_together: all at once, or none. What is done where the system starts no thread.
#include "knear/core/threads.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"
#include "knear/core/thread_count.hpp"
#include "tests/core/present_cpus.hpp"

namespace knear {
namespace {

using test::present_cpus;

// Not in the form for systems other than Linux (system_posix.cpp).
bool says_where_threads_run() { return detail::cpus_of_thread().has_value(); }

TEST(ThreadCount, IsAskedForOnceExceptWhereTheThreadStaysOnOtherProcessors) {
  const CpuSet all = present_cpus();
  if (!says_where_threads_run() || all.size() < 2) GTEST_SKIP() << "one processor";
  const auto before = *detail::cpus_of_thread();
  const int threads = available_threads();
  detail::CpuMask one;
  one.add(all[0]);
  {
    const detail::ThreadCount outer;
    EXPECT_EQ(available_threads(), threads);
    EXPECT_TRUE(detail::stay_on_cpus(one));
    {
      const detail::ThreadCount inner;
      EXPECT_EQ(available_threads(), threads);
    }
    EXPECT_EQ(available_threads(), threads) << "the outer scope lives on";
    EXPECT_TRUE(detail::stay_on_cpus(before));
    run_on({all[0]}, [] { EXPECT_EQ(available_threads(), 1); });
    EXPECT_EQ(available_threads(), threads);
    EXPECT_TRUE(detail::stay_on_cpus(one));
  }
  EXPECT_EQ(available_threads(), 1);
  {
    const detail::ThreadCount next;
    EXPECT_EQ(available_threads(), 1) << "what an earlier scope counted is forgotten";
  }
  EXPECT_TRUE(detail::stay_on_cpus(before));
}

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

TEST(RunOn, KeepsLoopsOnTheirProcessorsAndOtherLoopsOff) {
  if (!says_where_threads_run()) GTEST_SKIP() << "this form of the system keeps no thread anywhere";
  const CpuSet all = present_cpus();
  if (all.size() < 2) GTEST_SKIP() << "one processor is no two groups";
  get_ready_for_run_on();
  std::atomic<int> wrong = 0;
  const auto check = [&](const CpuSet& wanted) {
    if (present_cpus() != wanted) ++wrong;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  };
  for (int round = 0; round < 20; ++round) {
    parallel_for(4, 4, [&](std::int64_t part) {
      const CpuSet own{all[static_cast<std::size_t>(part) % all.size()]};
      run_on(own, [&] {
        check(own);
        if (!is_within_run_on() || cpu_groups() != std::vector<CpuSet>{own}) ++wrong;
        parallel_for(3, 6, [&](std::int64_t) {
          check(own);
          parallel_for(2, 4, [&](std::int64_t) { check(own); });
        });
        run_together(2, [&](int) { check(own); });
      });
      check(all);
    });
    // Threads that the loops before have started are told to go anywhere again.
    parallel_for(4 + round % 3, 12, [&](std::int64_t) { check(all); });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_THROW(run_on({all[0]}, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(present_cpus(), all);
}

TEST(CpuGroups, AreThoseOfTheSystemOrAskedFor) {
  if (!says_where_threads_run()) {  // one group, of which nobody is named
    EXPECT_EQ(cpu_groups(), std::vector<CpuSet>{{}});
    return;
  }
  const CpuSet all = present_cpus();
  ::unsetenv("KNEAR_CPU_GROUPS");
  CpuSet together;
  for (const CpuSet& group : cpu_groups()) {
    EXPECT_FALSE(group.empty());
    together.insert(together.end(), group.begin(), group.end());
  }
  std::sort(together.begin(), together.end());
  EXPECT_EQ(together, all);
  const auto asked = [](const std::string& text) {
    ::setenv("KNEAR_CPU_GROUPS", text.c_str(), 1);
    return cpu_groups();
  };
  const std::string first = std::to_string(all.front()), last = std::to_string(all.back());
  EXPECT_EQ(asked(first), std::vector<CpuSet>{{all.front()}});
  if (all.size() > 1) {
    EXPECT_EQ(asked(last + ":" + first), (std::vector<CpuSet>{{all.back()}, {all.front()}}));
  }
  for (const std::string& wrong :
       std::vector<std::string>{"", "a", "0:", ":0", "0;1", "3-1", "-1", "0-", "0,,1", "9999999",
                                "0,0", "1023", first + ":" + first})
    EXPECT_THROW(asked(wrong), InvalidArgument) << wrong;
  ::unsetenv("KNEAR_CPU_GROUPS");
}

TEST(CpuGroups, ListsAndParts) {
  EXPECT_EQ(parse_cpu_list("0-3,8"), (CpuSet{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("8,0-3"), (CpuSet{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("0-3 "), CpuSet{});
  const std::vector<CpuSet> groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(cpus_of_part(groups, 0, 1), (CpuSet{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(cpus_of_part(groups, 1, 2), (CpuSet{2, 3, 6, 7}));
  EXPECT_EQ(cpus_of_part(groups, 2, 3), (CpuSet{2, 3, 6, 7}));
  for (int part = 0; part < 8; ++part)
    EXPECT_EQ(cpus_of_part(groups, part, 8), groups[static_cast<std::size_t>(part / 2)]);
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

// Threads of a loop wait for calls that others of them have taken up, while tasks of the loop are
// left: were one to take those up meanwhile, it would be within two tasks at once.
// In a process of its own, since oneTBB says each thing once.
void loops_of_more_threads_than_cores() {
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c)
    callers.emplace_back([c] {
      for (int round = 0; round < 50; ++round)
        parallel_for(available_threads() + 1 + (3 * c + round) % 8, 6, [&](std::int64_t i) {
          if (i == 0) parallel_for(available_threads() + 1 + c, 4, [](std::int64_t) {});
        });
    });
  for (std::thread& caller : callers) caller.join();
  parallel_for(1000, 2000, [](std::int64_t) {});
  std::exit(0);
}

TEST(ParallelFor, PrintsNothingWhereThreadsAreMoreThanCores) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(loops_of_more_threads_than_cores(), testing::ExitedWithCode(0),
              testing::Eq(std::string()));
}

TEST(BackgroundTask, AThreadThatWaitsTakesUpNoTaskOfTheLoopAround) {
  using std::chrono::microseconds, std::chrono::steady_clock;
  static thread_local int depth = 0;
  std::atomic<int> deepest = 0;
  const auto call_and_wait = [&] {
    BackgroundTask task;
    std::atomic<bool> begun = false;
    task.run([&] {
      begun = true;
      std::this_thread::sleep_for(microseconds(200));
    });
    for (const auto start = steady_clock::now(); steady_clock::now() - start < microseconds(200);)
      if (begun) break;
    task.wait();
  };
  for (int round = 0; round < 120; ++round)
    parallel_for(4, 16, [&](std::int64_t i) {
      ++depth;
      if (depth > deepest) deepest = depth;
      if (i % 2 == 0)
        call_and_wait();
      else
        run_isolated(call_and_wait);
      --depth;
    });
  EXPECT_EQ(deepest, 1);
}

void wait_until_taken_up() {
  using std::chrono::seconds, std::chrono::steady_clock;
  bool taken_up = false;
  parallel_for(2, 2, [&](std::int64_t i) {
    if (i == 1) return;
    BackgroundTask task;
    std::atomic<bool> begun = false;
    task.run([&] { begun = true; });
    const auto start = steady_clock::now();
    while (!begun && steady_clock::now() - start < seconds(60)) std::this_thread::yield();
    taken_up = begun;
    task.wait();
  });
  std::exit(taken_up ? 0 : 1);
}

// In a process of its own: after many loops within loops oneTBB's threads look through the arenas
// of all of them first, which takes long on a machine that is busy.
TEST(BackgroundTask, AnIdleThreadOfTheLoopTakesItUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(wait_until_taken_up(), testing::ExitedWithCode(0), "");
}

TEST(BackgroundTask, MakesEveryCallOnceAndGoesOnAfterAnException) {
  for (const auto by : {BackgroundTask::TakenBy::idle_thread, BackgroundTask::TakenBy::own_thread})
    for (const int threads : {1, 2, 5})
      parallel_for(threads, 12, [&](std::int64_t) {
        BackgroundTask task(by);
        task.wait();
        int calls = 0;
        for (int i = 1; i <= 20; ++i) {
          task.run([&, i] {
            ++calls;
            if (i % 5 == 0) throw std::runtime_error(std::to_string(i));
          });
          try {
            task.wait();
            EXPECT_NE(i % 5, 0);
          } catch (const std::runtime_error& e) {
            EXPECT_EQ(e.what(), std::to_string(i));
          }
          EXPECT_EQ(calls, i);
          EXPECT_NO_THROW(task.wait()) << "said twice";
        }
      });
}

TEST(BackgroundTask, AnErrorInTheLoopAroundDropsNoCall) {
  std::atomic<int> calls = 0, waits = 0;
  EXPECT_THROW(parallel_for(4, 8,
                            [&](std::int64_t i) {
                              BackgroundTask task;
                              if (i == 1) throw std::runtime_error("no");
                              for (int j = 0; j < 50; ++j) {
                                task.run([&] { ++calls; });
                                task.wait();
                                ++waits;
                              }
                            }),
               std::runtime_error);
  EXPECT_EQ(calls, waits);
}

TEST(BackgroundTask, TheDestructorWaitsAndThrowsNothing) {
  for (const auto by : {BackgroundTask::TakenBy::idle_thread, BackgroundTask::TakenBy::own_thread})
    parallel_for(3, 30, [&](std::int64_t) {
      std::atomic<int> begun = 0, ended = 0;
      {
        BackgroundTask task(by);
        task.run([&] {
          ++begun;
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          ++ended;
          throw std::runtime_error("no");
        });
      }
      EXPECT_EQ(begun, ended);
      if (by == BackgroundTask::TakenBy::own_thread) {
        EXPECT_EQ(begun, 1);
      }
    });
}

// All threads of the loop wait for the call, so that only a thread of its own can make it.
TEST(BackgroundTask, OfItsOwnThreadBeginsWhereAllOthersAreBusy) {
  parallel_for(2, 4, [&](std::int64_t) {
    BackgroundTask task(BackgroundTask::TakenBy::own_thread);
    std::atomic<bool> begun = false;
    task.run([&] { begun = true; });
    while (!begun) std::this_thread::yield();
    task.wait();
  });
}

TEST(RunTogether, EachBodyMayWaitForAllOthers) {
  for (const int threads : {1, 2, 3, 8, 20}) {
    std::atomic<int> here = 0;
    run_together(threads, [&](int) {
      ++here;
      while (here < threads) std::this_thread::yield();
    });
    EXPECT_EQ(here, threads);
  }
}

TEST(RunTogether, ThrowsOnceAllHaveEnded) {
  std::atomic<int> ended = 0;
  try {
    run_together(5, [&](int thread) {
      std::this_thread::sleep_for(std::chrono::milliseconds(thread));
      ++ended;
      if (thread >= 2) throw std::runtime_error(std::to_string(thread));
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "2");
  }
  EXPECT_EQ(ended, 5);
}

TEST(RunTogether, AsksTheStopCheckOfTheCallerWhichEndsAllBodies) {
  const auto start = std::chrono::steady_clock::now();
  const StopCheck check([] { throw Cancelled("enough"); });
  std::atomic<int> ended = 0;
  const auto work = [&](int) {
    try {
      for (int i = 0; i < 1000; ++i) {
        stop_if_asked();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    } catch (const Cancelled&) {
      ++ended;
      throw;
    }
  };
  EXPECT_THROW(run_together(3, work), Cancelled);
  EXPECT_EQ(ended, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they need the addresses
// In a process of its own, where no thread has left a stack to be used again.
void start_threads_without_memory() {
  const rlimit none{1 << 20, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &none) != 0) std::exit(1);
  BackgroundTask task(BackgroundTask::TakenBy::own_thread);
  bool called = false;
  task.run([&] { called = true; });
  if (called) std::exit(2);
  task.wait();
  if (!called) std::exit(3);
  try {
    run_together(4, [](int) { std::exit(4); });
  } catch (const InvalidArgument& e) {
    std::fputs(e.what(), stderr);
    std::exit(0);
  }
  std::exit(5);
}

TEST(Threads, ThatTheSystemDoesNotStart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_threads_without_memory(), testing::ExitedWithCode(0),
              "threads is 4, but the system starts only 0 at once");
}
#endif

}  // namespace
}  // namespace knear
