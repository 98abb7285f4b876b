// knear/index/ivf_search.hpp -- a search of inverted lists: which lists each query probes, when it
// has probed enough, and of which queries the lists' radii prove that nothing nearer is elsewhere.
#pragma once
#include <span>

#include "knear/index/index.hpp"
#include "knear/index/index_state.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// As Index::search() and Index::range_search(), of an index that has inverted lists or codes.
// segments: those of the state, in its order; queries after the transforms, vectors: before.
Neighbors search_probed(const State& state, const IndexShape& shape,
                        std::span<const SearchSegment> segments, AnyMatrixView queries,
                        AnyMatrixView vectors, std::int64_t k, const SearchOptions& options,
                        KnnReport* report);
RangeNeighbors range_search_probed(const State& state, const IndexShape& shape,
                                   std::span<const SearchSegment> segments, AnyMatrixView queries,
                                   AnyMatrixView vectors, double radius,
                                   const SearchOptions& options, KnnReport* report);

// The curve of recall of an index of codes, measured by searching for the vectors whose neighbours
// it knows. Throws InvalidArgument if it knows too few.
RecallCurve calibrate_codes(const State& state, const IndexShape& shape, std::int64_t k,
                            int threads, const Progress& progress);

}  // namespace knear::detail
