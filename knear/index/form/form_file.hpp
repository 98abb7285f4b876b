// knear/index/form/form_file.hpp -- an index as sections of a .knear file (docs/knear-files.md).
// The head is the same for all; each form writes and reads what it holds.
#pragma once
#include <string_view>

#include "knear/index/form/form.hpp"
#include "knear/index/sections/sections.hpp"

namespace knear::detail {

struct SavedIndex {
  IndexShape shape;
  State state;
};

// Adds a state of an index, which has to stay until the file is written.
void add_sections(io::ArchiveWriter& writer, const IndexShape& shape, const State& state);
// Reads it. kind: IndexShape::kind(). Vectors and codes are not read but checked when they are
// first used. Throws CorruptFile, naming the section.
SavedIndex load_sections(Sections& in, std::string_view kind, MakeCentroidIndex make);

}  // namespace knear::detail
