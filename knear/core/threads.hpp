// knear/core/threads.hpp -- the one way in which knear uses several cores.
//
//   parallel_for(threads, tasks, [&](std::int64_t task) { ... });
//
//   BackgroundTask next;
//   next.run([&] { ... });  // beside what this thread does meanwhile
//   next.wait();
//
// On oneTBB; no other file of the library starts a thread. Results must not depend on which thread
// runs a task or in which order: every caller keeps to that. Work runs with the default
// floating-point mode (to nearest, denormals kept), whatever the calling thread had set: some
// libraries of a Python process turn denormals off.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "knear/core/cpu_groups.hpp"
#include "knear/core/this_thread.hpp"

namespace knear {

// The number of threads that this process may use: its CPU affinity, not the machine's size.
int available_threads();

// `threads` itself, or available_threads() for 0. Throws InvalidArgument if negative or above 4096.
int resolve_threads(int threads);

// Calls body(task) for each task in [0, tasks), at most `threads` (0: all) at once, or as many as
// the system starts. The first exception stops the rest and is thrown here: also that of a
// StopCheck of this thread, which is asked between tasks.
void parallel_for(int threads, std::int64_t tasks, const std::function<void(std::int64_t)>& body);

// Calls body. Whatever body waits for, this thread meanwhile takes up no task that was there
// before: no other task of a parallel_for around it.
void run_isolated(const std::function<void()>& body);

// Calls body, which stays on these processors, and so do the loops that it runs
// (core/cpu_groups.hpp). Where the system does not allow that, body runs wherever it lets it.
void run_on(const CpuSet& cpus, const std::function<void()>& body);
// Before a loop some of whose tasks call run_on(): from then on every loop tells its threads where
// to stay, which are those of all users of oneTBB in the process.
void get_ready_for_run_on();
// Whether this thread is within run_on().
bool is_within_run_on();

// Calls body(thread) for each thread in [0, threads), on as many threads of their own, the first of
// which begins once all have been started: a body may wait for the others. Once all have ended,
// throws the exception of the first one that has any. The StopCheck of this thread is asked
// meanwhile, and once it has thrown stop_if_asked() throws in each body. Throws InvalidArgument,
// and calls none, where the system does not start so many threads.
void run_together(int threads, const std::function<void(int)>& body);

// One call at a time that runs beside its owner. A call that no thread has taken up is made by the
// thread that waits for it, which takes up nothing else meanwhile. So every call is made, also
// where all threads are busy or the system has none to give.
class BackgroundTask {
 public:
  enum class TakenBy {
    idle_thread,  // of those that work on the parallel_for around run()
    own_thread,   // which begins at once, however busy the others are
  };
  explicit BackgroundTask(TakenBy taken_by = TakenBy::idle_thread);
  // Waits for a call that is under way. One that nobody has taken up is dropped, and so is what the
  // call throws.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Requires that the call before has been waited for.
  void run(std::function<void()> call);
  // Returns once the call has been made, or throws what it threw. Without a call, returns at once.
  void wait();

 private:
  struct Call;
  std::unique_ptr<Call> call_;
};

// Sets the default floating-point mode for a scope, in the calling thread.
class DefaultFloatMode {
 public:
  DefaultFloatMode();
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace knear
