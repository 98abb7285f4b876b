// knear/index/lists/recall_calibration.hpp -- the curve of recall against probes of an index,
// measured.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// By so many rows of an index recall is calibrated at most, and by so many queries of a batch.
inline constexpr std::int64_t most_rows_sampled = 2000, most_queries_sampled = 500;

// All live rows of a state.
std::vector<SearchSegment> live_segments(const State& state);

// Rows of a state for trial, `most` or all: by a hash of their ids, so that neither their order nor
// history matters.
struct DrawnRow {
  Id id;
  std::size_t segment;
  std::int64_t row;
};
std::vector<DrawnRow> drawn_rows(const State& state, std::int64_t most);

// Numbers of the queries of a batch by which it is calibrated, ascending: drawn by chance, since
// batches have periods (each vector followed by its altered copies), and the same every time.
std::vector<std::int64_t> queries_to_calibrate(std::int64_t queries);

// Whether searches to come go by a curve: how near what they find has to be is noted for these.
enum class CurveUse { once, kept };

// By these queries, each of which is searched for exactly among the rows of the segments (those of
// the state). own: of each query the id under which it is among the rows, which is left out of its
// answer; empty: none is.
RecallCurve calibrate(const State& state, Metric metric, std::span<const SearchSegment> segments,
                      std::int64_t k, AnyMatrixView queries, std::span<const Id> own, CurveUse use,
                      int threads, const Progress& progress);

// By rows of the state itself: 2,000, the same ones whatever the history, or all.
RecallCurve calibrate_by_rows(const State& state, Metric metric, std::int64_t k, int threads,
                              const Progress& progress, CurveUse use = CurveUse::kept);

}  // namespace knear::detail
