// bench/gpu/tiled_bench.hpp -- search by cuBLASLt's products (tiled_search.hpp) beside the product
// alone.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// 10,000 queries against a million rows of 128 floats, k = 10 and 100, base and queries on the
// device; make_clusters(). By products in fp32, as the paper has it: not exact, since keys are
// rounded; and in bf16 and int8, of which more than k rows are kept and, in the same time, measured
// in float64. Each with tiles of half of the second-level cache and of 16 times the cache. The
// ceiling is the library's product of all queries with all rows in the same type, without
// selection.
//
// Notes say what the library takes for the tiles alone, what share of the queries is certain
// (tiled_codes.hpp), and of 200 queries the recall, by ids and by distance, against knn() on the
// processor; a certain query that is wrong is a failure.
void bench_tiled_search(const cuda::Stream& stream, const Deadline& deadline, Report& report);

// Small shapes, tiles that end within the base and the queries: what is certain is exact, and the
// recall is what rounding leaves.
void check_tiled_search(const cuda::Stream& stream, Report& report);

}  // namespace knear::bench
