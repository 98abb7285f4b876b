// ProcessMutex: one holder at a time; free in a child of fork() unless the thread that forked holds
// it; a thread that waits hears that it is to stop.
#include "knear/core/process_mutex.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "knear/core/stop_check.hpp"

namespace knear::detail {
namespace {

// The exit status of a child process that calls f(), which starts no thread.
int status_of_child(const std::function<int()>& f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Calls f() while another thread holds the mutex.
void while_held(ProcessMutex& mutex, const std::function<void()>& f) {
  std::atomic<bool> held = false, done = false;
  std::thread holder([&] {
    std::lock_guard lock(mutex);
    held = true, held.notify_one();
    done.wait(false);
  });
  held.wait(false);
  f();
  done = true, done.notify_one();
  holder.join();
}

TEST(ProcessMutex, HasOneHolderAtATime) {
  ProcessMutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        std::lock_guard lock(mutex);
        ++count;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
  EXPECT_FALSE(mutex.is_held_by_this_thread());
  std::lock_guard lock(mutex);
  EXPECT_TRUE(mutex.is_held_by_this_thread());
}

TEST(ProcessMutex, IsFreeInAChildWhoseParentHasAThreadThatHoldsIt) {
  ProcessMutex mutex;
  while_held(mutex, [&] {
    EXPECT_FALSE(mutex.try_lock());
    EXPECT_EQ(status_of_child([&] {
                if (mutex.is_held_by_this_thread() || !mutex.try_lock()) return 1;
                if (!mutex.is_held_by_this_thread()) return 2;
                mutex.unlock();
                // The same in a child of the child.
                return status_of_child([&] {
                  std::lock_guard lock(mutex);
                  return mutex.is_held_by_this_thread() ? 0 : 3;
                });
              }),
              0);
    EXPECT_FALSE(mutex.try_lock());
  });
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

TEST(ProcessMutex, StaysLockedInAChildOfTheThreadThatHoldsIt) {
  ProcessMutex mutex;
  std::unique_lock lock(mutex);
  EXPECT_EQ(status_of_child([&] {
              if (!mutex.is_held_by_this_thread() || mutex.try_lock()) return 1;
              lock.unlock();
              return mutex.try_lock() ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(mutex.is_held_by_this_thread());
}

TEST(ProcessMutex, AThreadThatWaitsIsStopped) {
  ProcessMutex mutex;
  while_held(mutex, [&] {
    int asked = 0;
    const StopCheck check([&] {
      if (++asked == 2) throw std::runtime_error("stop");
    });
    EXPECT_THROW(mutex.lock(), std::runtime_error);
    EXPECT_EQ(asked, 2);
  });
  std::lock_guard lock(mutex);  // which the thread that was stopped has not got
}

}  // namespace
}  // namespace knear::detail
