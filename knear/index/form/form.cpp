#include "knear/index/form/form.hpp"

#include "knear/index/form/vector_segments.hpp"

namespace knear::detail {

std::unique_ptr<const Form> form_of(const IndexShape& shape) {
  if (shape.codes) return codes_form(shape);
  if (shape.lists > 0) return lists_form(shape);
  if (shape.has_graph()) return graph_form(shape);
  return flat_form(shape);
}

std::unique_ptr<SegmentStore> Form::make_store() const {
  return std::make_unique<VectorSegments>(shape_);
}

ExactNeighbors Form::nearest_in(const FormQuery&, MatrixView<Id>, std::int64_t, KnnReport*) const {
  throw InvalidArgument("index {} has no inverted lists", shape_.description());
}

void Form::check_tuned_with(AnyMatrixView base) const {
  throw InvalidArgument("base has {} rows, but index {} keeps its vectors itself", base.rows(),
                        shape_.description());
}

std::vector<OperatingPoint> Form::tune_with(State&, std::int64_t, AnyMatrixView, AnyMatrixView base,
                                            std::span<const Id>, const ChangeOptions&) const {
  check_tuned_with(base);
  return {};
}

void Form::read(const State& state, const State::Place& place, std::vector<std::byte>& scratch,
                AnyMatrix& out, std::int64_t to) const {
  const BaseRows& rows = state.segments[place.segment].rows->base();
  scratch.resize(rows.scratch_bytes());
  copy_exactly(rows.row_view(place.row, scratch.data()), out.type(), out.row(to));
}

std::vector<OperatingPoint> points_of(const RecallCurve& curve) {
  std::vector<OperatingPoint> out;
  for (const RecallPoint& point : curve.points)
    out.push_back({point.promised, point.expected, point.lists, point.rows});
  return out;
}

TransformedQueries::TransformedQueries(const State& state, Metric metric, AnyMatrixView queries,
                                       int threads)
    : view_(queries) {
  if (!state.transform || queries.cols() != state.transform->dim_in()) return;
  find_value_range(queries, metric, "queries", threads);
  made_ = state.transform->apply(queries, threads), view_ = made_.view();
}

}  // namespace knear::detail
