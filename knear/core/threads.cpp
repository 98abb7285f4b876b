#include "knear/core/threads.hpp"

#define TBB_PREVIEW_ISOLATED_TASK_GROUP 1  // a wait for one's own tasks alone
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"
#include "knear/core/thread_count.hpp"

namespace knear {

namespace {

thread_local int scopes = 0;   // of ThreadCount that live in this thread
thread_local int counted = 0;  // threads; 0: the system was not asked in these scopes
thread_local bool within_run_on = false;

int count_threads() {
  const auto cpus = detail::cpus_of_thread();
  return cpus ? std::max(1, cpus->count()) : tbb::info::default_concurrency();
}

}  // namespace

detail::ThreadCount::ThreadCount() {
  if (scopes++ == 0) counted = 0;
}
detail::ThreadCount::~ThreadCount() { --scopes; }

int available_threads() {
  if (scopes == 0 || within_run_on) return count_threads();
  if (counted == 0) counted = count_threads();
  return counted;
}

namespace {

void check_threads(int threads) {
  if (threads < 0 || threads > 4096)
    throw InvalidArgument("threads must be between 0 (all) and 4096, but is {}", threads);
}

}  // namespace

int resolve_threads(int threads) {
  check_threads(threads);
  return threads == 0 ? available_threads() : threads;
}

namespace {

// As run_together(), but returns how many threads there were where the system starts fewer.
int start_together(int threads, const std::function<void(int)>& body) {
  enum class Start { later, now, never };
  std::atomic<Start> start = Start::later;
  std::vector<std::exception_ptr> failures(threads);
  std::exception_ptr stopped;
  std::mutex mutex;
  std::condition_variable one_ended;
  int running = threads;
  StopCheck* const check = StopCheck::latest();
  std::vector<std::thread> started;
  started.reserve(failures.size());
  const auto end = [&](Start how) {
    start = how;
    start.notify_all();
    for (std::thread& thread : started) thread.join();
  };
  try {
    for (int t = 0; t < threads; ++t)
      started.emplace_back([&, t] {
        start.wait(Start::later);
        if (start == Start::never) return;
        const DefaultFloatMode mode;
        const StopCheck::InTask in_task(check);
        try {
          body(t);
        } catch (...) {
          failures[t] = std::current_exception();
        }
        std::lock_guard lock(mutex);
        --running;
        one_ended.notify_one();
      });
  } catch (const std::system_error&) {
    end(Start::never);
    return static_cast<int>(started.size());
  } catch (...) {
    end(Start::never);
    throw;
  }
  start = Start::now;
  start.notify_all();
  if (check) {
    std::unique_lock lock(mutex);
    const auto all_ended = [&] { return running == 0; };
    while (!one_ended.wait_for(lock, std::chrono::milliseconds(50), all_ended)) {
      lock.unlock();
      try {
        stop_if_asked();
      } catch (...) {
        stopped = std::current_exception();
      }
      lock.lock();
    }
  }
  end(Start::now);
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  if (stopped) std::rethrow_exception(stopped);
  return threads;
}

// A task of parallel_for() in any thread. check: that of the thread that called it.
void run_task(const std::function<void(std::int64_t)>& body, std::int64_t task, StopCheck* check) {
  const StopCheck::InTask in_task(check);
  body(task);
  stop_if_asked();
}

}  // namespace

#ifdef __SANITIZE_THREAD__
namespace {

void run_on_plain_threads(int threads, std::int64_t tasks,
                          const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  StopCheck* const check = StopCheck::latest();
  const auto work = [&] {
    DefaultFloatMode mode;
    try {
      for (std::int64_t task; (task = next++) < tasks;) run_task(body, task, check);
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

// As many of `threads` as the system starts, the calling one among them. oneTBB ends the process
// where one of its threads cannot start the next, so that all are started once before it does.
int startable(int threads) {
  static std::mutex mutex;
  static std::atomic<int> most = 1;
  if (threads <= most) return threads;
  std::lock_guard lock(mutex);
  if (threads <= most) return threads;
  const int started = 1 + start_together(threads - 1, [](int) {});
  if (started == threads) most = threads;
  return started;
}

// Has oneTBB start `threads` threads, which unless told to it does up to the number of cores, and
// returns how many of them it gives an arena: to ask for more makes it print. Of several limits
// that stand at once the smallest counts, so the process has one that is never lowered, instead of
// one for each loop.
int raise_limit(int threads) {
  using Limit = tbb::global_control;
  const int cores = tbb::info::default_concurrency();
  if (threads > cores) {
    static std::mutex mutex;
    static int most = 0;
    static Limit* limit = nullptr;  // never destroyed: oneTBB may go first
    std::lock_guard lock(mutex);
    if (threads > most) {
      const auto raised = new Limit(Limit::max_allowed_parallelism, std::size_t(threads) + 1);
      delete std::exchange(limit, raised);
      most = threads;
    }
  }
  // What it says is one too many where it has come to its own end, some 256.
  const auto active = static_cast<int>(Limit::active_value(Limit::max_allowed_parallelism));
  return std::min(threads, active > cores ? active - 1 : active);
}

// The processors that a thread of oneTBB was last told to stay on; nothing: it was never told.
thread_local std::optional<detail::CpuMask> told;
// Whether run_on() was ever called: until then no thread has to be told where to stay.
std::atomic<bool> places_matter = false;

void stay_on(const detail::CpuMask& cpus) {
  if (told != cpus && detail::stay_on_cpus(cpus)) told = cpus;
}

// The arena of the calling thread, kept from call to call: threads that have just left one come
// back to it within a microsecond, and to a new one only after a hundred. While it is in use, by a
// body that calls parallel_for itself, there is a new one for each call: a thread that waits for
// the inner loop must not take up tasks of the outer one.
class ArenaInUse {
 public:
  explicit ArenaInUse(int threads) {
    if (cached_.busy) {
      arena_ = &own_.emplace(threads);
      return;
    }
    if (!cached_.arena || cached_.arena->max_concurrency() != threads)
      cached_.arena = std::make_unique<tbb::task_arena>(threads);
    arena_ = cached_.arena.get(), cached_.busy = true;
  }
  ~ArenaInUse() {
    if (!own_) cached_.busy = false;
  }
  ArenaInUse(const ArenaInUse&) = delete;
  ArenaInUse& operator=(const ArenaInUse&) = delete;
  tbb::task_arena& operator*() const { return *arena_; }

 private:
  struct CachedArena {
    std::unique_ptr<tbb::task_arena> arena;
    bool busy = false;
  };
  static thread_local CachedArena cached_;
  std::optional<tbb::task_arena> own_;
  tbb::task_arena* arena_;
};
thread_local ArenaInUse::CachedArena ArenaInUse::cached_;

}  // namespace
#endif

void parallel_for(int threads, std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  check_threads(threads);
  if (tasks > 1) {  // one task needs no other thread, whatever there is
    threads = resolve_threads(threads);
#ifndef __SANITIZE_THREAD__
    threads = startable(threads);
#endif
  }
  if (threads == 1 || tasks <= 1) {
    DefaultFloatMode mode;
    StopCheck* const check = StopCheck::latest();
    for (std::int64_t task = 0; task < tasks; ++task) run_task(body, task, check);
    return;
  }
#ifdef __SANITIZE_THREAD__
  // The sanitiser does not see how oneTBB's threads, which are not compiled with it, wait for one
  // another.
  run_on_plain_threads(threads, tasks, body);
#else
  // Tasks are handed out in order, one at a time: callers make them large and equal enough.
  const ArenaInUse arena(raise_limit(threads));
  StopCheck* const check = StopCheck::latest();
  // Threads that help stay where this one stays. Each is told when it takes up a task, never when
  // it is done: threads start where the one was that started them. (An observer of an arena would
  // be told once for each thread, but oneTBB forgets 40 bytes of some of them.)
  const auto cpus = places_matter ? detail::cpus_of_thread() : std::nullopt;
  const std::thread::id caller = std::this_thread::get_id();
  (*arena).execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, tasks, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          if (cpus && std::this_thread::get_id() != caller) stay_on(*cpus);
          DefaultFloatMode mode;
          for (std::int64_t task = range.begin(); task < range.end(); ++task)
            run_task(body, task, check);
        },
        tbb::simple_partitioner());
  });
#endif
}

bool is_within_run_on() { return within_run_on; }

void get_ready_for_run_on() {
#ifndef __SANITIZE_THREAD__
  // oneTBB counts the processors of the thread that asks first.
  [[maybe_unused]] static const int all = tbb::info::default_concurrency();
  places_matter = true;
#endif
}

void run_on(const CpuSet& cpus, const std::function<void()>& body) {
  detail::CpuMask inside;
  for (const int cpu : cpus) inside.add(cpu);
  const auto stay = [](const detail::CpuMask& set) {
    if (!detail::stay_on_cpus(set)) return false;
#ifndef __SANITIZE_THREAD__
    told = set;
#endif
    return true;
  };
  get_ready_for_run_on();
  const auto before = detail::cpus_of_thread();
  if (!before || !stay(inside)) return body();
  struct Back {
    const decltype(stay)& to;
    const detail::CpuMask& before;
    const bool was_within = std::exchange(within_run_on, true);
    ~Back() {
      within_run_on = was_within;
      to(before);
    }
  } const back{stay, *before};
  body();
}

void run_isolated(const std::function<void()>& body) {
#ifdef __SANITIZE_THREAD__
  body();  // plain threads take up nothing while they wait
#else
  tbb::this_task_arena::isolate(body);
#endif
}

void run_together(int threads, const std::function<void(int)>& body) {
  const int started = start_together(threads, body);
  if (started < threads)
    throw InvalidArgument("threads is {}, but the system starts only {} at once", threads, started);
}

struct BackgroundTask::Call {
  std::function<void()> body;  // empty once somebody has taken it up
  std::exception_ptr failure;
  std::thread own;
#ifndef __SANITIZE_THREAD__
  // A context of its own: an error elsewhere in the loop around does not drop the call.
  tbb::task_group_context context{tbb::task_group_context::isolated};
  std::optional<tbb::isolated_task_group> idle;
#endif

  void make() {
    const DefaultFloatMode mode;
    try {
      std::exchange(body, nullptr)();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  void wait() {
    if (own.joinable()) own.join();
#ifndef __SANITIZE_THREAD__
    if (idle) idle->wait();
#endif
  }
};

BackgroundTask::BackgroundTask([[maybe_unused]] TakenBy taken_by)
    : call_(std::make_unique<Call>()) {
#ifndef __SANITIZE_THREAD__
  if (taken_by == TakenBy::idle_thread) call_->idle.emplace(call_->context);
#endif
}

BackgroundTask::~BackgroundTask() {
#ifndef __SANITIZE_THREAD__
  if (call_->idle) call_->idle->cancel();
#endif
  call_->wait();
}

void BackgroundTask::run(std::function<void()> call) {
  assert(!call_->body && !call_->own.joinable());
  call_->body = std::move(call);
#ifndef __SANITIZE_THREAD__
  if (call_->idle) {
    const int threads = tbb::this_task_arena::max_concurrency();
    if (startable(threads) == threads)
      call_->idle->run([this_call = call_.get()] { this_call->make(); });
    return;
  }
#endif
  try {
    call_->own = std::thread([this_call = call_.get()] { this_call->make(); });
  } catch (const std::system_error&) {  // no thread: wait() makes the call
  }
}

void BackgroundTask::wait() {
  call_->wait();
  if (call_->body) call_->make();
  if (const auto failure = std::exchange(call_->failure, nullptr)) std::rethrow_exception(failure);
}

DefaultFloatMode::DefaultFloatMode() : saved_(detail::float_mode()) {
  detail::set_float_mode(detail::default_float_mode());
}
DefaultFloatMode::~DefaultFloatMode() { detail::set_float_mode(saved_); }

}  // namespace knear
