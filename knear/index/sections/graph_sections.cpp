#include "knear/index/sections/graph_sections.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

struct GraphFields {
  std::int64_t degree, nodes, rows, stride, layers;
  double scale, longest, query_length;
};

}  // namespace

void add_graph(io::ArchiveWriter& writer, const IndexShape& shape,
               const std::optional<GraphOfState::Made>& made) {
  const RowGraph none;
  const RowGraph& graph = made ? *made->graph : none;
  const GraphFields fields{shape.graph_degree,
                           made ? graph.nodes() : 0,
                           graph.rows(),
                           made ? graph.coding.stride() : 0,
                           std::ssize(graph.layers),
                           graph.coding.scale,
                           graph.coding.longest,
                           graph.coding.query_length};
  writer.add_copy("graph/fields", &fields, sizeof fields);
  if (!made) return;
  const auto& lows = graph.coding.lows;
  if (graph.coding.numbers) {
    const std::int64_t bytes = size_of(*graph.coding.numbers);
    writer.add_copy("graph/numbers", &bytes, sizeof bytes);
  } else {
    writer.add_copy("graph/lows", lows.data(), lows.size() * sizeof lows[0]);
  }
  writer.add("graph/begin", graph.begin.data(), graph.begin.bytes());
  writer.add("graph/ids", graph.ids.data(), graph.ids.bytes());
  for (std::size_t l = 0; l < graph.layers.size(); ++l) {
    const RowGraph::Layer& layer = graph.layers[l];
    const auto add = [&](std::string_view name, const auto& array) {
      writer.add(fmt::format("graph/{}/{}", l, name), array.data(), array.bytes());
    };
    const auto add_kept = [&](std::string_view name, auto array) {
      const auto kept = std::make_shared<const decltype(array)>(std::move(array));
      writer.keep(kept), add(name, *kept);
    };
    if (layer.runs) {
      add_kept("codes", layer.runs->copied_codes());
      add_kept("links", layer.runs->copied_links());
      continue;
    }
    add("codes", layer.codes);
    if (layer.links.size() > 0) add("links", layer.links);
  }
  writer.add_copy("graph/added", made->added->data(), made->added->size() * sizeof(Id));
}

std::optional<GraphOfState::Made> load_graph(Sections& in, IndexShape& shape) {
  const auto fields = in.fields<GraphFields>("graph/fields");
  if (fields.degree < least_degree || fields.degree > most_degree || fields.nodes < 0 ||
      fields.nodes >= max_rows || fields.rows < fields.nodes || fields.rows >= max_rows ||
      fields.layers < 0 || fields.layers > 16 || (fields.nodes > 0) != (fields.layers > 0))
    in.refuse("graph/fields", "its numbers are none");
  shape.graph_degree = fields.degree;
  if (fields.nodes == 0) return {};
  auto graph = std::make_shared<RowGraph>();
  graph->degree = fields.degree;
  GraphCoding& coding = graph->coding;
  coding.metric = shape.metric, coding.dim = shape.inner_dim();
  coding.scale = fields.scale, coding.longest = fields.longest;
  coding.query_length = fields.query_length;
  const bool in_numbers = in.has("graph/numbers");
  if (in_numbers) {
    const auto bytes = in.fields<std::int64_t>("graph/numbers");
    if (bytes != 4 && bytes != 8) in.refuse("graph/numbers", "they have neither 4 nor 8 bytes");
    coding.numbers = bytes == 4 ? ElementType::f32 : ElementType::f64;
  } else {
    coding.lows = in.list<double>("graph/lows");
  }
  const auto finite = [](double x) { return std::isfinite(x); };
  if (std::ssize(coding.lows) != (in_numbers ? 0 : coding.columns()) ||
      fields.stride != coding.stride() ||
      !std::all_of(coding.lows.begin(), coding.lows.end(), finite) || !finite(coding.scale) ||
      !(coding.scale > 0) || !finite(coding.longest) || !finite(coding.query_length))
    in.refuse(in_numbers ? "graph/numbers" : "graph/lows", "they are no coding of the vectors");
  graph->begin = in.array<std::int64_t>("graph/begin", fields.nodes + 1);
  graph->ids = in.array<Id>("graph/ids", fields.rows);
  bool ascends = graph->begin[0] == 0 && graph->begin[fields.nodes] == fields.rows;
  for (std::size_t i = 0; ascends && i < static_cast<std::size_t>(fields.nodes); ++i)
    ascends = graph->begin[i] < graph->begin[i + 1];
  if (!ascends) in.refuse("graph/begin", "they are no division of the rows");
  std::int64_t nodes = fields.nodes;
  for (std::int64_t l = 0; l < fields.layers; ++l) {
    const bool last = l + 1 == fields.layers;
    if (nodes < 1 || last != (nodes <= RowGraph::most_scanned))
      in.refuse("graph/fields", "it counts other layers");
    RowGraph::Layer layer;
    layer.nodes = nodes;
    layer.codes = in.array<std::uint8_t>(fmt::format("graph/{}/codes", l), nodes * coding.stride());
    const std::string links = fmt::format("graph/{}/links", l);
    if (!last) layer.links = in.array<std::uint32_t>(links, nodes * fields.degree);
    for (const std::uint32_t node : layer.links)
      if (node >= nodes && node != no_node)
        in.refuse(links, "it leads to a node that is not there");
    graph->layers.push_back(std::move(layer));
    nodes = RowGraph::nodes_above(nodes);
  }
  graph->make_runs(resolve_threads(0));
  std::vector<Id> added = in.list<Id>("graph/added");
  if (!std::is_sorted(added.begin(), added.end())) in.refuse("graph/added", "they do not ascend");
  return GraphOfState::as_made(std::move(graph), std::move(added));
}

}  // namespace knear::detail
