// knear/graph/path_search.hpp -- the shortest path between two rows, by steps that are not too
// long.
//
//   const SparseGraph edges = symmetric(near.ids, near.distances, metric, Closure::either);
//   check_steps(edges, metric);
//   const StepGraph graph(edges, metric, order);
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

// Throws InvalidArgument for more than 2^32 - 1 rows, for an infinite distance, for one of l2 that
// is negative and one of cosine that is outside of [0, 2] by more than 2^-10.
void check_steps(const SparseGraph& symmetric, Metric metric);

// How long a step is for all metrics, less is better: of ip the negated product.
inline float step_length(float distance, Metric metric) {
  return larger_is_nearer(metric) ? -distance : distance;
}

// The steps from each row of a symmetric graph that was checked, the shortest first. Rows lie in an
// order of the caller's: where it has neighbours near each other, a search waits less for memory.
struct StepGraph {
  struct Step {
    std::uint32_t place;  // of the row at the other end
    float length;
  };

  // order: each row once.
  StepGraph(const SparseGraph& symmetric, Metric metric, std::vector<std::uint32_t> order);

  std::int64_t rows() const { return std::ssize(row_at); }
  std::uint32_t place_of(Id row) const { return places[row]; }
  std::span<const Step> from(std::uint32_t place) const {
    const std::size_t first = begin[place];
    const std::size_t last = begin[std::size_t{place} + 1];
    return {steps.data() + first, last - first};
  }

  std::vector<std::uint32_t> row_at;  // [rows] by place
  std::vector<std::uint32_t> places;  // [rows] by row
  AlignedArray<std::int64_t> begin;   // [rows + 1] by place
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
