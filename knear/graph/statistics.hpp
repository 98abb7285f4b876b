// knear/graph/statistics.hpp -- what a k-NN graph is like: degrees, hubs, components; and how much
// of the true graph it has.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/mean_interval.hpp"
#include "knear/core/progress.hpp"
#include "knear/graph/neighbor_graph.hpp"

namespace knear {

struct GraphStatistics {
  std::int64_t edges = 0;   // neighbours of all rows
  std::int64_t mutual = 0;  // of these, those that have the row among their own
  // In how many lists of neighbours a row stands: how many rows stand in 0, in 1, in 2 to 3, in 4
  // to 7, ..., and the most of any.
  std::vector<std::int64_t> in_degrees;
  std::int64_t most_in_degree = 0;
  struct Hub {
    Id id = no_id;
    std::int64_t in_degree = 0;
  };
  std::vector<Hub> hubs;  // the rows that stand in most lists, ties by ascending id
  std::int64_t components = 0, largest_component = 0;
};

// hubs: how many are wanted; throws InvalidArgument for a negative number.
GraphStatistics statistics_of(const NeighborGraph& graph, std::int64_t hubs = 10);

// Of rows drawn at random, the share of the k nearest others that the graph has: those that are at
// most as far as the true k-th, without slack. For each row of the sample, with the mean and its
// interval of 95 % (core/mean_interval.hpp). Ids [sample], ascending. Throws as
// NeighborGraph::check_base() but for the checksum, and as knn(). The same for the same seed.
// The base is read from its beginning to its end, a part at a time. memory: bytes beside the graph
// and what searching for the sample takes, among them pages of a mapped base; 0: no limit.
struct SampledAccuracy {
  std::vector<Id> rows;
  std::vector<double> found;  // in [0, 1]; 1 for a row that has no others
  double mean = 1;            // of these; 1 if there are no rows
  Interval interval = {};
};
SampledAccuracy sampled_accuracy(const NeighborGraph& graph, AnyMatrixView base,
                                 std::int64_t sample = 10000, std::uint64_t seed = 1,
                                 int threads = 0, const Progress& progress = {},
                                 std::int64_t memory = 0);

}  // namespace knear
