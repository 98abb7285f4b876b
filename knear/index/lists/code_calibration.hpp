// knear/index/lists/code_calibration.hpp -- the curve of recall of an index of codes, measured:
// codes cannot tell what is nearest, so it takes vectors whose nearest rows are known otherwise.
//
//   calibrate_codes(state, shape, 10, ...)                        // at first use
//   calibrate_codes_by(state, shape, segments, queries, 10, ...)  // for queries from elsewhere
//
// They are known of some vectors that the index was trained on (index/recall/known_neighbors.hpp),
// and of any queries where the index keeps the vectors themselves to refine codes by.
#pragma once
#include <cstdint>
#include <span>

#include "knear/index/life/index_state.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// By fewer vectors than this nothing is said of all.
inline constexpr std::int64_t least_calibration_queries = 100;

// More codes than that are not refined for each neighbour by a recall, but by what a search is
// told.
inline constexpr std::int64_t most_calibrated_factor = 32;

// Measured by vectors that the index was trained on, or by some of its rows where it keeps vectors
// and those are too few. Throws InvalidArgument if nothing is known; Cancelled.
RecallCurve calibrate_codes(const State& state, const IndexShape& shape, std::int64_t k,
                            int threads, const Progress& progress);

// Measured by some of these queries, at least one, as users have them: each is compared with all
// vectors of the segments (those of the state) that may be found. Requires shape.keeps_vectors().
RecallCurve calibrate_codes_by(const State& state, const IndexShape& shape,
                               std::span<const SearchSegment> segments, AnyMatrixView queries,
                               std::int64_t k, int threads, const Progress& progress);

// What tells queries like those of a curve from others, where there are no lists whose distances
// do: RowCoder::distances_to_few(), ascending.
std::vector<float> keys_without_lists(const State& state, AnyMatrixView queries, int threads);

}  // namespace knear::detail
