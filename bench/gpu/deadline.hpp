// bench/gpu/deadline.hpp -- the time that is left.
#pragma once
#include <chrono>

namespace knear::bench {

// For all tests or benches, shared out as they come.
class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  double left() const { return std::chrono::duration<double>(end_ - Clock::now()).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

}  // namespace knear::bench
