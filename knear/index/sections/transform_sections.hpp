// knear/index/sections/transform_sections.hpp -- what is done to vectors first, as sections of a
// .knear file (docs/knear-files.md).
#pragma once
#include <optional>

#include "knear/index/index_shape.hpp"
#include "knear/index/sections/sections.hpp"
#include "knear/transform/transform.hpp"

namespace knear::detail {

// Adds the transforms of an index, if it has any, and what they were trained to, if they were.
void add_transforms(io::ArchiveWriter& writer, const IndexShape& shape,
                    const std::optional<Transform>& trained);
// Reads them. shape: its dim is known. Throws CorruptFile, naming the section.
void load_transforms(Sections& in, IndexShape& shape, std::optional<Transform>& trained);

}  // namespace knear::detail
