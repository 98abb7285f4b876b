#include "knear/index/form/probed_form.hpp"

#include <algorithm>

#include "knear/core/error.hpp"
#include "knear/distance/reference.hpp"

namespace knear::detail {

std::int64_t probes_of(const SearchOptions& options, std::int64_t lists) {
  const MethodOptions& method = options.method;
  if (const double recall = method.recall.value_or(1); !(recall > 0 && recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", recall);
  if (method.probes != 0 && method.recall)
    throw InvalidArgument("probes is {} and recall is {}, but only one of them can be asked for",
                          method.probes, *method.recall);
  if (method.probes == 0 && !method.recall)
    throw InvalidArgument(
        "neither probes nor recall is given, and a search of {} inverted lists needs one of them",
        lists);
  if (method.recall) return 0;
  if (method.probes < 1 || method.probes > lists)
    throw InvalidArgument("probes must be between 1 and the {} lists, but is {}", lists,
                          method.probes);
  return method.probes;
}

void set_recall(KnnReport& report, bool exact, std::int64_t queries) {
  report.certified_queries = exact ? queries : 0;
  report.promised_recall = report.expected_recall = exact ? 1 : 0;
  report.recall_argument = exact ? "exact" : "none";
}

std::vector<OperatingPoint> keep_curve(const State& state, const RecallCurve& curve) {
  state.recall->set(curve);
  return points_of(curve);
}

void ProbedForm::train(State& next, const TrainingRows& from) const {
  if (shape_.lists > 0 && !from.has_lists)
    next.coarse = CoarseQuantizer::trained(from.rows, shape_, from.options, from.index);
}

void ProbedForm::follow(State& next, const State&, std::span<const Id>) const {
  if ((next.coarse || next.coder) &&
      (!next.recall || !next.recall->hold_for(next.size, next.changed_rows)))
    next.recall = std::make_shared<RecallCurves>(next.size), next.changed_rows = 0;
}

std::int64_t ProbedForm::bytes(const State& state) const {
  std::int64_t sum = state.coarse ? state.coarse->bytes() : 0;
  if (state.known) sum += state.known->bytes();
  for (const auto& coder : {state.coder, state.refiner})
    if (coder) sum += coder->bytes();
  return sum;
}

void ProbedForm::check_scan(const SearchOptions& options) const {
  if (options.method.ef != 0)
    throw InvalidArgument("ef is {}, but index {} has no graph", options.method.ef,
                          shape_.description());
  check_scan_options(options_of_scan(options, shape_.metric));
}

SearchOptions ProbedForm::all_if_exact(const SearchOptions& asked, const State& state,
                                       SearchKind kind) const {
  SearchOptions out = asked;
  const MethodOptions& method = asked.method;
  if (method.kind != Method::exact) return out;
  if (method.probes != 0) throw InvalidArgument("method is exact, but probes is {}", method.probes);
  if (method.recall.value_or(1) != 1)
    throw InvalidArgument("method is exact, but recall is {}", *method.recall);
  ask_for_all(out, state, kind);
  return out;
}

void ProbedForm::check_refine_factor(std::int64_t factor) {
  if (factor < 0 || factor > (1 << 20))
    throw InvalidArgument("refine_factor must be between 1 and {}, but is {}", 1 << 20, factor);
}

std::int64_t ProbedForm::refine_factor_of_range(const SearchOptions& options) const {
  const std::int64_t out = refine_factor_of(options);
  if (options.method.refine_factor > 0)
    throw InvalidArgument(
        "refine_factor is {}, but a range search has no number of neighbours to refine more than",
        options.method.refine_factor);
  return out;
}

void ProbedForm::check_range(const SearchOptions& options) const {
  if (options.method.widen)
    throw InvalidArgument("widen is on, but a range search has no number of rows to find");
  if (options.method.certify)
    throw InvalidArgument("certify is on, but of a range search only recall = 1 is certain");
  if (options.method.recall.value_or(1) != 1)
    throw InvalidArgument("recall is {}, but a range search is calibrated for none below 1",
                          *options.method.recall);
}

ExactNeighbors ProbedForm::nearest_in(const FormQuery& query, MatrixView<Id> lists, std::int64_t k,
                                      KnnReport* report) const {
  check_scan(query.options);
  const std::int64_t refine_factor = refine_factor_of(query.options);
  const SearchRequest request =
      this->request(SearchKind::nearest, query, k, options_of_scan(query.options, shape_.metric));
  const std::unique_ptr<ProbedSearch> search =
      open(query, request, refine_factor,
           bytes_of_probing(request, std::max<std::int64_t>(1, lists.cols())));
  ExactNeighbors found;
  search->nearest(lists, found);
  if (report) {
    *report = search->report();
    report->lists = shape_.lists, report->probes = static_cast<double>(lists.cols());
    report->method = "inverted-lists";
    set_recall(*report, false, query.queries.rows());
  }
  return found;
}

RangeLists ProbedForm::within_lists(const FormQuery& query, const SearchRequest& request,
                                    double radius, std::int64_t probes, std::int64_t refine_factor,
                                    bool proven, KnnReport* report) const {
  const CoarseQuantizer* const coarse = query.state.coarse.get();
  const AnyMatrixView queries = query.queries;
  // The search keeps the numbers of all lists that it probes and, for codes, a term for each.
  const std::unique_ptr<ProbedSearch> search =
      open(query, request, refine_factor,
           queries.rows() * probes * 12 + bytes_of_probing(request, probes));
  RangeLists found(static_cast<std::size_t>(queries.rows()));
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
    report->k = 0;
    if (coarse) {
      report->lists = coarse->lists(), report->probes = static_cast<double>(probes);
      report->method = "inverted-lists";
    }
    for (const auto& list : found) report->memory_bytes += 64 * std::ssize(list);
    set_recall(*report, proven, queries.rows());
  }
  return found;
}

}  // namespace knear::detail
