// bench/gpu/code_bench.hpp -- search of codes in inverted lists: the fused scan beside the form in
// several passes (Johnson, Douze, Jegou, section 5.3).
#pragma once
#include "bench/gpu/deadline.hpp"
#include "bench/gpu/report.hpp"

namespace knear::bench {

// A million codes of 32 bytes in 1,024 lists, which are on the device already: 1, 100 and 10,000
// queries that probe 16 lists each, k = 10 and 100. The whole of DeviceCodeScan::run() by the
// processor's clock, which writes the vectors that tables are made of and takes the answers. The
// unit is entries looked up. Codes and queries are random, as nothing that is timed depends on
// what they stand for but how often a row is among the best so far. A few queries of each answer
// are compared with the processor's.
void bench_codes(int device, const Deadline& deadline, Report& report);

}  // namespace knear::bench
