// This form has inverted lists of vectors. A search scans the rows of some lists for each query.
#include <algorithm>
#include <numeric>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/index/form/centroid_sections.hpp"
#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/probed_form.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/index/sections/transform_sections.hpp"
#include "knear/index/sections/vector_sections.hpp"
#include "knear/knn/device/open_device.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/scan/device_choice.hpp"

namespace knear::detail {
namespace {

// Rows in one list each, or in two: files of earlier versions have the first alone.
constexpr std::string_view kind_in_lists = "IVFFlat", kind_in_two_lists = "IVFSOARFlat";

// Lists that a search for everything probes before it looks at bounds.
constexpr std::int64_t first_probes = 8;

// Queries of a batch whose answers are checked by exact ones.
constexpr std::int64_t queries_checked = 256;

constexpr std::string_view note_of_harder =
    "batches of queries like those that recall was calibrated on were seen to find less, so it was "
    "calibrated on 500 queries of such a batch, which the index keeps until tune()";

// A search of lists of vectors for a recall below 1. It goes by the cheapest rule of the index's
// own curve; where the queries turn out to be unlike those that this was learned from, by that of a
// kind of queries that an earlier batch has shown; and else by some queries of the batch itself,
// which the index then keeps as a kind. In an index that audits itself it goes by the curve of its
// traffic first.
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
        traffic_(query.options.method.traffic.text()),
        attempt_(attempt) {}

  // The attempt has the answer then.
  void run() {
    const Metric metric = request_.options.metric;
    const auto own = state_.recall->get(request_.k_asked, [&] {
      return calibration_.first([&] {
        return calibrate_by_rows(state_, metric, request_.k_asked, request_.threads,
                                 request_.options.progress);
      });
    });
    // Small batches never go by what was learned, so that their answers do not depend on it.
    const bool large =
        request_.queries.rows() >= (filtered_ ? least_calibrated_batch : least_learned_batch);
    RecallCurves::Kinds kinds;
    if (large && !filtered_) kinds = state_.recall->kinds(request_.k_asked);
    audit(*own);
    order_lists(*own, kinds);
    if (answer_as_audited(large)) return;
    const bool like_own = !filtered_ && of_one_kind(*own, near_);
    // First, whatever was learned: queries like the rows get the same answers before and after.
    if (like_own && answer_as(own)) {
      if (is_audited_ && !large) promise_nothing();
      return;
    }
    for (const auto& kind : kinds)
      if (of_one_kind(*kind, near_) && answer_by(*kind)) {
        calibration_.add_note(fmt::format(
            "{}, so recall is that of an earlier batch of queries like these", reason()));
        return;
      }
    if (large) {
      const RecallCurve curve = calibration_.by_batch([&] { return by_the_batch(); });
      calibration_.add_note(fmt::format(
          "{}, so recall was calibrated on {} queries of this batch{}", reason(),
          curve.nearest_keys.size(),
          filtered_ ? "" : ", which the index keeps for queries like these until tune()"));
      if (!filtered_ && !curve.points.empty()) state_.recall->learn(curve);
      probe_by(curve.find(recall_));
      return;
    }
    probe_by(own->find(recall_));
    if (!point_) return;
    if (is_audited_) return promise_nothing();
    holds_ = false;
    calibration_.add_note(fmt::format(
        "{}, so a recall of {} is not promised; a batch of {} queries is calibrated by itself{}",
        reason(), recall_, filtered_ ? least_calibrated_batch : least_learned_batch,
        shape_.alters_vectors() ? "" : ", and recall = 1 proves each answer"));
  }

  // What is promised of the answer. proven: what is certain of it.
  PromiseReport promise(PromiseReport proven) const {
    if (!point_ || !holds_ || proven.recall_argument == "exact") return proven;
    PromiseReport out = calibrated_promise(*point_, recall_, request_.queries.rows());
    out.certified_queries = proven.certified_queries;
    out.uncertified = std::move(proven.uncertified);
    if (by_audit_) out.audited_queries = audited_.queries;
    return out;
  }

 private:
  // Records the queries and takes the curve of their traffic, which may be made now.
  void audit(const RecallCurve& own) {
    if (!state_.audits || filtered_ || request_.queries.rows() == 0) return;
    const AuditLog::Search search{.traffic = traffic_,
                                  .k = request_.k_asked,
                                  .recall = recall_,
                                  .epoch = state_.audit_epoch,
                                  .may_audit = !request_.limited()};
    audited_ = state_.audits->find(search);
    const RecallPoint* const point =
        audited_.curve ? audited_.point(recall_, search.sample) : own.find(recall_);
    const AuditCosts costs{cost_of_search(point, 1), cost_of_exact(1) - cost_of_exact(0),
                           cost_of_exact(0)};
    audited_ = state_.audits->serve(search, request_.queries, costs, [&](AnyMatrixView sample) {
      calibration_.add_note(
          fmt::format("recall was calibrated on {} audited queries first, which "
                      "the index keeps",
                      sample.rows()));
      return calibration_.by_batch([&] {
        return calibrate(state_, request_.options.metric, segments_, request_.k_asked, sample, {},
                         CurveUse::kept, request_.threads, request_.options.progress);
      });
    });
    is_audited_ = audited_.followed && (state_.audits->share() > 0 || audited_.curve);
  }
  // Answers by the curve of the traffic. Returns false if there is none, or if the queries of a
  // large batch are unlike those of the curve. A small batch goes by it all the same, so that a
  // query has the same answer in any of them.
  bool answer_as_audited(bool large) {
    if (!audited_.curve) return false;
    const bool alike = of_one_kind(*audited_.curve, near_);
    if (large && !alike) return false;
    by_audit_ = answer_by(audited_.point(recall_, AuditLog::most_queries)) && alike;
    if (!by_audit_ && !large) promise_nothing();
    return by_audit_ || !large;
  }
  void promise_nothing() {
    if (!point_) return;  // the answer is exact
    holds_ = false;
    calibration_.add_note(note_of_unaudited(audited_, traffic_));
  }
  // Puts as many lists of each query in order as any of these curves needs.
  void order_lists(const RecallCurve& own, const RecallCurves::Kinds& kinds) {
    const auto lists_of = [&](const RecallCurve& curve) {
      const RecallPoint* const point = curve.find(recall_);
      return point ? point->rule.lists : 1;
    };
    ordered_ = lists_of(own);
    for (const auto& kind : kinds) ordered_ = std::max(ordered_, lists_of(*kind));
    if (audited_.curve) {
      const RecallPoint* const point = audited_.point(recall_, AuditLog::most_queries);
      ordered_ = point ? point->rule.lists : 1;
    }
    attempt_.begin(0);
    near_ = attempt_.probing().lists_near(ordered_);
  }
  NearLists near(const RecallRule& rule) const {
    const std::int64_t lists = std::min(rule.lists, state_.coarse->lists());
    const bool kept =
        near_.lists.ids.rows() == request_.queries.rows() && near_.lists.ids.cols() >= lists;
    return kept ? first_of(near_, lists) : attempt_.probing().lists_near(lists);
  }
  // Probes by the rule of a point, or if there is none until everything is found.
  void probe_by(const RecallPoint* point) {
    if (probed_ && point && point_ && point->rule == point_->rule) {
      point_ = *point;  // another curve's, which expects and promises something else
      return;
    }
    if (probed_) attempt_.begin(0);
    probed_ = true;
    point_.reset();
    if (!point) {
      attempt_.probing().probe(std::min(first_probes, state_.coarse->lists()));
      attempt_.probing().certify(true);
      return;
    }
    NearLists lists = near(point->rule);
    scales_ = nearness_scales(request_.queries, request_.options.metric, lists);
    attempt_.probing().probe_by(point->rule, std::move(lists));
    point_ = *point;
  }
  // Answers by the rule of a curve. Returns false if what was found shows that the queries are
  // unlike those of the curve.
  bool answer_by(const RecallCurve& curve) { return answer_by(curve.find(recall_)); }
  bool answer_by(const RecallPoint* point) {
    probe_by(point);
    return !point_ || finds_as_calibrated(*point_, recall_, request_.k_asked,
                                          attempt_.probing().found(), scales_);
  }
  // Answers queries that look like those of the own curve. Batches that are large enough go by the
  // curve of harder queries, once these have been noticed among such batches, and are checked.
  bool answer_as(const std::shared_ptr<const RecallCurve>& own) {
    const bool large = request_.queries.rows() >= least_learned_batch;
    const auto harder = large ? state_.recall->harder(request_.k_asked) : nullptr;
    if (harder && of_one_kind(*harder, near_) && answer_by(*harder)) {
      calibration_.add_note(note_of_harder);
      return true;
    }
    if (!answer_by(*own)) return false;
    if (large && point_ && finds_less()) {
      const RecallCurve curve = calibration_.by_batch([&] { return by_the_batch(); });
      state_.recall->learn_harder(curve);
      probe_by(curve.find(recall_));
      calibration_.add_note(note_of_harder);
    }
    return true;
  }
  // Predicted nanoseconds of one core of a search by a point, which is nullptr where everything is
  // found, and of exact answers.
  double cost_of_search(const RecallPoint* point, std::int64_t queries) const {
    if (!point) return static_cast<double>(queries) * (cost_of_exact(1) - cost_of_exact(0));
    // Costs of a query, of a list that it probes, of one that is put in order for it, and of a
    // coordinate of a row and of a centroid.
    constexpr double query = 4000, list = 190, order = 75, coordinate = 0.004, centroid = 0.01;
    const auto dim = static_cast<double>(request_.queries.cols()),
               lists = static_cast<double>(state_.coarse->lists());
    return static_cast<double>(queries) *
           (query + list * point->lists + order * static_cast<double>(point->rule.lists) +
            dim * (coordinate * point->rows + centroid * lists));
  }
  double cost_of_exact(std::int64_t queries) const {
    // Costs of a query, of a coordinate of a row for each query, and of reading it once for all.
    constexpr double query = 10000, coordinate = 0.004, read = 0.05;
    const double coordinates =
        static_cast<double>(state_.size) * static_cast<double>(request_.queries.cols());
    return coordinates * read + static_cast<double>(queries) * (query + coordinates * coordinate);
  }
  // Compares the answer with exact answers to some queries, if earlier batches have paid for that.
  // Returns true if it has less recall than was asked for, which a larger sample then confirms.
  bool finds_less() {
    // The costs below are those of a processor, and exact answers need memory.
    if (request_.options.device != "cpu" || request_.limited()) return false;
    const double batch = cost_of_search(&*point_, request_.queries.rows()),
                 check = cost_of_exact(queries_checked);
    const auto number = state_.recall->next_check(request_.k_asked, batch, check);
    if (!number) return false;
    return state_.recall->finds_less(
               request_.k_asked,
               recalls_of(queries_checked, static_cast<std::uint64_t>(*number) + 3), recall_) &&
           mean_of(recalls_of(most_queries_sampled, 1)) < recall_;
  }
  // The recalls of some queries of the batch [count, or all], by exact answers.
  std::vector<double> recalls_of(std::int64_t count, std::uint64_t seed) const {
    const std::int64_t queries = request_.queries.rows();
    Random random(seed);
    const std::vector<std::int64_t> numbers = sample_of(queries, std::min(count, queries), random);
    const AnyMatrix some = copies_of(request_.queries, numbers);
    const SearchRequest request(SearchKind::nearest, segments_, some.view(), request_.k_asked,
                                {.metric = request_.options.metric,
                                 .threads = request_.threads,
                                 .progress = request_.options.progress},
                                Reuse::expected);
    const Neighbors truth = search_segments(request, nullptr);
    const ExactNeighbors& found = attempt_.probing().found();
    std::vector<double> out;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const Id* const ids = found.ids.row(numbers[i]);
      std::int64_t there = 0, all = 0;
      for (std::int64_t j = 0; j < truth.ids.cols(); ++j) {
        const Id id = truth.ids.row(static_cast<std::int64_t>(i))[j];
        if (id == no_id) break;
        ++all, there += std::find(ids, ids + found.columns(), id) != ids + found.columns();
      }
      out.push_back(all == 0 ? 1 : static_cast<double>(there) / static_cast<double>(all));
    }
    return out;
  }
  static double mean_of(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) /
           static_cast<double>(std::max<std::size_t>(1, values.size()));
  }
  RecallCurve by_the_batch() const {
    const AnyMatrix sample =
        copies_of(request_.queries, queries_to_calibrate(request_.queries.rows()));
    return calibrate(state_, request_.options.metric, segments_, request_.k_asked, sample.view(),
                     {}, filtered_ ? CurveUse::once : CurveUse::kept, request_.threads,
                     request_.options.progress);
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
  const std::string traffic_;
  ProbedForm::Attempt& attempt_;
  AuditLog::Audited audited_;
  bool is_audited_ = false;
  bool by_audit_ = false;  // whether the answer goes by the curve of the traffic
  std::int64_t ordered_ = 0;
  NearLists near_;  // the nearest lists of each query, ordered_ of them
  std::vector<Nearness> scales_;
  bool probed_ = false;
  bool holds_ = true;                 // the promise
  std::optional<RecallPoint> point_;  // by whose rule was probed; no value: everything was found
};

// The keys of the nearest centroids of vectors that these were not learned from, ascending.
std::shared_ptr<const std::vector<float>> keys_of(const CoarseQuantizer& coarse,
                                                  AnyMatrixView vectors, int threads) {
  const Neighbors near = coarse.probe(vectors, 1, threads);
  return std::make_shared<const std::vector<float>>(
      keys_in_order({near.distances.data(), near.distances.data() + vectors.rows()}));
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

  void check_faiss(const State& state) const override {
    if (shape_.in_two_lists)
      throw InvalidArgument(
          "index {} has its rows in two lists each, which FAISS has not: make an index IVF{} of "
          "the vectors for it",
          shape_.description(), shape_.lists);
    ProbedForm::check_faiss(state);
  }

  std::string kind() const override {
    return std::string(shape_.in_two_lists ? kind_in_two_lists : kind_in_lists);
  }
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
    shape.in_two_lists = head.kind == kind_in_two_lists;
    load_centroids(in, shape, state, head.make_centroid_index);
  }
  Segment load_segment(Sections& in, std::size_t number, const State& state) const override {
    if (!state.coarse) in.refuse("lists", "there are rows, but no centroids");
    return Form::load_segment(in, number, state);
  }

 protected:
  SearchRequest request(SearchKind kind, const FormQuery& query, std::int64_t k,
                        const KnnOptions& options) const override {
    if (shape_.in_two_lists && parse_devices(options.device).cuda())
      throw InvalidArgument(
          "device is '{}', but index {} has its rows in two lists each, which only the processor "
          "searches: use device 'cpu' here, or an index IVF{} for GPUs",
          options.device, shape_.description(), shape_.lists);
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
  return {{std::string(kind_in_lists), std::string(kind_in_two_lists)},
          "",
          words_of_vectors,
          take,
          [](const IndexShape& shape) { return shape.lists > 0 && !shape.codes; },
          make_form<ListsForm>};
}

}  // namespace knear::detail
