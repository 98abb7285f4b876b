// bench/gpu/timing.hpp -- how long the device takes, measured with its own events.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/deadline.hpp"
#include "bench/gpu/report.hpp"
#include "knear/core/error.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/cuda/stream.hpp"

namespace knear::bench {

// A queue of the current device on `stream`, for the memory of one bench: it goes back to the
// device once the queue and its arrays are gone and the stream is done.
inline cuda::Queue queue_on(const cuda::Stream& stream) {
  int device = 0;
  KNEAR_CHECK(cudaGetDevice(&device));
  return cuda::Queue(device, 0, stream.get());
}

struct Timing {
  double seconds = 0, spread = 0;  // median; (slowest - fastest) / median
};

// Median of 5 to 50 runs of `work` (given the number of the run, so that it can rotate its
// buffers), after two that are not counted; stops early when `budget` seconds are over, but never
// before five runs.
inline Timing time_runs(const cuda::Stream& stream, double budget,
                        const std::function<void(int run)>& work) {
  cuda::Event begin, end;
  std::vector<double> seconds;
  const Deadline deadline(budget);
  for (int run = -2; run < 50 && (run < 5 || deadline.left() > 0); ++run) {
    begin.record(stream);
    work(run + 2);
    end.record(stream);
    if (const double taken = end.seconds_since(begin); run >= 0) seconds.push_back(taken);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds.back() - seconds.front()) / median};
}

}  // namespace knear::bench
