// knear/index/graph/row_graph_building.hpp -- the graph that a search walks on, made of the rows of
// an index (index/graph/row_graph.hpp).
#pragma once
#include <cstdint>
#include <memory>

#include "knear/core/progress.hpp"
#include "knear/index/graph/row_graph.hpp"
#include "knear/index/life/index_state.hpp"

namespace knear::detail {

// Fewer rows are compared, all of them, in less time than a walk takes.
inline constexpr std::int64_t least_rows_in_graph = 1024;

// The graph of the live rows of a state whose rows are vectors, of which there is one at least. Of
// 65,536 rows and more neighbours are found by inverted lists with a recall of 0.95, of fewer all
// are. The same for the same rows and ids on every machine, whatever the history and the threads.
// Memory while it works: a copy of the vectors, beside their packed codes and the graph. Throws
// MemoryBudgetError; Cancelled.
std::shared_ptr<const RowGraph> build_row_graph(const State& state, const IndexShape& shape,
                                                int threads, const Progress& progress);

}  // namespace knear::detail
