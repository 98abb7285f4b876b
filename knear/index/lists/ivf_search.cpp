#include "knear/index/lists/ivf_search.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/distance/reference.hpp"
#include "knear/index/lists/code_calibration.hpp"
#include "knear/index/lists/code_search.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/knn/device/open_device.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {
namespace {

// Lists that a search for everything probes before it looks at bounds.
constexpr std::int64_t first_probes = 8;
// Codes that are measured by their vectors, for each neighbour.
constexpr std::int64_t usual_refine_factor = 4;

// How many lists are probed, by what was asked for; 0: as many as recall takes.
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

// Throws InvalidArgument for a method and a way to scan that such a search has not, before what
// else it takes: who asks for another method need not know of lists.
void check_scan(const SearchOptions& options, const IndexShape& shape) {
  if (options.method.ef != 0)
    throw InvalidArgument("ef is {}, but index {} has no graph", options.method.ef,
                          shape.description());
  const KnnOptions scan_options = options_of_scan(options, shape.metric);
  if (shape.codes)
    check_code_options(scan_options);
  else
    check_list_options(scan_options, "inverted lists");
}

// What codes cannot do, and how many of them are measured by their vectors for each neighbour; 0:
// there are no vectors.
std::int64_t refine_factor_of(const SearchOptions& options, const IndexShape& shape) {
  const std::int64_t factor = options.method.refine_factor;
  if (factor < 0 || factor > (1 << 20))
    throw InvalidArgument("refine_factor must be between 1 and {}, but is {}", 1 << 20, factor);
  if (factor > 0 && !shape.refine)
    throw InvalidArgument(
        "refine_factor is {}, but index {} {}", factor, shape.description(),
        shape.codes ? "keeps no vectors to refine its codes by" : "has no codes to refine");
  if (shape.codes && options.method.certify)
    throw InvalidArgument("certify is on, but codes, as index {} has them, prove nothing",
                          shape.description());
  if (shape.alters_vectors() && options.method.certify)
    throw InvalidArgument(
        "certify is on, but index {} keeps no vectors as they were added, and nothing is proven of "
        "these",
        shape.description());
  if (factor > 0 && options.method.recall)
    throw InvalidArgument("refine_factor is {} and recall is {}, but only one can be asked for",
                          factor, *options.method.recall);
  return !shape.refine ? 0 : factor > 0 ? factor : usual_refine_factor;
}

// What `exact` asks for: of inverted lists all that they have; of codes the nearest by what codes
// stand for, of which codes that are refined measure too few. A range search measures all.
SearchOptions all_if_exact(SearchOptions options, const State& state, const IndexShape& shape,
                           SearchKind kind) {
  MethodOptions& method = options.method;
  if (method.kind != Method::exact) return options;
  if (method.probes != 0) throw InvalidArgument("method is exact, but probes is {}", method.probes);
  if (method.recall.value_or(1) != 1)
    throw InvalidArgument("method is exact, but recall is {}", *method.recall);
  if (shape.codes && shape.refine && kind == SearchKind::nearest)
    throw InvalidArgument(
        "method is exact, but index {} refines only what its codes find: probes and refine_factor "
        "say how much that is",
        shape.description());
  if (!shape.codes)
    method.recall = 1;
  else if (!method.recall && state.coarse)
    method.probes = state.coarse->lists();
  return options;
}
constexpr std::string_view note_of_exact_codes =
    "exact with respect to the vectors that codes stand for";

// The calibrations that a search has to make before it can begin, which its report names.
class Calibration {
 public:
  // Makes the curve of the index for so many neighbours, which it keeps.
  template <class Make>
  RecallCurve first(Make make) {
    made_first_ = true;
    return by_batch(make);
  }
  // Makes a curve of the queries of this search alone.
  template <class Make>
  RecallCurve by_batch(Make make) {
    const Stopwatch time;
    RecallCurve out = make();
    seconds_ += time.seconds();
    return out;
  }
  void note(KnnReport& report, const std::string& more) const {
    report.note = more;
    if (made_first_)
      report.note = fmt::format(
          "recall of {} neighbours was calibrated first, which the index keeps, and "
          "its file once it is saved ('knear tune' does that){}{}",
          report.k, more.empty() ? "" : "; ", more);
    report.prepare_seconds += seconds_;
  }
  double seconds() const { return seconds_; }

 private:
  bool made_first_ = false;
  double seconds_ = 0;
};

std::unique_ptr<ProbedSearch> probed_search(const State& state, const SearchRequest& request,
                                            std::span<const SearchSegment> segments,
                                            AnyMatrixView vectors, std::int64_t refine_factor,
                                            std::int64_t more_bytes) {
  if (state.coder)
    return std::make_unique<CodeSearch>(state, request, segments, vectors, refine_factor,
                                        more_bytes);
  return open_list_search(request, more_bytes);
}

// A search of lists that can be begun anew, once it is known to have probed by the wrong rule.
class Attempt {
 public:
  // What is given has to stay. more_bytes: as ListSearch takes them.
  Attempt(const State& state, const SearchRequest& request, std::span<const SearchSegment> segments,
          AnyMatrixView vectors, std::int64_t refine_factor, std::int64_t more_bytes)
      : state_(state),
        request_(request),
        segments_(segments),
        vectors_(vectors),
        refine_factor_(refine_factor),
        more_bytes_(more_bytes) {}

  // Has probed nothing yet; what was found before is dropped.
  void begin() {
    probing_.reset();  // which refers to the search
    search_ = probed_search(state_, request_, segments_, vectors_, refine_factor_, more_bytes_);
    probing_.emplace(state_, request_, *search_);
  }
  // The probing of the latest begin().
  ListProbing& probing() { return *probing_; }

 private:
  const State& state_;
  const SearchRequest& request_;
  const std::span<const SearchSegment> segments_;
  const AnyMatrixView vectors_;
  const std::int64_t refine_factor_, more_bytes_;
  std::unique_ptr<ProbedSearch> search_;
  std::optional<ListProbing> probing_;
};

// A search of lists of vectors for a recall below 1: by the cheapest rule that is known to find as
// much, and by another one where the queries turn out to be unlike those that it was learned from.
class RecallSearch {
 public:
  // attempt: nothing was begun.
  RecallSearch(const State& state, const SearchRequest& request,
               std::span<const SearchSegment> segments, const IndexShape& shape,
               const SearchOptions& options, Attempt& attempt)
      : state_(state),
        request_(request),
        segments_(segments),
        shape_(shape),
        recall_(*options.method.recall),
        filtered_(!options.filter.everything()),
        attempt_(attempt) {}

  // The attempt has the answer then.
  void run() {
    const Metric metric = request_.options.metric;
    auto curve = state_.recall->get(request_.k_asked, [&] {
      return calibration_.first([&] {
        return calibrate_by_rows(state_, metric, request_.k_asked, request_.threads,
                                 request_.options.progress);
      });
    });
    const RecallPoint* point = curve->find(recall_);
    attempt_.begin();
    NearLists near = lists_of_first_round(point);
    bool like_others = !filtered_ && of_one_kind(*curve, near), probed = false;
    if (like_others && point) {
      const std::vector<Nearness> scales = nearness_scales(request_.queries, metric, near);
      attempt_.probing().probe_by(point->rule, std::move(near));
      probed = true;
      like_others = finds_as_calibrated(*point, recall_, request_.k_asked,
                                        attempt_.probing().found(), scales);
    }
    if (!like_others) {
      if (request_.queries.rows() >= least_calibrated_batch) {
        curve = std::make_shared<const RecallCurve>(
            calibration_.by_batch([&] { return by_the_batch(); }));
        point = curve->find(recall_);
        if (probed) attempt_.begin();
        near = lists_of_first_round(point);
        probed = false;
        note_ = fmt::format(
            "{}, so recall was calibrated on {} queries of this batch{}", reason(),
            curve->nearest_keys.size(),
            filtered_ ? "" : "; tune() with such queries keeps that for searches to come");
      } else if (point) {
        holds_ = false;
        note_ = fmt::format(
            "{}, so a recall of {} is not promised; a batch of {} queries is calibrated by "
            "itself{}",
            reason(), recall_, least_calibrated_batch,
            shape_.alters_vectors() ? "" : ", and recall = 1 proves each answer");
      }
    }
    if (!point) {  // as many as there are, until everything is found
      attempt_.probing().probe(std::min(first_probes, state_.coarse->lists()));
      attempt_.probing().certify(true);
      return;
    }
    expected_ = point->expected;
    if (!probed) attempt_.probing().probe_by(point->rule, std::move(near));
  }

  void note(KnnReport& report) const {
    calibration_.note(report, note_);
    report.seconds -= calibration_.seconds();  // which went by while it searched
    if (!expected_ || report.recall_argument == "exact") return;
    report.recall_argument = holds_ ? "calibrated" : "none";
    report.promised_recall = holds_ ? recall_ : 0;
    report.expected_recall = holds_ ? *expected_ : 0;
  }

 private:
  NearLists lists_of_first_round(const RecallPoint* point) {
    ListProbing& search = attempt_.probing();
    return point ? search.lists_near(point->rule) : search.lists_near(1);
  }
  RecallCurve by_the_batch() const {
    const AnyMatrix sample =
        copies_of(request_.queries, queries_to_calibrate(request_.queries.rows()));
    return calibrate(state_, request_.options.metric, segments_, request_.k_asked, sample.view(),
                     {}, CurveUse::once, request_.threads, request_.options.progress);
  }
  std::string_view reason() const {
    return filtered_ ? "a filter leaves other rows than recall was calibrated on"
                     : "the queries are unlike those that recall was calibrated on";
  }

  const State& state_;
  const SearchRequest& request_;
  const std::span<const SearchSegment> segments_;
  const IndexShape& shape_;
  const double recall_;
  const bool filtered_;
  Attempt& attempt_;
  bool holds_ = true;  // the promise
  std::optional<double> expected_;
  std::string note_;
  Calibration calibration_;
};

// Whether every answer is exact, or nothing is known of them.
void set_recall(KnnReport& report, bool exact, std::int64_t queries) {
  report.certified_queries = exact ? queries : 0;
  report.promised_recall = report.expected_recall = exact ? 1 : 0;
  report.recall_argument = exact ? "exact" : "none";
}

void check_no_probes(const SearchOptions& options) {
  if (options.method.probes != 0)
    throw InvalidArgument("probes is {}, but there are no inverted lists", options.method.probes);
  if (options.method.widen) throw InvalidArgument("widen is on, but there are no inverted lists");
}

// The cheapest rule of a curve that promises a recall of codes.
const RecallPoint& point_of_codes(const RecallCurve& curve, const IndexShape& shape,
                                  double recall) {
  if (const RecallPoint* point = curve.find(recall)) return *point;
  const double most = curve.points.empty() ? 0 : curve.points.back().promised;
  const std::string highest = fmt::format("{:.3f}", std::floor(1000 * most) / 1000);
  if (shape.refine)
    throw InvalidArgument(
        "recall is {}, but {} is the highest that is promised of index {}, with refine_factor up "
        "to {}: a larger one, which is passed {}instead of a recall, or longer codes reach more",
        recall, highest, shape.description(), most_calibrated_factor,
        shape.lists > 0 ? "with probes " : "");
  throw InvalidArgument(
      "recall is {}, but {} is the highest that is promised of the codes of index {}: longer "
      "ones, or vectors to refine them by (RFlat), reach more",
      recall, highest, shape.description());
}

// A search of codes for a recall: by which rule, and what is to be said of it.
class CodeRecall {
 public:
  // queries: as the request has them after any transform; vectors: as users have them.
  CodeRecall(const State& state, const IndexShape& shape, std::span<const SearchSegment> segments,
             AnyMatrixView vectors, const SearchRequest& request, const SearchOptions& options)
      : state_(state),
        shape_(shape),
        segments_(segments),
        vectors_(vectors),
        request_(request),
        recall_(*options.method.recall),
        filtered_(!options.filter.everything()) {
    curve_ = state.recall->get(request.k_asked, [&] {
      return calibration_.first([&] {
        return calibrate_codes(state, shape, request.k_asked, request.threads,
                               request.options.progress);
      });
    });
    if (const RecallPoint* point = curve_->find(recall_)) point_ = *point;
  }

  // The scales of nearness, near: the lists that the queries choose from, of codes without lists
  // none.
  std::vector<Nearness> scales(const NearLists& near) const {
    if (!near.farthest.empty())
      return nearness_scales(request_.queries, request_.options.metric, near);
    return scales_without_lists(request_.queries, request_.options.metric);
  }
  // Whether queries that are like those of the curve have found rows as near as these.
  bool finds_as_calibrated(const ExactNeighbors& found, std::span<const Nearness> scales) const {
    return filtered_ || !promised_ ||
           detail::finds_as_calibrated(point_, recall_, request_.k_asked, found, scales);
  }

  // Any, until it is settled.
  const RecallRule& rule() const { return point_.rule; }
  const RecallCurve& curve() const { return *curve_; }

  // Told whether the queries are like those of the curve, returns whether there is another rule
  // now. Throws InvalidArgument for a recall that no rule is known to reach.
  bool settle(bool alike) {
    if (alike && !filtered_) {
      point_of_codes(*curve_, shape_, recall_);
      return false;
    }
    promised_ = false;
    note_ = filtered_ ? "a filter leaves other rows than recall was calibrated on"
                      : "the queries are unlike the vectors that recall was calibrated on";
    if (!shape_.keeps_vectors()) {
      point_of_codes(*curve_, shape_, recall_);
      holds_ = false;
      note_ += filtered_
                   ? ", so nothing is promised"
                   : ", so nothing is promised; tune() with such queries and the vectors that "
                     "the codes were made of finds out what recall they have";
      return false;
    }
    if (vectors_.rows() < least_calibrated_batch) {
      point_of_codes(*curve_, shape_, recall_);
      holds_ = false;
      note_ +=
          fmt::format(", so nothing is promised; a batch of {} queries is calibrated by itself",
                      least_calibrated_batch);
      return false;
    }
    const RecallCurve curve = calibration_.by_batch([&] {
      return calibrate_codes_by(state_, shape_, segments_, vectors_, request_.k_asked,
                                request_.threads, request_.options.progress);
    });
    point_ = point_of_codes(curve, shape_, recall_);
    note_ += fmt::format(", so recall was calibrated on {} queries of this batch{}",
                         curve.nearest_keys.size(),
                         filtered_ ? ""
                                   : "; tune() with such queries keeps that for searches to "
                                     "come");
    return true;
  }

  void note(KnnReport& report) const {
    calibration_.note(report, note_);
    report.recall_argument = holds_ ? "calibrated" : "none";
    report.promised_recall = holds_ ? recall_ : 0;
    report.expected_recall = holds_ ? point_.expected : 0;
  }

 private:
  const State& state_;
  const IndexShape& shape_;
  const std::span<const SearchSegment> segments_;
  const AnyMatrixView vectors_;
  const SearchRequest& request_;
  const double recall_;
  const bool filtered_;
  std::shared_ptr<const RecallCurve> curve_;
  RecallPoint point_;
  bool promised_ = true;  // by the curve of the index
  bool holds_ = true;     // the promise
  std::string note_;
  Calibration calibration_;
};

// Without inverted lists.
ExactNeighbors search_all_codes(const State& state, const IndexShape& shape,
                                std::span<const SearchSegment> segments, AnyMatrixView queries,
                                AnyMatrixView vectors, std::int64_t k, const SearchOptions& options,
                                std::int64_t refine_factor, KnnReport* report) {
  check_no_probes(options);
  const SearchRequest request = request_of_codes(SearchKind::nearest, state, segments, queries, k,
                                                 options_of_scan(options, shape.metric));
  std::optional<CodeRecall> recall;
  if (options.method.recall) probes_of(options, 1);
  if (options.method.recall && state.size > 0) {
    recall.emplace(state, shape, segments, vectors, request, options);
    recall->settle(
        of_one_kind(recall->curve(), keys_without_lists(state, queries, request.threads)));
    refine_factor = recall->rule().refine_factor;
  }
  std::optional<CodeSearch> search;
  ExactNeighbors found;
  const auto run = [&] {
    search.emplace(state, request, segments, vectors, refine_factor, 0);
    found = {};
    search->nearest(Matrix<Id>(queries.rows(), 1).view(), found);
  };
  run();
  if (recall && !recall->finds_as_calibrated(found, recall->scales({})) && recall->settle(false)) {
    refine_factor = recall->rule().refine_factor;
    run();
  }
  if (report) {
    *report = search->report();
    set_recall(*report, false, queries.rows());
    if (request.k_asked > request.k) report->short_queries = queries.rows();
    if (recall) recall->note(*report);
    if (options.method.kind == Method::exact) report->note = note_of_exact_codes;
  }
  return found;
}

// In inverted lists.
ExactNeighbors search_codes_by_recall(const State& state, const IndexShape& shape,
                                      std::span<const SearchSegment> segments,
                                      AnyMatrixView vectors, const SearchRequest& request,
                                      const SearchOptions& options, KnnReport* report) {
  const std::int64_t lists = state.coarse->lists();
  CodeRecall recall(state, shape, segments, vectors, request, options);
  const std::int64_t more_bytes = bytes_of_probing(request, lists);
  std::optional<CodeSearch> search;
  std::optional<ListProbing> probing;
  const auto begin = [&] {
    search.emplace(state, request, segments, vectors, recall.rule().refine_factor, more_bytes);
    return probing.emplace(state, request, *search).lists_near(recall.rule());
  };
  NearLists near = begin();
  if (recall.settle(of_one_kind(recall.curve(), near))) near = begin();
  const std::vector<Nearness> scales = recall.scales(near);
  probing->probe_by(recall.rule(), std::move(near));
  if (!recall.finds_as_calibrated(probing->found(), scales) && recall.settle(false)) {
    near = begin();
    probing->probe_by(recall.rule(), std::move(near));
  }
  if (options.method.widen) probing->widen();
  if (report) {
    *report = probing->report();
    recall.note(*report);
  }
  return probing->take_found();
}

}  // namespace

ExactNeighbors search_probed(const State& state, const IndexShape& shape,
                             std::span<const SearchSegment> segments, AnyMatrixView queries,
                             AnyMatrixView vectors, std::int64_t k, const SearchOptions& asked,
                             KnnReport* report) {
  check_scan(asked, shape);
  std::int64_t refine_factor = refine_factor_of(asked, shape);
  const SearchOptions options = all_if_exact(asked, state, shape, SearchKind::nearest);
  if (!state.coarse)
    return search_all_codes(state, shape, segments, queries, vectors, k, options, refine_factor,
                            report);
  const std::int64_t lists = state.coarse->lists(), asked_probes = probes_of(options, lists);
  // Of codes of no rows nothing has to be known.
  const bool nothing = shape.codes && state.size == 0;
  const std::int64_t probes = nothing ? lists : asked_probes;
  const KnnOptions scan_options = options_of_scan(options, shape.metric);
  const SearchRequest request =
      shape.codes
          ? request_of_codes(SearchKind::nearest, state, segments, queries, k, scan_options)
          : SearchRequest(SearchKind::nearest, segments, queries, k, scan_options, Reuse::expected);
  if (shape.codes && options.method.recall && !nothing)
    return search_codes_by_recall(state, shape, segments, vectors, request, options, report);
  Attempt attempt(state, request, segments, vectors, refine_factor,
                  bytes_of_probing(request, probes > 0 ? probes : lists));
  const bool everything = probes == 0 && *options.method.recall == 1;
  std::optional<RecallSearch> for_recall;
  if (probes == 0 && !everything) {
    for_recall.emplace(state, request, segments, shape, options, attempt).run();
  } else {
    attempt.begin();
    attempt.probing().probe(probes > 0 ? probes : std::min(first_probes, lists));
  }
  ListProbing& search = attempt.probing();
  if (options.method.widen) search.widen();
  if (everything || options.method.certify) search.certify(everything);
  if (report) {
    *report = search.report();
    if (for_recall) for_recall->note(*report);
    if (shape.codes && options.method.kind == Method::exact) report->note = note_of_exact_codes;
  }
  return search.take_found();
}

ExactNeighbors nearest_in_lists(const State& state, const IndexShape& shape,
                                std::span<const SearchSegment> segments, AnyMatrixView queries,
                                MatrixView<Id> lists, std::int64_t k, const SearchOptions& options,
                                KnnReport* report) {
  check_scan(options, shape);
  const std::int64_t refine_factor = refine_factor_of(options, shape);
  const KnnOptions scan_options = options_of_scan(options, shape.metric);
  const SearchRequest request =
      shape.codes
          ? request_of_codes(SearchKind::nearest, state, segments, queries, k, scan_options)
          : SearchRequest(SearchKind::nearest, segments, queries, k, scan_options, Reuse::expected);
  const std::unique_ptr<ProbedSearch> search =
      probed_search(state, request, segments, queries, refine_factor,
                    bytes_of_probing(request, std::max<std::int64_t>(1, lists.cols())));
  ExactNeighbors found;
  search->nearest(lists, found);
  if (report) {
    *report = search->report();
    report->lists = shape.lists, report->probes = static_cast<double>(lists.cols());
    report->method = "inverted-lists";
    set_recall(*report, false, queries.rows());
  }
  return found;
}

RangeLists range_search_probed(const State& state, const IndexShape& shape,
                               std::span<const SearchSegment> segments, AnyMatrixView queries,
                               AnyMatrixView vectors, double radius, const SearchOptions& asked,
                               KnnReport* report) {
  check_scan(asked, shape);
  if (shape.codes) check_processor(options_of_scan(asked, shape.metric), "a range search of codes");
  const std::int64_t refine_factor = refine_factor_of(asked, shape);
  if (asked.method.refine_factor > 0)
    throw InvalidArgument(
        "refine_factor is {}, but a range search has no number of neighbours to refine more than",
        asked.method.refine_factor);
  const SearchOptions options = all_if_exact(asked, state, shape, SearchKind::range);
  const std::int64_t lists = state.coarse ? state.coarse->lists() : 1,
                     probes = state.coarse ? probes_of(options, lists) : 1;
  if (!state.coarse) check_no_probes(options);
  if (options.method.widen)
    throw InvalidArgument("widen is on, but a range search has no number of rows to find");
  if (options.method.certify)
    throw InvalidArgument("certify is on, but of a range search only recall = 1 is certain");
  const KnnOptions scan_options = options_of_scan(options, shape.metric);
  const SearchRequest request = shape.codes ? request_of_codes(SearchKind::range, state, segments,
                                                               queries, usual_k, scan_options)
                                            : SearchRequest(SearchKind::range, segments, queries,
                                                            usual_k, scan_options, Reuse::expected);
  if (options.method.recall.value_or(1) != 1)
    throw InvalidArgument("recall is {}, but a range search is calibrated for none below 1",
                          *options.method.recall);
  if (shape.codes && options.method.recall)
    throw InvalidArgument("recall is {}, but a range search of codes has none to promise",
                          *options.method.recall);
  // Everything within a radius: a scan of all rows.
  if (probes == 0) return within_segments(request, radius, report);
  check_processor(scan_options, "a range search of some inverted lists");
  // Of all queries the numbers of their lists and, of codes, their terms.
  const std::unique_ptr<ProbedSearch> search =
      probed_search(state, request, segments, vectors, refine_factor,
                    queries.rows() * probes * 12 + bytes_of_probing(request, probes));
  RangeLists found(static_cast<std::size_t>(queries.rows()));
  Matrix<Id> near(queries.rows(), probes);
  const std::int64_t block = queries_together(request, probes);
  for (std::int64_t q = 0; state.coarse && q < queries.rows(); q += block) {
    const AnyMatrixView some = queries.rows(q, std::min(queries.rows(), q + block));
    const Neighbors part = state.coarse->probe(some, probes, request.threads);
    std::copy_n(part.ids.data(), some.rows() * probes, near.row(q));
  }
  search->within(near.view(), order_key(shape.metric, radius), found);
  if (report) {
    *report = search->report();
    report->k = 0;
    if (state.coarse) {
      report->lists = lists, report->probes = static_cast<double>(probes);
      report->method = "inverted-lists";
    }
    for (const auto& list : found) report->memory_bytes += 64 * std::ssize(list);
    set_recall(*report, !shape.codes && probes == lists, queries.rows());
  }
  return found;
}

}  // namespace knear::detail
