// knear/index/flat_state.hpp -- what a search of a FlatIndex sees, and how it is kept in a file.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "knear/index/segment.hpp"

namespace knear::detail {

// What a search sees. Never changed once it is published.
struct State {
  std::vector<Segment> segments;
  std::optional<ElementType> type;
  Id next_id = 0;
  std::int64_t version = 0, size = 0;

  // The segment and row of an id; row -1 if it is not there.
  struct Place {
    std::size_t segment = 0;
    std::int64_t row = -1;
  };
  Place find(Id id) const {
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const std::int64_t row = segments[s].rows->find(id);
      if (row >= 0 && segments[s].live.contains(row)) return {s, row};
    }
    return {};
  }
};

// A flat index in a .knear file (docs/knear-files.md), written whole or not at all. Throws IoError;
// Cancelled; CorruptFile if the state lies in a mapped file that was altered.
void save_flat(const State& state, std::int64_t dim, Metric metric, const std::string& path,
               const Progress& progress);

struct SavedFlat {
  std::int64_t dim = 1;
  Metric metric = Metric::l2;
  State state;
};
// Maps a file; vectors and codes are not read but checked when they are first used. Throws IoError;
// CorruptFile, naming the section.
SavedFlat load_flat(const std::string& path);

}  // namespace knear::detail
