// knear/scan/prefix/prefix_self_join.hpp -- the scan in two stages of a base against itself: each
// pair of rows is scored once, for both.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/prefix/prefix_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// Told which rows of an answer are as they will stay.
using FinishedRows = std::function<void(std::span<const Id> rows)>;

// The k nearest of rows `which` of job.base, which are job.queries, among all its rows: each row
// among its own k, or copies of it with smaller ids. Each pair is scored once. Rows with the bytes
// of one in `which` must be in it too. No row may be forbidden, and no upper bounds be known.
// False, with `out` untouched or partly filled, where the prefix rules out too little. `finished`
// is told from one thread, each row once. `prefixes` [rows x columns]: those of the rows, if they
// are at hand; or no rows, as for ip.
bool self_join_with_prefix(const PrefixBase& base, const ScanJob& job,
                           const std::vector<std::int64_t>& which, ExactNeighbors& out,
                           ScanStats& stats, const Progress& progress,
                           const FinishedRows& finished = {}, MatrixView<float> prefixes = {});
// What that takes beside its arguments, at most.
std::int64_t self_join_bytes(std::int64_t rows, std::int64_t dim, std::int64_t k, int threads);
// Rows whose prefixes are made at a time.
inline constexpr std::int64_t self_join_block = 65536;

}  // namespace knear::detail
