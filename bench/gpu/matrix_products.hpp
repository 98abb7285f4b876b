// bench/gpu/matrix_products.hpp -- large products through cuBLASLt, as the ceiling of a fused scan.
#pragma once
#include <cstdint>

#include "bench/gpu/library_product.hpp"
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// Times C = A' B for square matrices in fp32 (no tf32), bf16 and int8, each result checked in a few
// places against the host. Adds entries, failures and what was skipped to the report.
void bench_matrix_products(const cuda::Stream& stream, const Deadline& deadline, Report& report);
// Times the product of all queries with all rows, a tenth of the rows at a time, since all products
// together may not fit into memory: the work of an exact search by the library before it selects.
// Requires rows to be a multiple of 10.
void bench_search_product(ProductType type, std::int64_t queries, std::int64_t rows,
                          std::int64_t dim, const cuda::Stream& stream, double budget,
                          Report& report);

}  // namespace knear::bench
