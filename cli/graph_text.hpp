// cli/graph_text.hpp -- a k-NN graph in words and in JSON, the same for every command.
#pragma once
#include "knear/core/json.hpp"
#include "knear/graph/neighbor_graph.hpp"
#include "knear/graph/statistics.hpp"

namespace knear::cli {

// rows, dim, k, metric, type, checksum of the base, promised_recall, recall_argument, distinct.
nlohmann::ordered_json describe_graph(const NeighborGraph& graph);
// edges, mutual_edges, components, largest_component, in_degrees, hubs.
nlohmann::ordered_json json_of(const GraphStatistics& statistics);
void print_statistics(const GraphStatistics& statistics);

}  // namespace knear::cli
