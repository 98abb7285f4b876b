// knear/index/form/centroid_sections.hpp -- the centroids of inverted lists as sections of a .knear
// file (docs/knear-files.md), and the index that finds them, whose sections are those of any index.
#pragma once
#include "knear/index/form/form.hpp"
#include "knear/index/sections/sections.hpp"

namespace knear::detail {

// Adds the number of lists and their centroids, if they are trained.
void add_centroids(io::ArchiveWriter& writer, const IndexShape& shape, const State& state);
// Reads them. Dim, metric and transforms of the index are known. Throws CorruptFile, naming the
// section.
void load_centroids(Sections& in, IndexShape& index, State& state, MakeCentroidIndex make);

}  // namespace knear::detail
