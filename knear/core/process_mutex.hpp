// knear/core/process_mutex.hpp -- a mutex for work that takes long, which a child process and
// Ctrl-C do not have to wait for.
//
//   ProcessMutex making;
//   std::lock_guard one(making);  // may throw what a StopCheck of this thread throws
//
// fork() copies the calling thread alone. A std::mutex that another thread holds at that moment is
// locked for ever in the child. This one is free there, and stays locked if the thread that forked
// holds it. So what it guards must be whole at any moment: make the new state aside, then publish
// it.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "knear/core/this_thread.hpp"

namespace knear::detail {

class ProcessMutex {
 public:
  ProcessMutex();
  ~ProcessMutex();
  ProcessMutex(const ProcessMutex&) = delete;
  ProcessMutex& operator=(const ProcessMutex&) = delete;

  // Waits, and calls stop_if_asked() every 50 ms meanwhile (core/stop_check.hpp).
  void lock();
  bool try_lock();
  void unlock();
  bool is_held_by_this_thread() { return of_this_process().holder == this_thread(); }

 private:
  struct OfProcess {
    std::atomic<std::uint64_t> process;
    std::timed_mutex mutex;
    std::atomic<const void*> holder = nullptr;  // a thread, which alone looks for itself
  };
  OfProcess& of_this_process();

  std::atomic<OfProcess*> current_;
};

}  // namespace knear::detail
