// knear/graph/path_search.hpp -- the shortest path between two rows, by steps that are not too
// long.
//
//   const StepGraph graph(symmetric(near.ids, near.distances, metric, Closure::either), metric);
//   PathSearches searches(graph);
//   const std::vector<Id> ids = searches.shortest(17, 4711, largest, PathWeights::lengths);
//
// Dijkstra's search from both ends, in whole numbers. Which path is taken of several is said in
// paths.hpp. Work: the rows nearer to one of the ends than half the path, and a little; no search
// touches the others, but the first one clears 16 bytes for each row, which the next ones use
// again.
//
// Threads: any number of searches at once.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/graph/sparse_graph.hpp"

namespace knear::detail {

// The steps from each row of a symmetric graph, the shortest first, ties by row.
struct StepGraph {
  struct Step {
    std::uint32_t row;
    float length;  // less is better: of ip the negated product
  };

  StepGraph() = default;
  // Throws InvalidArgument for more than 2^32 - 1 rows, for an infinite distance, for one of l2
  // that is negative and one of cosine that is outside of [0, 2] by more than 2^-10.
  StepGraph(const SparseGraph& symmetric, Metric metric);

  std::int64_t rows() const { return static_cast<std::int64_t>(begin.size()) - 1; }
  std::span<const Step> from(Id row) const {
    const auto first = static_cast<std::size_t>(begin[static_cast<std::size_t>(row)]);
    const auto last = static_cast<std::size_t>(begin[static_cast<std::size_t>(row) + 1]);
    return {steps.data() + first, last - first};
  }

  AlignedArray<std::int64_t> begin{1};  // [rows + 1]
  AlignedArray<Step> steps;
};

// What a step counts: its length in whole units, as paths.hpp says, and one at least; or one.
enum class PathWeights : std::uint8_t { lengths, ones };

template <class Sum>
class PathSearch;

class PathSearches {
 public:
  // The graph must live as long.
  explicit PathSearches(const StepGraph& graph);
  ~PathSearches();

  // The rows of the path, both ends among them. There must be one by steps no longer than this, and
  // the ends must not be the same.
  std::vector<Id> shortest(Id from, Id to, float largest, PathWeights weights);

 private:
  const StepGraph& graph_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PathSearch<std::int64_t>>> idle_;
};

}  // namespace knear::detail
