// This form has a graph over its vectors, and searches follow the edges of the graph.
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/form.hpp"
#include "knear/index/graph/graph_search.hpp"
#include "knear/index/sections/graph_sections.hpp"
#include "knear/index/sections/recall_sections.hpp"
#include "knear/index/sections/transform_sections.hpp"
#include "knear/index/sections/vector_sections.hpp"

namespace knear::detail {
namespace {

// How walks choose what they measure: curves of recall of files with another number, or none, are
// found out again. 1 measured every neighbour, 2 estimates first.
constexpr std::int64_t walk = 2;

class GraphForm final : public Form {
 public:
  using Form::Form;

  std::string kind() const override { return "GraphFlat"; }
  std::string words() const override { return fmt::format("Graph{}", shape_.graph_degree); }
  void check_over_centroids(std::int64_t, const WrongWord& wrong) const override {
    wrong("but centroids are found by lists or codes, not by a graph");
  }

  void begin(State& state) const override {
    if (!state.graph) state.graph = std::make_shared<GraphOfState>();
  }
  void follow(State& next, const State& before, std::span<const Id> added) const override {
    next.graph = before.graph->after(added, next);
  }
  bool follows_ids() const override { return true; }

  ExactNeighbors nearest(const FormQuery& query, std::int64_t k, KnnReport* report) const override {
    return search_graph(query.state, shape_, query.segments, query.queries, k, query.options,
                        report);
  }
  RangeLists within(const FormQuery& query, double radius, KnnReport* report) const override {
    return range_search_graph(shape_, query.segments, query.queries, radius, query.options, report);
  }

  std::optional<std::int64_t> make_ready(const State& state,
                                         const ChangeOptions& options) const override {
    const auto made = state.graph->get(state, shape_, options.threads, options.progress);
    return made ? state.size : 0;
  }
  bool is_made_beside_changes() const override { return true; }
  std::int64_t bytes(const State& state) const override { return state.graph->bytes(); }
  std::vector<OperatingPoint> tune(const State& state, std::int64_t k, AnyMatrixView vectors,
                                   const ChangeOptions& options) const override {
    const TransformedQueries inner(state, shape_.metric, vectors, options.threads);
    return points_of(tune_graph(state, shape_, k, inner.view(), options));
  }

  void check_faiss(const State&) const override {
    throw InvalidArgument("index {} has a graph that FAISS has not: add its vectors to another one",
                          shape_.description());
  }

  void save(io::ArchiveWriter& writer, const State& state) const override {
    const auto made = state.graph ? state.graph->made() : std::nullopt;
    if (made) writer.keep(made->graph);
    add_graph(writer, shape_, made);
    add_transforms(writer, shape_, state.transform);
    add_rounded(writer, shape_);
    save_vectors(writer, state);
    if (!made) return;
    writer.set_optional(true);
    writer.add_copy("graph/walk", &walk, sizeof walk);
    writer.set_optional(false);
    add_curves(writer, *made->curves, 0, nullptr);
  }
  void load_learned(Sections& in, const FileHead&, IndexShape& shape, State& state) const override {
    state.graph = std::make_shared<GraphOfState>();
    if (auto made = load_graph(in, shape)) {
      const bool same = in.has("graph/walk") && in.fields<std::int64_t>("graph/walk") == walk;
      if (same && in.has("recall/rows")) made->curves = load_curves(in, 1, true);
      state.graph = std::make_shared<GraphOfState>(std::move(*made));
    }
    load_rounded(in, shape);
  }
};

// Takes Graphn. The vectors are kept as they are, which Flat may say.
std::string_view take_graph(FactoryWords& words, IndexShape& shape) {
  if (!words.word().text.starts_with("Graph")) return {};
  const auto degree = number_after("Graph", words.word().text);
  if (!degree) words.refuse("which is no graph: Graphn is");
  if (shape.lists > 0) words.refuse("but a graph goes over all vectors, without lists");
  if (*degree < least_degree || *degree > most_degree)
    words.refuse(fmt::format("but a row has {} to {} links", least_degree, most_degree));
  shape.graph_degree = *degree;
  words.take();
  words.take("Flat");
  refuse_refinement(words);
  return only_map;
}

}  // namespace

FormEntry graph_form() {
  return {{"GraphFlat"},
          "Graphn",
          "",
          take_graph,
          [](const IndexShape& shape) { return shape.has_graph(); },
          make_form<GraphForm>};
}

}  // namespace knear::detail
