// knear/core/stop_check.hpp -- how a long call is stopped wherever it is, in stages that report no
// progress too.
//
//   const StopCheck check([&] { if (asked_to_stop()) throw Cancelled("stopped on request"); });
//   knn(...);  // asks now and then, between its tasks
//
// Progress tells how far a call is, and only some stages know that. This asks no more than whether
// to go on: parallel_for() does after each task in the thread that made the check, and so do long
// loops outside of one, by stop_if_asked(). At most every 50 ms, so it costs nothing; work that
// comes in parts of 0.1 s or less ends within half a second.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>

namespace knear {

// While one lives, the thread that made it calls `check` now and then. Once that has thrown, the
// tasks that other threads have taken up for this one end too. Of several, the latest counts.
class StopCheck {
 public:
  // Throws Cancelled to stop.
  explicit StopCheck(std::function<void()> check);
  ~StopCheck();
  StopCheck(const StopCheck&) = delete;
  StopCheck& operator=(const StopCheck&) = delete;

  // The one that counts in this thread, or nullptr.
  static StopCheck* latest();
  // For the time of a task that another thread has given: its check counts here.
  class InTask {
   public:
    explicit InTask(StopCheck* of_giver);
    ~InTask();
    InTask(const InTask&) = delete;
    InTask& operator=(const InTask&) = delete;

   private:
    StopCheck* const before_;
  };

 private:
  friend void stop_if_asked();
  const std::function<void()> check_;
  const void* const maker_;                     // a thread
  std::chrono::steady_clock::time_point next_;  // the maker's
  std::atomic<bool> stopped_ = false;
  StopCheck* const before_;
};

// Calls the check of this thread, if there is one, unless it was called in the last 50 ms. Not to
// be called where an exception would leave something half done.
void stop_if_asked();

}  // namespace knear
