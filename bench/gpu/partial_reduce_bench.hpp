// bench/gpu/partial_reduce_bench.hpp -- partial-reduce on a base that is on the device already,
// beside the library's product in bf16.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// 10,000 queries against a million rows of 128 bf16 columns, k = 10, recall 0.95. Data:
// make_clusters(), rounded.
//
// Timed is the whole of ExactSearcher::search() by the clock of the processor, the bins being taken
// there. The ceiling is the rate of the bf16 product that `report` has already. A few queries of
// the answer are compared with those of the processor.
void bench_partial_reduce(int device, const Deadline& deadline, Report& report);

}  // namespace knear::bench
