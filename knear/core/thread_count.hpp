// knear/core/thread_count.hpp -- asks the system once a call how many threads the process may use.
//
//   const detail::ThreadCount once;   // around a search
//   resolve_threads(0);               // asks
//   resolve_threads(0);               // does not ask again
//
// A short search resolves its threads in each of its steps, and the system takes as long to answer
// as the step takes.
#pragma once

namespace knear::detail {

// While one lives, available_threads() gives the same number in the thread that made it, except
// within run_on(), where the thread stays on other processors. Scopes may be nested.
class ThreadCount {
 public:
  ThreadCount();
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
};

}  // namespace knear::detail
