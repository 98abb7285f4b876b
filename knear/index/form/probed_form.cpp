#include "knear/index/form/probed_form.hpp"

#include <algorithm>

#include "knear/core/error.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/sections/recall_sections.hpp"

namespace knear::detail {

PromiseReport calibrated_promise(const RecallPoint& point, double recall, std::int64_t batch) {
  PromiseReport out;
  out.promised_recall = point.promised_to(batch, recall);
  out.expected_recall = point.expected, out.recall_argument = "calibrated";
  return out;
}

std::vector<OperatingPoint> keep_curve(const State& state, const RecallCurve& curve) {
  state.recall->set(curve);
  return points_of(curve);
}

void ProbedForm::begin(State& state) const {
  if ((state.coarse || state.coder) && !state.recall)
    state.recall = std::make_shared<RecallCurves>(state.size);
}

void ProbedForm::train(State& next, const TrainingRows& from) const {
  if (shape_.lists > 0 && !from.has_lists)
    next.coarse = CoarseQuantizer::trained(from.rows, shape_, from.options, from.index);
}

void ProbedForm::follow(State& next, const State&, std::span<const Id>) const {
  if ((next.coarse || next.coder) &&
      (!next.recall || !next.recall->hold_for(next.size, next.changed_rows))) {
    next.recall = std::make_shared<RecallCurves>(next.size), next.changed_rows = 0;
    ++next.audit_epoch;
  }
}

std::int64_t ProbedForm::bytes(const State& state) const {
  std::int64_t sum = state.coarse ? state.coarse->bytes() : 0;
  if (state.known) sum += state.known->bytes();
  for (const auto& coder : {state.coder, state.refiner})
    if (coder) sum += coder->bytes();
  return sum;
}

void ProbedForm::save_recall(io::ArchiveWriter& writer, const State& state) {
  if (state.recall) add_curves(writer, *state.recall, state.changed_rows, state.fresh_keys.get());
}

void ProbedForm::load_recall(Sections& in, State& state) const {
  Form::load_recall(in, state);
  if ((state.coarse || state.coder) && in.has("recall/rows"))
    state.recall = load_curves(in, std::max<std::int64_t>(1, shape_.lists));
  begin(state);
}

void ProbedForm::check_faiss(const State&) const {
  if (traits_of(shape_.metric).product && !shape_.coarse.empty())
    throw InvalidArgument(
        "index {} finds its lists by an index over lifted centroids, which FAISS has not: for ip "
        "only centroids that are all compared are written for it",
        shape_.description());
}

ExactNeighbors ProbedForm::nearest_in(const FormQuery& query, MatrixView<Id> lists, std::int64_t k,
                                      KnnReport* report) const {
  const ProbedOptions asked = options_of_given_lists(query.options, shape_);
  const SearchRequest request = this->request(SearchKind::nearest, query, k, asked.scan);
  const std::unique_ptr<ProbedSearch> search =
      open(query, request, asked.refine_factor,
           bytes_of_probing(request, std::max<std::int64_t>(1, lists.cols())));
  ExactNeighbors found;
  search->nearest(lists, found);
  if (report) {
    *report = search->report();
    report->lists = {shape_.lists, static_cast<double>(lists.cols()), 0};
    set_promise(*report, request, no_promise());
  }
  return found;
}

RangeLists ProbedForm::within_lists(const FormQuery& query, const SearchRequest& request,
                                    double radius, const ProbedOptions& asked, bool proven,
                                    KnnReport* report) const {
  const CoarseQuantizer* const coarse = query.state.coarse.get();
  const AnyMatrixView queries = query.queries;
  const std::int64_t probes = asked.probes;
  // The search keeps the numbers of all lists that it probes and, for codes, a term for each.
  const std::unique_ptr<ProbedSearch> search =
      open(query, request, asked.refine_factor,
           queries.rows() * probes * 12 + bytes_of_probing(request, probes));
  RangeLists found(queries.rows());
  Matrix<Id> near(queries.rows(), probes);
  const std::int64_t block = queries_together(request, probes);
  for (std::int64_t q = 0; coarse && q < queries.rows(); q += block) {
    const AnyMatrixView some = queries.rows(q, std::min(queries.rows(), q + block));
    const Neighbors part = coarse->probe(some, probes, request.threads);
    std::copy_n(part.ids.data(), some.rows() * probes, near.row(q));
  }
  search->within(near.view(), order_key(shape_.metric, radius), found);
  if (report) {
    *report = search->report();
    if (coarse) report->lists = {coarse->lists(), static_cast<double>(probes), 0};
    set_promise(*report, request, proven ? all_exact(queries.rows()) : no_promise());
  }
  return found;
}

}  // namespace knear::detail
