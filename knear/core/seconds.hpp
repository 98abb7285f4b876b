// knear/core/seconds.hpp -- time that has passed, as a number of seconds.
#pragma once
#include <chrono>

namespace knear::detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace knear::detail
