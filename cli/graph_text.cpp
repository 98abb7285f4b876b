#include "cli/graph_text.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "cli/output.hpp"

namespace knear::cli {
namespace {

// The degrees that a place of GraphStatistics::in_degrees stands for: "0", "1", "2-3", "4-7".
std::string degrees_of(std::size_t place) {
  if (place < 2) return std::to_string(place);
  const std::int64_t least = std::int64_t{1} << (place - 1);
  return fmt::format("{}-{}", least, 2 * least - 1);
}

}  // namespace

nlohmann::ordered_json describe_graph(const NeighborGraph& graph) {
  const GraphProperties& properties = graph.properties();
  return {{"rows", graph.rows()},
          {"dim", properties.base.dim},
          {"k", graph.k()},
          {"metric", name_of(properties.metric)},
          {"type", name_of(properties.base.type)},
          {"base_xxh3_64", fmt::format("{:016x}", properties.base.checksum)},
          {"promised_recall", properties.promised_recall},
          {"recall_argument", properties.recall_argument},
          {"distinct", properties.distinct}};
}

nlohmann::ordered_json json_of(const GraphStatistics& statistics) {
  nlohmann::ordered_json degrees, hubs = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < statistics.in_degrees.size(); ++i)
    degrees[degrees_of(i)] = statistics.in_degrees[i];
  for (const GraphStatistics::Hub& hub : statistics.hubs)
    hubs.push_back({{"id", hub.id}, {"in_degree", hub.in_degree}});
  return {{"edges", statistics.edges},
          {"mutual_edges", statistics.mutual},
          {"components", statistics.components},
          {"largest_component", statistics.largest_component},
          {"in_degrees", degrees},
          {"most_in_degree", statistics.most_in_degree},
          {"hubs", hubs}};
}

void print_statistics(const GraphStatistics& statistics) {
  print("  {} edges, {:.0f} % of them in both directions; {} component{}, the largest of {} rows\n",
        statistics.edges,
        100.0 * static_cast<double>(statistics.mutual) /
            static_cast<double>(std::max<std::int64_t>(1, statistics.edges)),
        statistics.components, statistics.components == 1 ? "" : "s", statistics.largest_component);
  std::vector<std::vector<std::string>> table{{"neighbour of"}, {"rows"}};
  for (std::size_t i = 0; i < statistics.in_degrees.size(); ++i) {
    table[0].push_back(degrees_of(i));
    table[1].push_back(std::to_string(statistics.in_degrees[i]));
  }
  print("{}", format_table(table));
  std::string hubs;
  for (std::size_t i = 0; i < std::min<std::size_t>(5, statistics.hubs.size()); ++i)
    hubs += fmt::format("{}{} ({})", i > 0 ? ", " : "", statistics.hubs[i].id,
                        statistics.hubs[i].in_degree);
  if (!hubs.empty()) print("  neighbours of most: {}\n", hubs);
}

}  // namespace knear::cli
