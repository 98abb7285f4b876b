// bench/gpu/matrix_products.hpp -- large products through cuBLASLt, as the ceiling of a fused scan.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// Times C = A' B for square matrices in fp32 (no tf32), bf16 and int8, each result checked in a few
// places against the host. Adds entries, failures and what was skipped to the report.
void bench_matrix_products(const cuda::Stream& stream, const Deadline& deadline, Report& report);

}  // namespace knear::bench
