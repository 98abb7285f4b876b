// This form keeps rows as codes, in inverted lists or without. A distance to a code is the distance
// to the vector that it stands for; finer codes or the vectors themselves may refine the answer.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/form/centroid_sections.hpp"
#include "knear/index/form/coded_segments.hpp"
#include "knear/index/form/factory_words.hpp"
#include "knear/index/form/probed_form.hpp"
#include "knear/index/lists/code_calibration.hpp"
#include "knear/index/lists/code_search.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/index/sections/code_sections.hpp"
#include "knear/index/sections/recall_sections.hpp"
#include "knear/index/sections/transform_sections.hpp"

namespace knear::detail {
namespace {

// Kinds of codes in inverted lists begin with this.
constexpr std::string_view kinds_in_lists = "IVF";
constexpr std::string_view note_of_exact_codes =
    "exact with respect to the vectors that codes stand for";

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

// Throws InvalidArgument for queries whose products with codes are beyond float32, in which tables
// of products are summed, or vanish in it.
void check_products(const FormQuery& query, Metric metric) {
  if (!traits_of(metric).product) return;
  const double longest = query.state.coder->longest();
  for (std::int64_t q = 0; q < query.queries.rows(); ++q) {
    const double length = length_of(query.queries.rows(q, q + 1)), most = length * longest;
    const bool vanishes = most > 0 && most < double{std::numeric_limits<float>::min()};
    if (vanishes || most > double{std::numeric_limits<float>::max()})
      throw InvalidArgument(
          "queries hold a row {} of length {:.3g}, whose products with codes of vectors of length "
          "{:.3g} {} float32: multiply it by a power of two, such as 2^{}",
          q, length, longest, vanishes ? "vanish in" : "are beyond", -std::ilogb(length));
  }
}

// A search of codes for a recall: by which rule, and what is to be said of it.
class CodeRecall {
 public:
  CodeRecall(const FormQuery& query, const IndexShape& shape, SearchRequest& request, double recall)
      : state_(query.state),
        shape_(shape),
        segments_(query.segments),
        vectors_(query.vectors),
        request_(request),
        calibration_(request),
        recall_(recall),
        filtered_(!query.options.filter.everything()),
        traffic_(query.options.method.traffic.text()) {
    curve_ = state_.recall->get(request.k_asked, [&] {
      return calibration_.first([&] {
        return calibrate_codes(state_, shape, request.k_asked, request.threads,
                               request.options.progress);
      });
    });
    if (const RecallPoint* point = curve_->find(recall_)) point_ = *point;
    audit();
  }

  // The scales of nearness, near: the lists that the queries choose from, of codes without lists
  // none.
  std::vector<Nearness> scales(const NearLists& near) const {
    if (!near.farthest.empty())
      return nearness_scales(request_.queries, request_.options.metric, near);
    return scales_without_lists(request_.queries, request_.options.metric);
  }
  // Whether these distances are like those that the calibration found for its queries.
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
      if (!audited_.curve) point_of_codes(*curve_, shape_, recall_);
      return false;
    }
    promised_ = false;
    if (is_audited_ && vectors_.rows() < least_calibrated_batch) {
      if (!audited_.curve) point_of_codes(*curve_, shape_, recall_);
      if (holds_) calibration_.add_note(note_of_unaudited(audited_, traffic_));
      holds_ = false;
      return false;
    }
    by_audit_ = false;
    const std::string_view reason =
        filtered_ ? "a filter leaves other rows than recall was calibrated on"
                  : "the queries are unlike the vectors that recall was calibrated on";
    if (!shape_.keeps_vectors()) {
      point_of_codes(*curve_, shape_, recall_);
      holds_ = false;
      calibration_.add_note(fmt::format(
          "{}, so nothing is promised{}", reason,
          filtered_
              ? ""
              : "; tune() with such queries and the vectors that the codes were made of finds "
                "out what recall they have"));
      return false;
    }
    if (vectors_.rows() < least_calibrated_batch) {
      point_of_codes(*curve_, shape_, recall_);
      holds_ = false;
      calibration_.add_note(
          fmt::format("{}, so nothing is promised; a batch of {} queries is calibrated by itself",
                      reason, least_calibrated_batch));
      return false;
    }
    const RecallCurve curve = calibration_.by_batch([&] {
      return calibrate_codes_by(state_, shape_, segments_, vectors_, request_.k_asked,
                                request_.threads, request_.options.progress);
    });
    point_ = point_of_codes(curve, shape_, recall_);
    calibration_.add_note(
        fmt::format("{}, so recall was calibrated on {} queries of this batch{}", reason,
                    curve.nearest_keys.size(),
                    filtered_ ? "" : "; tune() with such queries keeps that for searches to come"));
    return true;
  }

  PromiseReport promise() const {
    if (!holds_) return no_promise();
    PromiseReport out = calibrated_promise(point_, recall_, vectors_.rows());
    if (by_audit_) out.audited_queries = audited_.queries;
    return out;
  }

 private:
  // Records the queries and goes by the curve of their traffic, which may be made now.
  void audit() {
    if (!state_.audits || filtered_ || vectors_.rows() == 0) return;
    const AuditLog::Search search{.traffic = traffic_,
                                  .k = request_.k_asked,
                                  .recall = recall_,
                                  .sample = most_queries_sampled,
                                  .epoch = state_.audit_epoch,
                                  .may_audit = !request_.limited()};
    audited_ = state_.audits->find(search);
    // Predicted nanoseconds of one core: of a query, a byte of codes, and a coordinate of a vector.
    constexpr double query = 10000, byte = 0.015, coordinate = 0.004;
    const auto rows = static_cast<double>(state_.size);
    const double exact = query + rows * static_cast<double>(shape_.dim) * coordinate;
    const RecallPoint* const before =
        audited_.curve ? audited_.point(recall_, search.sample) : curve_->find(recall_);
    const double cost = query + (before ? before->rows : rows) *
                                    static_cast<double>(state_.coder->code_size()) * byte;
    // A calibration searches by each of about thirty rules.
    constexpr double searches = 30;
    audited_ = state_.audits->serve(
        search, vectors_, {cost, exact + searches * cost, 0}, [&](AnyMatrixView sample) {
          calibration_.add_note(fmt::format(
              "recall was calibrated on {} audited queries first, which the index keeps",
              sample.rows()));
          return calibration_.by_batch([&] {
            return calibrate_codes_by(state_, shape_, segments_, sample, request_.k_asked,
                                      request_.threads, request_.options.progress);
          });
        });
    is_audited_ = audited_.followed && (state_.audits->share() > 0 || audited_.curve);
    if (audited_.curve) {
      // A recall that codes are not seen to reach is refused, once enough queries were audited.
      const RecallPoint* const point = audited_.point(recall_, search.sample);
      point_ = point ? *point : point_of_codes(*audited_.curve, shape_, recall_);
      curve_ = audited_.curve, by_audit_ = true;
    } else if (is_audited_ && vectors_.rows() < least_calibrated_batch) {
      holds_ = false;
      calibration_.add_note(note_of_unaudited(audited_, traffic_));
    }
  }

  const State& state_;
  const IndexShape& shape_;
  const std::span<const SearchSegment> segments_;
  const AnyMatrixView vectors_;
  const SearchRequest& request_;
  Calibrations calibration_;
  const double recall_;
  const bool filtered_;
  const std::string traffic_;
  AuditLog::Audited audited_;
  bool is_audited_ = false;
  bool by_audit_ = false;  // whether the answer goes by the curve of the traffic
  std::shared_ptr<const RecallCurve> curve_;
  RecallPoint point_;
  bool promised_ = true;  // by the curve of the index
  bool holds_ = true;     // the promise
};

// The rows of a base whose ids the index holds. Throws unless the base has all of them.
RowFilter rows_held(const State& state, std::span<const Id> ids) {
  std::vector<Id> rows;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (state.find(ids[i]).row >= 0) rows.push_back(static_cast<Id>(i));
  if (std::ssize(rows) != state.size)
    throw InvalidArgument("base has {} of the {} rows that the index holds", std::ssize(rows),
                          state.size);
  return RowFilter::of_ids(rows, std::ssize(ids));
}

class CodesForm final : public ProbedForm {
 public:
  using ProbedForm::ProbedForm;

  std::string kind() const override {
    return fmt::format("{}{}", shape_.lists > 0 ? kinds_in_lists : "",
                       codec_of(*shape_.codes).kind());
  }
  std::string words() const override {
    return shape_.codes->name() + (shape_.refine ? "," + name_of(*shape_.refine) : "");
  }
  void check_over_centroids(std::int64_t lists, const WrongWord& wrong) const override {
    for (const auto& codes : all_codes())
      if (codes && codec_of(*codes).least_rows(*codes) > lists)
        wrong(fmt::format("but {} takes {} centroids at least, not {}", codes->name(),
                          codec_of(*codes).least_rows(*codes), lists));
  }
  bool fits_more_columns() const override {
    for (const auto& codes : all_codes())
      if (codes && codec_of(*codes).has_parts()) return false;
    return true;
  }

  std::unique_ptr<SegmentStore> make_store() const override {
    return std::make_unique<CodedSegments>(shape_);
  }
  std::int64_t code_size(const State& state) const override { return state.coder->code_size(); }

  std::int64_t least_training_rows() const override {
    std::int64_t least = shape_.lists;
    for (const auto& codes : all_codes())
      if (codes) least = std::max(least, codec_of(*codes).least_rows(*codes));
    return least;
  }
  void train(State& next, const TrainingRows& from) const override {
    ProbedForm::train(next, from);
    const TrainOptions& options = from.options;
    next.coder = RowCoder::trained(*shape_.codes, from.rows, shape_.metric, next.coarse, options,
                                   from.number);
    if (shape_.refine && shape_.refine->codes)
      next.refiner = RowCoder::trained(*shape_.refine->codes, from.given(), shape_.metric, nullptr,
                                       options, from.number);
    if (options.hold_out)
      next.known = KnownNeighbors::of(
          from.held_out_as_given.rows() >= least_held_out ? from.held_out_as_given : from.all,
          shape_.metric, options.seed);
  }
  // OPQ's rotation keeps distances if it keeps the number of columns.
  bool turns_residuals() const override {
    if (shape_.transforms.empty() || shape_.lists == 0 || !shape_.codes->residual) return false;
    const TransformShape& last = shape_.transforms.back();
    const std::size_t count = shape_.transforms.size();
    const std::int64_t before = count > 1 ? shape_.transforms[count - 2].dim_out : shape_.dim;
    return last.kind == TransformShape::Kind::opq && last.dim_out == before &&
           codec_of(*shape_.codes).has_parts();
  }

  bool is_trained(const State& state) const override {
    return ProbedForm::is_trained(state) && state.coder;
  }
  void check_same_codes(const State& own, const State& others) const override {
    const auto differ = [](const auto& a, const auto& b) { return a && !a->equals(*b); };
    if (differ(own.coder, others.coder) || differ(own.refiner, others.refiner))
      throw InvalidArgument(
          "other is an index {} that was trained to other codes than this one: add its vectors",
          shape_.description());
  }

  // For few queries, where k rows at least are allowed for certain. How many rows a filter allows
  // is not known then.
  bool looks_up_ids(const State& state, std::int64_t queries, std::int64_t k, const RowFilter& bits,
                    const SearchOptions& options) const override {
    // Larger batches may be calibrated by themselves, for which rows have to be counted.
    constexpr std::int64_t usual_probes = 64, most_queries = 256;
    if (!state.coarse || bits.everything() || queries > most_queries) return false;
    const std::int64_t lists = state.coarse->lists(),
                       asked = options.method.probes > 0 ? options.method.probes : usual_probes,
                       probes = std::min(asked, lists);  // which may not have been checked yet
    return options.method.kind != Method::exact && queries * probes <= lists / 2 &&
           bits.count() - (state.next_id - state.size) >= k;
  }

  ExactNeighbors nearest(const FormQuery& query, std::int64_t k, KnnReport* report) const override {
    const std::int64_t lists = shape_.lists;
    const ProbedOptions asked = options_of_codes(query.options, shape_, lists, SearchKind::nearest);
    check_products(query, shape_.metric);
    SearchRequest request = this->request(SearchKind::nearest, query, k, asked.scan);
    if (asked.exact && (lists == 0 || !asked.by_recall()))
      add_note(request.preparation.note, note_of_exact_codes);
    if (lists == 0) return nearest_of_all(query, request, asked, report);
    // An index without rows needs no curve of recall.
    const bool nothing = query.state.size == 0;
    if (asked.by_recall() && !nothing) return nearest_by_recall(query, request, asked, report);
    const std::int64_t probes = nothing ? lists : asked.probes;
    Attempt attempt(*this, query, request, bytes_of_probing(request, probes));
    attempt.begin(asked.refine_factor);
    ListProbing& search = attempt.probing();
    search.probe(probes);
    if (asked.widen) search.widen();
    if (report) {
      *report = search.report();
      set_promise(*report, request, search.promise());
    }
    return search.take_found();
  }

  RangeLists within(const FormQuery& query, double radius, KnnReport* report) const override {
    const ProbedOptions asked =
        options_of_codes(query.options, shape_, shape_.lists, SearchKind::range);
    check_products(query, shape_.metric);
    const SearchRequest request = this->request(SearchKind::range, query, usual_k, asked.scan);
    return within_lists(query, request, radius, asked, false, report);
  }

  std::vector<OperatingPoint> tune(const State& state, std::int64_t k, AnyMatrixView vectors,
                                   const ChangeOptions& options) const override {
    if (vectors.rows() == 0)
      return keep_curve(state,
                        calibrate_codes(state, shape_, k, options.threads, options.progress));
    return keep_curve(state, calibrate_codes_by(state, shape_, live_segments(state), vectors, k,
                                                options.threads, options.progress));
  }
  void check_tuned_by(AnyMatrixView queries) const override {
    if (queries.rows() > 0 && !shape_.keeps_vectors())
      throw InvalidArgument(
          "queries are {}, but index {} has codes, which cannot tell what is nearest to them "
          "without base, the vectors that they were made of",
          queries.rows(), shape_.description());
  }
  void check_tuned_with(AnyMatrixView) const override {}
  std::vector<OperatingPoint> tune_with(State& next, std::int64_t k, AnyMatrixView queries,
                                        AnyMatrixView base, std::span<const Id> ids,
                                        const ChangeOptions& options) const override {
    const RowFilter held = rows_held(next, ids);
    const AnyMatrixView by = queries.rows() > 0 ? queries : base;
    if (by.rows() < least_calibration_queries)
      throw InvalidArgument("{} {} rows, but recall of codes is calibrated by {} at least",
                            queries.rows() > 0 ? "queries have" : "base has", by.rows(),
                            least_calibration_queries);
    next.known = KnownNeighbors::among(base, ids, held, queries, k, shape_.metric, options.threads,
                                       options.progress);
    next.recall = std::make_shared<RecallCurves>(next.size), next.changed_rows = 0;
    return keep_curve(next, calibrate_codes(next, shape_, k, options.threads, options.progress));
  }

  void read(const State& state, const State::Place& place, std::vector<std::byte>&, AnyMatrix& out,
            std::int64_t to) const override {
    const CodedRows& rows = state.segments[place.segment].rows->coded();
    if (!shape_.refine) {
      const auto code = rows.lists->place(place.row);
      state.coder->decode(code.code, code.stride, rows.lists->list_at(place.row),
                          static_cast<float*>(out.row(to)));
      return;
    }
    const BaseRows finer(rows.vectors, rows.guard.get());
    if (state.refiner)
      state.refiner->decode(static_cast<const std::uint8_t*>(finer.row(place.row, nullptr)), 1, 0,
                            static_cast<float*>(out.row(to)));
    else
      copy_exactly(finer.row_view(place.row, nullptr), out.type(), out.row(to));
  }
  bool reads_as_given() const override { return shape_.refine.has_value(); }

  void check_faiss(const State& state) const override {
    ProbedForm::check_faiss(state);
    for (const auto& codes : all_codes())
      if (codes && codec_of(*codes).faiss_letters(shape_.lists > 0).empty())
        throw InvalidArgument("index {} has codes that FAISS has not: {}", shape_.description(),
                              codes->name());
    // FAISS decodes what is left beside a centroid by what the index over the centroids says that
    // this one is.
    const CentroidIndex* index = state.coarse ? state.coarse->indexes().plain.get() : nullptr;
    if (shape_.codes->residual && index && !index->holds(state.coarse->centroids()))
      throw InvalidArgument(
          "index {} has codes of what is left beside its centroids, for which FAISS takes what the "
          "index over these, {}, has: that does not hold them as they are, as IVFn,Flat and what "
          "is refined by RFlat do",
          shape_.description(), shape_.coarse.front().description());
  }
  std::unique_ptr<FaissRowWriter> faiss_rows(const State& state) const override {
    return faiss_codes(*shape_.codes, *state.coder, false);
  }
  std::unique_ptr<FaissRowWriter> faiss_refinement(const State& state) const override {
    if (!shape_.refine) return nullptr;
    if (state.refiner) return faiss_codes(*shape_.refine->codes, *state.refiner, true);
    return faiss_vectors(shape_.metric, shape_.dim, shape_.refine->rounded,
                         state.type.value_or(ElementType::f32));
  }
  void learn_numbers(State& state, std::span<const float> numbers,
                     std::span<const float> finer) const override {
    const auto coder_of = [&](const CodeShape& codes, std::int64_t dim,
                              const std::shared_ptr<const CoarseQuantizer>& coarse,
                              std::span<const float> all) {
      const Codec& codec = codec_of(codes);
      if (!codec.is_valid(codes, dim) || std::ssize(all) != codec.count_of_numbers(codes, dim))
        throw InvalidArgument("numbers are {}, which are no quantizer of {} parts of {} bits",
                              all.size(), codes.parts, codes.bits);
      for (const float x : all)
        if (!std::isfinite(x)) throw InvalidArgument("numbers must be finite, but one is {}", x);
      return RowCoder::of_numbers(codes, dim, shape_.metric, coarse, all);
    };
    state.coder = coder_of(*shape_.codes, shape_.inner_dim(), state.coarse, numbers);
    if (shape_.refine && shape_.refine->codes)
      state.refiner = coder_of(*shape_.refine->codes, shape_.dim, nullptr, finer);
  }

  void save(io::ArchiveWriter& writer, const State& state) const override {
    if (shape_.lists > 0) add_centroids(writer, shape_, state);
    add_transforms(writer, shape_, state.transform);
    add_quantizers(writer, shape_, state);
    for (std::size_t s = 0; s < state.segments.size(); ++s) add_codes(writer, s, state.segments[s]);
    save_recall(writer, state);
    if (state.known) add_known(writer, *state.known);
  }
  void load_learned(Sections& in, const FileHead& head, IndexShape& shape,
                    State& state) const override {
    if (in.has("rounded")) in.refuse("rounded", "it is no type of halves");
    const bool has_lists = head.kind.starts_with(kinds_in_lists);
    if (has_lists) load_centroids(in, shape, state, head.make_centroid_index);
    load_quantizers(in, shape, state);
    if (shape.kind() != head.kind) in.refuse("codes", "they are those of another kind of index");
    if (!state.coder && head.has_rows) in.refuse("codes", "there are rows, but no quantizer");
    if (state.coder && has_lists && !state.coarse)
      in.refuse("lists", "there is a quantizer, but no centroids");
  }
  Segment load_segment(Sections& in, std::size_t number, const State& state) const override {
    return load_codes(in, number, shape_, state);
  }
  void load_recall(Sections& in, State& state) const override {
    if (state.coder) state.known = load_known(in, shape_);
    ProbedForm::load_recall(in, state);
  }

 protected:
  SearchRequest request(SearchKind kind, const FormQuery& query, std::int64_t k,
                        const KnnOptions& options) const override {
    return request_of_codes(kind, query.state, query.segments, query.queries, k, options);
  }
  std::unique_ptr<ProbedSearch> open(const FormQuery& query, const SearchRequest& request,
                                     std::int64_t refine_factor,
                                     std::int64_t more_bytes) const override {
    return std::make_unique<CodeSearch>(query.state, request, query.segments, query.vectors,
                                        refine_factor, more_bytes);
  }

 private:
  // The codes of rows and those that refine them.
  std::array<std::optional<CodeShape>, 2> all_codes() const {
    return {shape_.codes, shape_.refine ? shape_.refine->codes : std::nullopt};
  }
  // "RFlat", "Refine(SQ8)".
  static std::string name_of(const RefineShape& refine) {
    if (refine.rounded) return fmt::format("Refine({})", name_of_halves(*refine.rounded));
    return refine.codes ? fmt::format("Refine({})", refine.codes->name()) : "RFlat";
  }

  // Without inverted lists.
  ExactNeighbors nearest_of_all(const FormQuery& query, SearchRequest& request,
                                const ProbedOptions& asked, KnnReport* report) const {
    const AnyMatrixView queries = query.queries;
    std::int64_t refine_factor = asked.refine_factor;
    std::optional<CodeRecall> recall;
    if (asked.by_recall() && query.state.size > 0) {
      recall.emplace(query, shape_, request, asked.recall);
      recall->settle(
          of_one_kind(recall->curve(), keys_without_lists(query.state, queries, request.threads)));
      refine_factor = recall->rule().refine_factor;
    }
    std::optional<CodeSearch> search;
    ExactNeighbors found;
    const auto run = [&] {
      search.emplace(query.state, request, query.segments, query.vectors, refine_factor, 0);
      found = {};
      search->nearest(Matrix<Id>(queries.rows(), 1).view(), found);
    };
    run();
    if (recall && !recall->finds_as_calibrated(found, recall->scales({})) &&
        recall->settle(false)) {
      refine_factor = recall->rule().refine_factor;
      run();
    }
    if (report) {
      *report = search->report();
      if (request.k_asked > request.k) report->short_queries = queries.rows();
      set_promise(*report, request, recall ? recall->promise() : no_promise());
    }
    return found;
  }

  // In inverted lists.
  ExactNeighbors nearest_by_recall(const FormQuery& query, SearchRequest& request,
                                   const ProbedOptions& asked, KnnReport* report) const {
    CodeRecall recall(query, shape_, request, asked.recall);
    Attempt attempt(*this, query, request, bytes_of_probing(request, shape_.lists));
    const auto begin = [&] {
      attempt.begin(recall.rule().refine_factor);
      return attempt.probing().lists_near(recall.rule().lists);
    };
    NearLists near = begin();
    if (recall.settle(of_one_kind(recall.curve(), near))) near = begin();
    const std::vector<Nearness> scales = recall.scales(near);
    attempt.probing().probe_by(recall.rule(), std::move(near));
    if (!recall.finds_as_calibrated(attempt.probing().found(), scales) && recall.settle(false)) {
      near = begin();
      attempt.probing().probe_by(recall.rule(), std::move(near));
    }
    ListProbing& search = attempt.probing();
    if (asked.widen) search.widen();
    if (report) {
      *report = search.report();
      set_promise(*report, request, recall.promise());
    }
    return search.take_found();
  }
};

// Takes codes, and RFlat or Refine(form) behind them.
std::string_view take_codes(FactoryWords& words, IndexShape& shape) {
  shape.codes = codes_of(words, words.word(), shape.inner_dim());
  if (!shape.codes) return {};
  words.take();
  shape.codes->residual = shape.lists > 0;
  // A rotation serves the quantiser that it was trained for.
  for (TransformShape& transform : shape.transforms)
    if (transform.kind == TransformShape::Kind::opq && shape.codes->bits >= 4)
      transform.bits = shape.codes->bits;
  if (words.at_end() || !is_refinement(words.word().text))
    return "but codes may be followed by RFlat, Refine(form) and IDMap only";
  shape.refine.emplace();
  if (!words.is("RFlat") && !words.is("Refine(Flat)")) {
    const auto form = words.in_brackets(words.word(), words.word().text.find('('));
    shape.refine->rounded = halves_of(form.text);
    if (!shape.refine->rounded) shape.refine->codes = codes_of(words, form, shape.dim);
    if (!shape.refine->rounded && !shape.refine->codes)
      words.refuse(form, fmt::format("but codes are refined by Flat, {}, SQfp16 or SQbf16",
                                     words_of_codecs()));
  }
  words.take();
  return only_map;
}

}  // namespace

FormEntry codes_form() {
  FormEntry out{{},
                words_of_codecs(),
                words_of_codecs(),
                take_codes,
                [](const IndexShape& shape) { return shape.codes.has_value(); },
                make_form<CodesForm>};
  for (const std::string_view before : {std::string_view(), kinds_in_lists})
    for (const Codec* codec : all_codecs())
      out.kinds.push_back(fmt::format("{}{}", before, codec->kind()));
  return out;
}

}  // namespace knear::detail
