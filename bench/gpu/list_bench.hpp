// bench/gpu/list_bench.hpp -- measures searches of inverted lists on a device, beside searches of
// all rows there.
#pragma once
#include "bench/gpu/deadline.hpp"
#include "bench/gpu/report.hpp"

namespace knear::bench {

// IVF1024,Flat and IVF1024,PQ32 of 1,000,000 x 128 floats, 10,000 queries and 1, whole calls, and
// of the first kind how many times as long all rows take, where it finds 0.948 of the neighbours,
// as that which FAISS published did. Compares a few answers with the processor's.
void bench_lists(int device, const Deadline& deadline, Report& report);

}  // namespace knear::bench
