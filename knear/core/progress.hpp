// knear/core/progress.hpp -- how long-running work reports its progress, and how it is cancelled.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

#include "knear/core/error.hpp"
#include "knear/core/this_thread.hpp"

namespace knear {

// Called now and then during long work, never by two threads at once, with what is being done
// ("pack base", "search") and the fraction done in [0, 1]. Returning false asks the work to stop:
// it ends with the exception Cancelled.
using Progress = std::function<bool(std::string_view stage, double fraction)>;

// Adds up the work done by many threads and reports it: each hundredth of it, and every 50 ms, as a
// hundredth may take long, in which nobody could stop it. That second report is for the thread that
// made the Reporter alone: what runs in others would take its turns, and a callback may be able to
// learn in the calling thread only that it is to stop, as one of Python is.
class Reporter {
 public:
  // Keeps the reference; an empty Progress is never called.
  Reporter(const Progress& progress, std::string_view stage, std::int64_t total)
      : progress_(progress), stage_(stage), total_(std::max<std::int64_t>(1, total)) {}

  // Throws Cancelled if the callback asks to stop.
  void add(std::int64_t done) {
    if (!progress_) return;
    std::lock_guard lock(mutex_);
    done_ += done;
    const std::int64_t percent = done_ * 100 / total_;
    const bool own = this_thread() == maker_;
    if (percent == last_ && !(own && Clock::now() >= next_)) return;
    last_ = percent;
    if (!progress_(stage_, static_cast<double>(done_) / static_cast<double>(total_)))
      throw Cancelled("{}: stopped on request", stage_);
    if (own) next_ = Clock::now() + interval;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto interval = std::chrono::milliseconds(50);

  const Progress& progress_;
  std::string_view stage_;
  std::int64_t total_, done_ = 0, last_ = -1;
  const void* const maker_ = this_thread();
  Clock::time_point next_ = Clock::now() + interval;
  std::mutex mutex_;
};

}  // namespace knear
