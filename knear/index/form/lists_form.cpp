// This form has inverted lists of vectors. A search scans the rows of some lists for each query.
#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/form/centroid_sections.hpp"
#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/probed_form.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/index/sections/transform_sections.hpp"
#include "knear/index/sections/vector_sections.hpp"
#include "knear/knn/device/open_device.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {
namespace {

// Lists that a search for everything probes before it looks at bounds.
constexpr std::int64_t first_probes = 8;

// A search of lists of vectors for a recall below 1: by the cheapest rule that is known to find as
// much, and by another one where the queries turn out to be unlike those that it was learned from.
class RecallSearch {
 public:
  // attempt: nothing was begun.
  RecallSearch(const FormQuery& query, SearchRequest& request, const IndexShape& shape,
               double recall, ProbedForm::Attempt& attempt)
      : state_(query.state),
        request_(request),
        calibration_(request),
        segments_(query.segments),
        shape_(shape),
        recall_(recall),
        filtered_(!query.options.filter.everything()),
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
    attempt_.begin(0);
    const auto first_round = [&] {
      return attempt_.probing().lists_near(point ? point->rule.lists : 1);
    };
    NearLists near = first_round();
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
        if (probed) attempt_.begin(0);
        near = first_round();
        probed = false;
        calibration_.add_note(fmt::format(
            "{}, so recall was calibrated on {} queries of this batch{}", reason(),
            curve->nearest_keys.size(),
            filtered_ ? "" : "; tune() with such queries keeps that for searches to come"));
      } else if (point) {
        holds_ = false;
        calibration_.add_note(fmt::format(
            "{}, so a recall of {} is not promised; a batch of {} queries is calibrated by "
            "itself{}",
            reason(), recall_, least_calibrated_batch,
            shape_.alters_vectors() ? "" : ", and recall = 1 proves each answer"));
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

  // What is promised of the answer. proven: what is certain of it.
  PromiseReport promise(PromiseReport proven) const {
    if (!expected_ || !holds_ || proven.recall_argument == "exact") return proven;
    PromiseReport out = calibrated_promise(recall_, *expected_);
    out.certified_queries = proven.certified_queries;
    out.uncertified = std::move(proven.uncertified);
    return out;
  }

 private:
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
  Calibrations calibration_;
  const std::span<const SearchSegment> segments_;
  const IndexShape& shape_;
  const double recall_;
  const bool filtered_;
  ProbedForm::Attempt& attempt_;
  bool holds_ = true;  // the promise
  std::optional<double> expected_;
};

// The keys of the nearest centroids of vectors that these were not learned from, ascending.
std::shared_ptr<const std::vector<float>> keys_of(const CoarseQuantizer& coarse,
                                                  AnyMatrixView vectors, int threads) {
  const Neighbors near = coarse.probe(vectors, 1, threads);
  std::vector<float> keys(near.distances.data(), near.distances.data() + vectors.rows());
  std::sort(keys.begin(), keys.end());
  return std::make_shared<const std::vector<float>>(std::move(keys));
}

class ListsForm final : public ProbedForm {
 public:
  using ProbedForm::ProbedForm;

  void train(State& next, const TrainingRows& from) const override {
    ProbedForm::train(next, from);
    if (from.held_out.rows() >= least_held_out)
      next.fresh_keys = keys_of(*next.coarse, from.held_out, from.options.threads);
  }

  ExactNeighbors nearest(const FormQuery& query, std::int64_t k, KnnReport* report) const override {
    const std::int64_t lists = query.state.coarse->lists();
    const ProbedOptions asked = options_of_lists(query.options, shape_, lists, SearchKind::nearest);
    SearchRequest request = this->request(SearchKind::nearest, query, k, asked.scan);
    Attempt attempt(*this, query, request,
                    bytes_of_probing(request, asked.by_recall() ? lists : asked.probes));
    const bool everything = asked.by_recall() && asked.recall == 1;
    std::optional<RecallSearch> for_recall;
    if (asked.by_recall() && !everything) {
      for_recall.emplace(query, request, shape_, asked.recall, attempt).run();
    } else {
      attempt.begin(0);
      if (everything)
        attempt.probing().probe_to_certify(std::min(first_probes, lists));
      else
        attempt.probing().probe(asked.probes);
    }
    ListProbing& search = attempt.probing();
    if (asked.widen) search.widen();
    if (everything || asked.certify) search.certify(everything);
    if (report) {
      *report = search.report();
      set_promise(*report, request,
                  for_recall ? for_recall->promise(search.promise()) : search.promise());
    }
    return search.take_found();
  }

  RangeLists within(const FormQuery& query, double radius, KnnReport* report) const override {
    const std::int64_t lists = query.state.coarse->lists();
    const ProbedOptions asked = options_of_lists(query.options, shape_, lists, SearchKind::range);
    const SearchRequest request = this->request(SearchKind::range, query, usual_k, asked.scan);
    // Everything within a radius: a scan of all rows.
    if (asked.by_recall()) return within_segments(request, radius, report);
    return within_lists(query, request, radius, asked, asked.probes == lists, report);
  }

  std::vector<OperatingPoint> tune(const State& state, std::int64_t k, AnyMatrixView vectors,
                                   const ChangeOptions& options) const override {
    if (vectors.rows() == 0)
      return keep_curve(
          state, calibrate_by_rows(state, shape_.metric, k, options.threads, options.progress));
    const TransformedQueries inner(state, shape_.metric, vectors, options.threads);
    return keep_curve(state, calibrate(state, shape_.metric, live_segments(state), k, inner.view(),
                                       {}, CurveUse::kept, options.threads, options.progress));
  }

  bool has_ids_in_lists() const override { return true; }

  std::string kind() const override { return "IVFFlat"; }
  std::string words() const override { return words_of(shape_.rounded); }

  void save(io::ArchiveWriter& writer, const State& state) const override {
    add_centroids(writer, shape_, state);
    add_transforms(writer, shape_, state.transform);
    add_rounded(writer, shape_);
    save_vectors(writer, state);
    save_recall(writer, state);
  }
  void load_learned(Sections& in, const FileHead& head, IndexShape& shape,
                    State& state) const override {
    load_rounded(in, shape);
    load_centroids(in, shape, state, head.make_centroid_index);
  }
  Segment load_segment(Sections& in, std::size_t number, const State& state) const override {
    if (!state.coarse) in.refuse("lists", "there are rows, but no centroids");
    return Form::load_segment(in, number, state);
  }

 protected:
  SearchRequest request(SearchKind kind, const FormQuery& query, std::int64_t k,
                        const KnnOptions& options) const override {
    SearchRequest out(kind, query.segments, query.queries, k, options, Reuse::expected);
    out.altered_by = shape_.altered_by();
    return out;
  }
  std::unique_ptr<ProbedSearch> open(const FormQuery&, const SearchRequest& request, std::int64_t,
                                     std::int64_t more_bytes) const override {
    return open_list_search(request, more_bytes);
  }
};

}  // namespace

FormEntry lists_form() {
  const auto take = [](FactoryWords& words, IndexShape& shape) {
    return shape.lists > 0 && take_vectors(words, shape) ? only_map : std::string_view();
  };
  return {{"IVFFlat"},
          "",
          words_of_vectors,
          take,
          [](const IndexShape& shape) { return shape.lists > 0 && !shape.codes; },
          make_form<ListsForm>};
}

}  // namespace knear::detail
