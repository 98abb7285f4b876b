// knear/core/public_call.hpp -- what every public function does around its work.
//
//   Neighbors knn(...) {
//     return detail::public_call([&] { ... });
//   }
//
// The work runs in the default floating-point mode, whatever the caller had set: with denormals
// off, zero queries and the distances of tiny vectors would be others. Where the system has no
// memory for it, it ends in an Error.
#pragma once
#include <new>
#include <utility>

#include "knear/core/threads.hpp"

namespace knear::detail {

// Throws a MemoryBudgetError, for which it takes no memory.
[[noreturn]] void throw_out_of_memory();

// Returns work(). A std::bad_alloc that leaves it becomes a MemoryBudgetError: large arrays throw
// that by themselves, with their size (core/matrix.hpp), the standard library does not.
template <class F>
decltype(auto) public_call(F&& work) {
  const DefaultFloatMode mode;
  try {
    return std::forward<F>(work)();
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  }
}

}  // namespace knear::detail
