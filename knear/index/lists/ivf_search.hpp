// knear/index/lists/ivf_search.hpp -- searches of an index that has inverted lists or codes: what
// was asked for, and what is promised of the answer.
#pragma once
#include <span>

#include "knear/index/life/index_state.hpp"
#include "knear/index/options.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// As Index::search() and Index::range_search() before they round, of an index that has inverted
// lists or codes.
// segments: those of the state, in its order; queries after the transforms, vectors: before.
ExactNeighbors search_probed(const State& state, const IndexShape& shape,
                             std::span<const SearchSegment> segments, AnyMatrixView queries,
                             AnyMatrixView vectors, std::int64_t k, const SearchOptions& options,
                             KnnReport* report);
// The same in these lists of each query, none of them twice, no_id behind the others.
ExactNeighbors nearest_in_lists(const State& state, const IndexShape& shape,
                                std::span<const SearchSegment> segments, AnyMatrixView queries,
                                MatrixView<Id> lists, std::int64_t k, const SearchOptions& options,
                                KnnReport* report);
RangeLists range_search_probed(const State& state, const IndexShape& shape,
                               std::span<const SearchSegment> segments, AnyMatrixView queries,
                               AnyMatrixView vectors, double radius, const SearchOptions& options,
                               KnnReport* report);

}  // namespace knear::detail
