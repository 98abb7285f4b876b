// bench/gpu/select_checks.hpp -- compares select_k on a device with a partial sort, and its rate
// with that of a copy.
#pragma once
#include "bench/gpu/case_share.hpp"
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// Every kind of row of tests/select/select_cases.hpp, at sizes around the edges, whole and ragged:
// WarpSelect on the emulated warp (no GPU needed), and select_k on the device with any k, smallest
// and largest, best first and by place, few long rows too; captured in
// a CUDA graph. Runs its share of the cases.
void check_select_on_host(const CaseShare& share, Report& report);
void check_select_on_device(const cuda::Stream& stream, const CaseShare& share, Report& report);

// 10,000 rows of 1,000 to 128,000 values at k = 32, 100 and 1000, as in section 6.1 of the paper of
// WarpSelect, and 4000, for radix selection. Rates count each value read once; their ceiling is
// `read_bytes_per_second`. Rows of every answer are checked after the timing.
void bench_select(const cuda::Stream& stream, double read_bytes_per_second,
                  const Deadline& deadline, Report& report);

}  // namespace knear::bench
