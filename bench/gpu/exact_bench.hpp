// bench/gpu/exact_bench.hpp -- exact search of a base that is on the device already, compared with
// the ceilings of the device.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// 10,000 queries against a million rows of 128 columns, floats and whole numbers of 8 bits, k = 10
// and 100; and 1 and 32 queries against ten million rows of 96 floats. The data are those of
// make_clusters(). Where the device has products of warpgroups, 10,000 queries are searched for by
// these as well (", warpgroups" in the names), right after the usual kernel; 1 and 32 queries by
// one launch (", one launch"), of which all kernels count as the scan.
//
// The whole of DeviceScan::run() is timed by the processor's clock: queries are coded by the
// processor, copied in, and answers copied out; once the stages within it by events too. The
// ceilings are rates that `report` has already: the faster of the library's product and mma.sync in
// bf16 and int8, and read_bytes_per_second. A few queries of each answer are compared with those of
// the processor.
void bench_exact(int device, const cuda::Stream& stream, double read_bytes_per_second,
                 const Deadline& deadline, Report& report);

// A base in the memory of the processor that is four times as large as what a search may take of
// the device, beside the rate of the bus; and a base that is searched once, copies and coding
// included.
void bench_streamed(int device, const Deadline& deadline, Report& report);

}  // namespace knear::bench
