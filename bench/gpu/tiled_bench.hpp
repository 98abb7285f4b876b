// bench/gpu/tiled_bench.hpp -- search by cuBLASLt's products (tiled_search.hpp), compared with the
// product alone.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// 10,000 queries against a million rows of 128 floats, k = 10 and 100, base and queries on the
// device; the data are those of make_clusters(). Products are in fp32, as in the paper: not exact,
// since keys are rounded; and in bf16 and int8, where more than k rows are kept and, in the same
// time, measured in float64. Each with tiles of half of the second-level cache and of 16 times the
// cache. The ceiling is the library's product of all queries with all rows in the same type,
// without selection.
//
// Notes give the time of the tiles alone, the share of queries that is certain (tiled_codes.hpp),
// and for 200 queries the recall, by ids and by distance, against knn() on the processor; a certain
// query that is wrong is a failure.
void bench_tiled_search(const cuda::Stream& stream, const Deadline& deadline, Report& report);

// Small shapes, tiles that end within the base and the queries: certain answers must be exact, and
// the recall must be within what rounding allows.
void check_tiled_search(const cuda::Stream& stream, Report& report);

}  // namespace knear::bench
