#include "knear/index/form/form.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/vector_segments.hpp"
#include "knear/index/sections/recall_sections.hpp"
#include "knear/index/sections/vector_sections.hpp"

namespace knear::detail {

namespace {
std::span<const FormEntry> all_forms() {
  static const FormEntry all[] = {flat_form(), lists_form(), codes_form(), graph_form()};
  return all;
}
}  // namespace

std::unique_ptr<const Form> form_of(const IndexShape& shape) {
  const auto all = all_forms();
  return std::find_if(all.begin(), all.end(), [&](const FormEntry& one) { return one.has(shape); })
      ->make(shape);
}

std::unique_ptr<const Form> form_of_kind(std::string_view kind, const IndexShape& shape) {
  for (const FormEntry& one : all_forms())
    for (const std::string& own : one.kinds)
      if (own == kind) return one.make(shape);
  return nullptr;
}

std::vector<std::string> kinds_of_forms() {
  std::vector<std::string> out;
  for (const FormEntry& one : all_forms())
    out.insert(out.end(), one.kinds.begin(), one.kinds.end());
  return out;
}

std::string_view take_form(FactoryWords& words, IndexShape& shape) {
  std::vector<std::string> names;
  for (const FormEntry& one : all_forms()) {
    if (const std::string_view may_follow = one.take(words, shape); !may_follow.empty())
      return may_follow;
    const std::string& own = shape.lists > 0 ? one.words_in_lists : one.words;
    if (!own.empty()) names.push_back(own);
  }
  const std::string all = fmt::format("{}", fmt::join(names, ", "));
  if (shape.lists == 0)
    words.refuse(fmt::format("which is none of the indexes {} and IVFn,...", all));
  const std::size_t last = all.rfind(", ");
  words.refuse(fmt::format("which is no form of vectors in inverted lists: {} and {} are",
                           all.substr(0, last), all.substr(last + 2)));
}

std::string IndexShape::kind() const { return form_of(*this)->kind(); }

std::string IndexShape::description() const {
  std::string out;
  for (const TransformShape& transform : transforms) out += transform.name() + ",";
  if (lists > 0) {
    out += fmt::format("IVF{}{}", lists, in_two_lists ? "_SOAR" : "");
    if (!coarse.empty()) out += "(" + coarse.front().description() + ")";
    out += ",";
  }
  return out + form_of(*this)->words();
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

void Form::save_vectors(io::ArchiveWriter& writer, const State& state) {
  for (std::size_t s = 0; s < state.segments.size(); ++s) add_vectors(writer, s, state.segments[s]);
}

Segment Form::load_segment(Sections& in, std::size_t number, const State& state) const {
  return load_vectors(in, number, shape_, state);
}

void Form::load_recall(Sections& in, State& state) const { load_changes(in, state); }

std::unique_ptr<FaissRowWriter> Form::faiss_rows(const State& state) const {
  return faiss_vectors(shape_.metric, shape_.inner_dim(), shape_.rounded,
                       state.type.value_or(ElementType::f32));
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
