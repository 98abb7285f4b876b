// cli/explore/explorer.hpp -- the questions that the page of `knear explore` asks, and their
// answers as JSON.
//
//   Explorer explorer(std::move(items), std::move(graph), options);
//   explorer.path(17, 4711)            // as `knear path --json` has it, and the length of each
//   step
//
// Threads: any number of questions at once.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/explore/items.hpp"
#include "knear/core/json.hpp"
#include "knear/graph/bridges.hpp"
#include "knear/graph/neighbor_graph.hpp"
#include "knear/graph/paths.hpp"
#include "knear/graph/sparse_graph.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {

class Explorer {
 public:
  struct Options {
    Id from = no_id, to = no_id;  // where the page begins; no_id: it chooses
    int threads = 0;
  };
  Explorer(Items items, NeighborGraph graph, const Options& options);

  const Items& items() const { return items_; }
  const NeighborGraph& graph() const { return graph_; }
  const Components& components() const { return components_; }

  // What the page needs at once: shape, kind of items, classes, statistics of the graph.
  nlohmann::ordered_json info() const;
  // Label, component, neighbours with their distances, in how many lists it stands, and the numbers
  // of plain vectors. Throws InvalidArgument for an item that is not there, as path() does.
  nlohmann::ordered_json item(Id id) const;
  // Where no path leads, `gap_seconds` says what gap() is expected to take.
  nlohmann::ordered_json path(Id from, Id to) const;
  // What would have to be bridged between two items: the gaps that the smoothest way over the
  // nearest pairs of rows crosses (graph/bridges.hpp), in its order; none within a component.
  nlohmann::ordered_json gap(Id from, Id to) const;
  // All gaps between components, one less than these. The first call finds them, while others that
  // want them wait. Throws InvalidArgument, with what to do instead, where that is expected to take
  // longer than longest_gap_seconds; Cancelled after a signal.
  const std::vector<Bridge>& gaps() const;
  double gap_seconds() const;  // 0 once they are known
  static constexpr double longest_gap_seconds = 60;
  // The nearest rows of a vector, exactly. Throws as knn(), and InvalidArgument where a distance is
  // beyond float32.
  nlohmann::ordered_json search(const std::vector<float>& vector, std::int64_t k) const;
  // Items whose label contains a text, whatever the case of its ASCII letters: the first 50.
  nlohmann::ordered_json find(const std::string& text) const;

  void check_item(const char* name, Id id) const;

 private:
  double step(Id a, Id b) const;

  Items items_;
  NeighborGraph graph_;
  Options options_;
  PathFinder finder_;
  Components components_;
  std::vector<std::int32_t> in_degrees_;
  nlohmann::ordered_json statistics_;
  std::optional<ExactSearcher> searcher_;

  mutable std::mutex finding_gaps_;
  mutable std::optional<std::vector<Bridge>> gaps_;
  mutable std::atomic<bool> gaps_known_ = false;
};

}  // namespace knear::cli
