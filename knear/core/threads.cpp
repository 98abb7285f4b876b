#include "knear/core/threads.hpp"

#include <sched.h>
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <xmmintrin.h>

#include <memory>
#include <optional>
#ifdef __SANITIZE_THREAD__
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#endif

#include "knear/core/error.hpp"

namespace knear {

int available_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
  return tbb::info::default_concurrency();
}

int resolve_threads(int threads) {
  if (threads < 0 || threads > 4096)
    throw InvalidArgument("threads must be between 0 (all) and 4096, but is {}", threads);
  return threads == 0 ? available_threads() : threads;
}

#ifdef __SANITIZE_THREAD__
namespace {

void run_on_plain_threads(int threads, std::int64_t tasks,
                          const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    DefaultFloatMode mode;
    try {
      for (std::int64_t task; (task = next++) < tasks;) body(task);
    } catch (...) {
      next = tasks;
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, tasks); ++t)
    others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace
#else
namespace {

// The arena of the calling thread, kept from call to call: threads that have just left one come
// back to it within a microsecond, and to a new one only after a hundred. While it is in use, by a
// body that calls parallel_for itself, there is a new one for each call: a thread that waits for
// the inner loop must not take up tasks of the outer one.
class ArenaInUse {
 public:
  explicit ArenaInUse(int threads) {
    if (kept_.busy) {
      arena_ = &own_.emplace(threads);
      return;
    }
    if (!kept_.arena || kept_.arena->max_concurrency() != threads)
      kept_.arena = std::make_unique<tbb::task_arena>(threads);
    arena_ = kept_.arena.get(), kept_.busy = true;
  }
  ~ArenaInUse() {
    if (!own_) kept_.busy = false;
  }
  ArenaInUse(const ArenaInUse&) = delete;
  ArenaInUse& operator=(const ArenaInUse&) = delete;
  tbb::task_arena& operator*() const { return *arena_; }

 private:
  struct Kept {
    std::unique_ptr<tbb::task_arena> arena;
    bool busy = false;
  };
  static thread_local Kept kept_;
  std::optional<tbb::task_arena> own_;
  tbb::task_arena* arena_;
};
thread_local ArenaInUse::Kept ArenaInUse::kept_;

}  // namespace
#endif

void parallel_for(int threads, std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  threads = resolve_threads(threads);
  if (threads == 1 || tasks <= 1) {
    DefaultFloatMode mode;
    for (std::int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
#ifdef __SANITIZE_THREAD__
  // The sanitiser does not see how oneTBB's threads, which are not compiled with it, wait for one
  // another.
  run_on_plain_threads(threads, tasks, body);
#else
  // oneTBB starts no more threads than cores unless told to, and says so on standard error.
  std::optional<tbb::global_control> more;
  if (threads > tbb::info::default_concurrency())
    more.emplace(tbb::global_control::max_allowed_parallelism, threads);
  // Tasks are handed out in order, one at a time: callers make them large and equal enough.
  const ArenaInUse arena(threads);
  (*arena).execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, tasks, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          DefaultFloatMode mode;
          for (std::int64_t task = range.begin(); task < range.end(); ++task) body(task);
        },
        tbb::simple_partitioner());
  });
#endif
}

DefaultFloatMode::DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
DefaultFloatMode::~DefaultFloatMode() { _mm_setcsr(saved_); }

}  // namespace knear
