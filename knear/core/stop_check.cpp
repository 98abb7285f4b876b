#include "knear/core/stop_check.hpp"

#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

thread_local StopCheck* of_thread = nullptr;
constexpr auto interval = std::chrono::milliseconds(50);

}  // namespace

StopCheck::StopCheck(std::function<void()> check, Preparing preparing)
    : check_(std::move(check)),
      maker_(this_thread()),
      next_(std::chrono::steady_clock::now() + interval),
      preparing_(preparing),
      before_(std::exchange(of_thread, this)) {}

StopCheck::~StopCheck() { of_thread = before_; }

StopCheck* StopCheck::latest() { return of_thread; }

StopCheck::InTask::InTask(StopCheck* of_giver) : before_(std::exchange(of_thread, of_giver)) {}

StopCheck::InTask::~InTask() { of_thread = before_; }

void stop_if_asked() {
  StopCheck* const check = of_thread;
  if (!check) return;
  if (check->stopped_.load(std::memory_order_relaxed)) throw Cancelled("stopped on request");
  if (check->maker_ != this_thread() || std::chrono::steady_clock::now() < check->next_) return;
  try {
    check->check_();
  } catch (...) {
    check->stopped_ = true;
    throw;
  }
  check->next_ = std::chrono::steady_clock::now() + interval;
}

bool may_prepare() {
  StopCheck* const check = of_thread;
  if (!check || check->preparing_ == Preparing::allowed) return true;
  check->has_refused_ = true;
  return false;
}

}  // namespace knear
