// knear/core/spin_lock.hpp -- a lock for what takes a few instructions and is rarely wanted twice
// at once: a byte that can lie beside what it guards.
//
//   SpinLock lock;
//   std::lock_guard guard(lock);
//
// Who waits looks again and again, and gives its processor to others once that takes longer than
// the work of a holder that runs.
#pragma once
#include <sched.h>

#include <atomic>

namespace knear::detail {

class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) wait();
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  void wait() const {
    for (int i = 0; i < 256; ++i)
      if (!locked_.load(std::memory_order_relaxed)) return;
    sched_yield();
  }

  std::atomic<bool> locked_ = false;
};

}  // namespace knear::detail
