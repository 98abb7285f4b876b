// knear/index/sections/graph_sections.hpp -- the graph by which an index is searched, as sections
// of a .knear file (docs/knear-files.md).
#pragma once
#include <optional>

#include "knear/index/graph/graph_search.hpp"
#include "knear/index/sections/packed_sections.hpp"

namespace knear::detail {

// Adds the graph over the rows, if it was made, and which were added since. What it refers to has
// to stay until the file is written.
void add_graph(io::ArchiveWriter& writer, const IndexShape& shape,
               const std::optional<GraphOfState::Made>& made);
// The same from a file, without curves of recall; shape: its degree is set, metric and dim are
// known. Nothing if the graph was not made. No number in it can lead a search beyond its arrays.
// Throws CorruptFile, naming the section.
std::optional<GraphOfState::Made> load_graph(Sections& in, IndexShape& shape);

}  // namespace knear::detail
