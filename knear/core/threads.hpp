// knear/core/threads.hpp -- the one way in which knear uses several cores.
//
//   parallel_for(threads, tasks, [&](std::int64_t task) { ... });
//
// On oneTBB. Results must not depend on which thread runs a task or in which order: every caller
// keeps to that. Work runs with the default floating-point mode (to nearest, denormals kept),
// whatever the calling thread had set: some libraries of a Python process turn denormals off.
#pragma once
#include <cstdint>
#include <functional>

namespace knear {

// The number of threads that this process may use: its CPU affinity, not the machine's size.
int available_threads();

// `threads` itself, or available_threads() for 0. Throws InvalidArgument if negative or above 4096.
int resolve_threads(int threads);

// Calls body(task) for each task in [0, tasks), at most `threads` (0: all) at once. The first
// exception stops the rest and is thrown here.
void parallel_for(int threads, std::int64_t tasks, const std::function<void(std::int64_t)>& body);

// Sets the default floating-point mode for a scope, in the calling thread.
class DefaultFloatMode {
 public:
  DefaultFloatMode();
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  unsigned saved_;
};

}  // namespace knear
