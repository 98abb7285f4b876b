// knear/index/sections/recall_sections.hpp -- what is known of an index's recall, as sections of a
// .knear file (docs/knear-files.md): curves of recall, and queries with their true neighbours.
//
// A search would find it out again, so that the sections are optional: a reader may do without.
#pragma once
#include <memory>
#include <vector>

#include "knear/index/index_shape.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/recall/known_neighbors.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/index/sections/sections.hpp"

namespace knear::detail {

// changed: rows added or taken out since the curves were begun. fresh: keys of the nearest
// centroids (State::fresh_keys), nullptr where they are not known.
void add_curves(io::ArchiveWriter& writer, const RecallCurves& curves, std::int64_t changed,
                const std::vector<float>* fresh);
// The curves of an index of so many lists, or of one with a graph. Throws CorruptFile, naming the
// section.
std::shared_ptr<RecallCurves> load_curves(Sections& in, std::int64_t lists, bool graph = false);

void add_known(io::ArchiveWriter& writer, const KnownNeighbors& known);
// nullptr where the file has none. Throws CorruptFile, naming the section.
std::shared_ptr<const KnownNeighbors> load_known(Sections& in, const IndexShape& shape);

// Reads what has changed since curves were begun: State::changed_rows and fresh_keys, which only an
// index of lists has. Throws CorruptFile, naming the section.
void load_changes(Sections& in, State& state);

}  // namespace knear::detail
