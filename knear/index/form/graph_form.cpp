// This form has a graph over its vectors, and searches follow the edges of the graph.
#include "knear/index/form/form.hpp"
#include "knear/index/graph/graph_search.hpp"

namespace knear::detail {
namespace {

class GraphForm final : public Form {
 public:
  using Form::Form;

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
};

}  // namespace

std::unique_ptr<const Form> graph_form(const IndexShape& shape) {
  return std::make_unique<GraphForm>(shape);
}

}  // namespace knear::detail
