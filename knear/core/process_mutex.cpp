#include "knear/core/process_mutex.hpp"

#include <pthread.h>

#include <chrono>

#include "knear/core/stop_check.hpp"

namespace knear::detail {
namespace {

std::atomic<std::uint64_t> forks = 0;  // from the first process to this one
std::atomic<const void*> forker = nullptr;

// A number of this process that its parent does not have.
std::uint64_t process_number() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] {
    ++forks;
    forker = this_thread();
  });
  return forks;
}

}  // namespace

ProcessMutex::ProcessMutex() : current_(new OfProcess{.process = process_number(), .mutex = {}}) {}

// One of the parent stays: some thread may have held it.
ProcessMutex::~ProcessMutex() {
  if (OfProcess* now = current_; now->process == process_number()) delete now;
}

ProcessMutex::OfProcess& ProcessMutex::of_this_process() {
  const std::uint64_t process = process_number();
  OfProcess* now = current_;
  if (now->process == process) return *now;
  if (const void* holder = now->holder; holder && holder == forker) {
    now->process = process;  // its thread lives on in this process
    return *now;
  }
  auto* const own = new OfProcess{.process = process, .mutex = {}};
  // That of the parent stays where it is: a mutex that is locked must not be destroyed.
  if (current_.compare_exchange_strong(now, own)) return *own;
  delete own;
  return *now;
}

void ProcessMutex::lock() {
  OfProcess& own = of_this_process();
  // By the clock that may be set, since the thread sanitiser of GCC 12 does not know the lock by
  // the other one. Setting it back delays a stop, no more.
  if (!own.mutex.try_lock())  // which reads no clock
    while (
        !own.mutex.try_lock_until(std::chrono::system_clock::now() + std::chrono::milliseconds(50)))
      stop_if_asked();
  own.holder.store(this_thread(), std::memory_order_relaxed);
}

bool ProcessMutex::try_lock() {
  OfProcess& own = of_this_process();
  if (!own.mutex.try_lock()) return false;
  own.holder.store(this_thread(), std::memory_order_relaxed);
  return true;
}

void ProcessMutex::unlock() {
  OfProcess& own = *current_;
  own.holder.store(nullptr, std::memory_order_relaxed);
  own.mutex.unlock();
}

}  // namespace knear::detail
