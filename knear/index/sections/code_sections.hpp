// knear/index/sections/code_sections.hpp -- segments of codes and the quantisers of rows as
// sections of a .knear file (docs/knear-files.md).
#pragma once
#include <cstddef>

#include "knear/index/index_shape.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/sections/sections.hpp"

namespace knear::detail {

// Adds the quantiser of an index of codes and what refines the codes, trained or not.
void add_quantizers(io::ArchiveWriter& writer, const IndexShape& shape, const State& state);
// Reads them. Dim, metric and transforms of the index are known, and its centroids. Throws
// CorruptFile, naming the section.
void load_quantizers(Sections& in, IndexShape& index, State& state);

// Adds a segment of this number, which has to stay until the file is written.
void add_codes(io::ArchiveWriter& writer, std::size_t number, const Segment& segment);
// Reads it, of an index that is trained. Codes are not read but checked when they are first used.
// Throws CorruptFile, naming the section.
Segment load_codes(Sections& in, std::size_t number, const IndexShape& index, const State& state);

}  // namespace knear::detail
