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

#include "knear/core/error.hpp"

namespace knear {

// What a search may first make for itself and all that follow: a graph, lists, a curve of recall.
// That takes as long as many searches. A caller with others waiting behind the search refuses it,
// and makes it aside by a search that is allowed to.
enum class Preparing { allowed, refused };

// A search needs what it was refused to make first.
class NotPrepared : public Error {
 public:
  using Error::Error;
};

// While one lives, the thread that made it calls `check` now and then. Once that has thrown, the
// tasks that other threads have taken up for this one end too. Of several, the latest counts.
class StopCheck {
 public:
  // Throws Cancelled to stop.
  explicit StopCheck(std::function<void()> check, Preparing preparing = Preparing::allowed);
  ~StopCheck();
  StopCheck(const StopCheck&) = delete;
  StopCheck& operator=(const StopCheck&) = delete;

  // The one that counts in this thread, or nullptr.
  static StopCheck* latest();
  // Returns what the check of this thread says about preparing; allowed if there is no check.
  static Preparing preparing() { return latest() ? latest()->preparing_ : Preparing::allowed; }
  // Returns true once may_prepare() has returned false. Any thread.
  bool has_refused() const { return has_refused_; }
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
  friend bool may_prepare();
  const std::function<void()> check_;
  const void* const maker_;                     // a thread
  std::chrono::steady_clock::time_point next_;  // the maker's
  std::atomic<bool> stopped_ = false;
  const Preparing preparing_;
  std::atomic<bool> has_refused_ = false;
  StopCheck* const before_;
};

// Calls the check of this thread, if there is one, unless it was called in the last 50 ms. Not to
// be called where an exception would leave something half done.
void stop_if_asked();

// Asked by a search that can answer without making first what others will use too: whether it may
// make it. A search that cannot answer without it throws NotPrepared where that is refused.
bool may_prepare();

}  // namespace knear
