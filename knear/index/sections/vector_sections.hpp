// knear/index/sections/vector_sections.hpp -- segments of vectors, in inverted lists or without, as
// sections of a .knear file (docs/knear-files.md).
#pragma once
#include <cstddef>

#include "knear/index/index_shape.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/sections/sections.hpp"

namespace knear::detail {

// Adds a segment of this number, which has to stay until the file is written.
void add_vectors(io::ArchiveWriter& writer, std::size_t number, const Segment& segment);
// Reads it. state: its type, ids and centroids are known. Vectors are not read but checked when
// they are first used. Throws CorruptFile, naming the section.
Segment load_vectors(Sections& in, std::size_t number, const IndexShape& index, const State& state);

// These do the same for the type that vectors are rounded to, if they are.
void add_rounded(io::ArchiveWriter& writer, const IndexShape& shape);
void load_rounded(Sections& in, IndexShape& shape);

}  // namespace knear::detail
