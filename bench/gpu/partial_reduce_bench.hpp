// bench/gpu/partial_reduce_bench.hpp -- partial-reduce on a base that is on the device already,
// compared with the library's product in bf16.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// 10,000 queries against a million rows of 128 bf16 columns, k = 10, recall 0.95. The data are
// those of make_clusters(), rounded.
//
// The whole of ExactSearcher::search() is timed by the processor's clock, as the processor takes
// the bins. The ceiling is the rate of the bf16 product that `report` has already. A few queries of
// the answer are compared with those of the processor.
void bench_partial_reduce(int device, const Deadline& deadline, Report& report);

}  // namespace knear::bench
