// knear/index/graph/graph_search.hpp -- searches of an index that has a graph over its rows
// ("Graph32"): the nearest are looked for along its edges, measured by codes, and the best of what
// is found is measured in float64.
//
//   ExactNeighbors near = search_graph(state, shape, segments, queries, k, options, report);
//
// The graph is made by the first search that needs it, by Index::optimize() or by Index::save().
// Rows that are added after that are compared, all of them, beside it, and rows taken out are only
// passed through, until so many came or went (an eighth of the rows, or a quarter) that the next
// search makes it anew.
//
// Where a filter leaves few rows, these are compared instead; where it leaves many, the search
// keeps as many more nodes.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/process_mutex.hpp"
#include "knear/index/graph/row_graph.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/options.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// Searches that are not at work, so that the next one need not clear a bit for each node.
class IdleWalks {
 public:
  // Calls f(walk) with a walk that nobody else has.
  template <class F>
  void with(const RowGraph& graph, F f) {
    std::unique_ptr<GraphWalk> walk = take(graph);
    f(*walk);
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock)
      idle_.push_back(std::move(walk));
  }

 private:
  std::unique_ptr<GraphWalk> take(const RowGraph& graph);

  // Nobody waits for it: a child process may find it held by a thread that it does not have.
  std::mutex mutex_;
  std::vector<std::unique_ptr<GraphWalk>> idle_;
};

// The graph of a state of an index, and what has changed since it was made. Any number of threads.
class GraphOfState {
 public:
  // The rows of a state that are not in its graph.
  struct RowsBeside {
    std::vector<Id> ids;                       // ascending
    std::vector<std::vector<Id>> of_segments;  // their numbers
    std::vector<RowFilter> filters;            // the same
  };
  struct Made {
    std::shared_ptr<const RowGraph> graph;
    std::shared_ptr<RecallCurves> curves;  // of searches of this graph
    std::shared_ptr<IdleWalks> walks;
    // Ids that were added since, ascending; up to about a thousand may be gone again.
    std::shared_ptr<const std::vector<Id>> added;
    // How often the graph of this index was made before.
    std::int64_t number = 0;
    // Those of them that are there; nullptr until somebody asked for the graph of this state.
    std::shared_ptr<const RowsBeside> beside = {};
  };

  GraphOfState() = default;
  // Of a graph that was read from a file.
  explicit GraphOfState(Made made) : made_(std::move(made)) {}
  static Made as_made(std::shared_ptr<const RowGraph> graph, std::vector<Id> added = {});

  // Returns the graph of the next state, after a change that added rows with these ids.
  std::shared_ptr<GraphOfState> after(std::span<const Id> added, const State& next) const;
  // The graph, which is made first if there is none or it says too little of the state that this
  // belongs to; nothing for too few rows, and where the caller may not make it
  // (core/stop_check.hpp). One caller makes it while others wait. seconds: of making.
  std::optional<Made> get(const State& state, const IndexShape& shape, int threads,
                          const Progress& progress, double* seconds = nullptr);
  // The graph, if get() would not have to make it.
  std::optional<Made> current(const State& state);
  // What is there.
  std::optional<Made> made() const {
    std::lock_guard lock(mutex_);
    return made_;
  }
  std::int64_t bytes() const;

 private:
  mutable ProcessMutex mutex_;  // of made_, never held for long
  std::optional<Made> made_;
  ProcessMutex making_;
};

// As Index::search() and Index::range_search() before they round, of an index that has a graph.
// segments: those of the state, in its order; queries after the transforms.
ExactNeighbors search_graph(const State& state, const IndexShape& shape,
                            std::span<const SearchSegment> segments, AnyMatrixView queries,
                            std::int64_t k, const SearchOptions& options, KnnReport* report);
RangeLists range_search_graph(const IndexShape& shape, std::span<const SearchSegment> segments,
                              AnyMatrixView queries, double radius, const SearchOptions& options,
                              KnnReport* report);

// The curve of recall against effort of the graph of a state, which keeps it: by these queries, or
// with none by rows. Throws InvalidArgument where there are too few rows for a graph.
RecallCurve tune_graph(const State& state, const IndexShape& shape, std::int64_t k,
                       AnyMatrixView queries, const ChangeOptions& options);

}  // namespace knear::detail
